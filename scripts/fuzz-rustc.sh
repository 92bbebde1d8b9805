#!/bin/bash
# rustc with libFuzzer's counters, for the crates of this workspace: scripts/fuzz.sh hands it to cargo. Comparisons are
# told to libFuzzer too, unless FERRY_FUZZ_COMPARISONS is 0, but not those of the targets' own models: they take time.
flags=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table)
[[ " $* " == *" ferry_fuzz "* || ${FERRY_FUZZ_COMPARISONS:-1} = 0 ]] ||
    flags+=(-Cllvm-args=-sanitizer-coverage-trace-compares)
exec "$@" "${flags[@]}"
