#!/bin/bash
# rustc with libFuzzer's counters and comparisons, for the crates of this workspace: scripts/fuzz.sh hands it to cargo.
exec "$@" -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares
