#!/bin/bash
# Runs tests of the engine's own modules under Miri, which interprets them and reports undefined behaviour, data races
# and leaks, by the pinned nightly (scripts/nightly.sh):
#
#   scripts/miri.sh [FILTER...]     the tests below, or those whose names contain a FILTER
#
# Miri has no sockets, no other processes and no libraries that are opened at run time, so most of `sys` and of the
# transports are not for it. First two planted mistakes (engine/src/sys/planted.rs) must be reported. A property gets
# PROPTEST_CASES cases (2); SEEDS seeds (4) decide the switches of threads. Both repeat exactly.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/nightly.sh
source scripts/nightly.sh
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
export PROPTEST_CASES=${PROPTEST_CASES:-2} PROPTEST_DISABLE_FAILURE_PERSISTENCE=1
seeds=${SEEDS:-4}

# Decisions and tables: one thread. Few names, because Miri also interprets the comparison of each test with each name.
pure=(plan:: route::tests schedule:: peer::l peer::inbox session::machine session::order session::message)
# Threads meet in these: each seed is another order.
threads=(complete::table region::unregister_tests)
# An interpreter would need minutes for what these repeat.
left_out=(one_among_many places_rise as_many_regions_as_indexes memory_follows_use)
# Grants are words of a memory file, which Miri lacks; the simulation runs them, and loom their gates.
left_out+=(no_process_enters the_next_region_in_the_slot the_next_in_its_slot)

# Isolation stays on: time is the interpreter's own, and random bits come from the seed.
flags="-Zmiri-env-forward=PROPTEST_CASES -Zmiri-env-forward=PROPTEST_DISABLE_FAILURE_PERSISTENCE"
miri() {
    MIRIFLAGS="$flags $1" cargo "+$nightly" miri test --quiet --target-dir "$target/miri" -p ferry --lib -- "${@:2}"
}

# Each planted mistake must be reported, with its own words.
planted() {
    local name=$1 mistake=$2 log=$target/miri/planted.log
    if miri "" --ignored --exact "sys::planted::$name" >"$log" 2>&1 || ! grep -q "$mistake" "$log"; then
        tail -n 20 "$log"
        echo "error: the planted mistake was not reported: Miri is not on"
        return 1
    fi
    echo "the planted mistake is reported: $(grep -h "$mistake" "$log" | head -1)"
}

main() {
    toolchain miri rust-src
    mkdir -p "$target/miri"
    planted use_after_free 'has been freed'
    planted data_race 'Data race detected'
    if [ $# -gt 0 ]; then
        miri "-Zmiri-many-seeds=0..$seeds" "$@"
        return
    fi
    miri "" "${pure[@]}" "${left_out[@]/#/--skip=}"
    miri "-Zmiri-many-seeds=0..$seeds" "${threads[@]}" "${left_out[@]/#/--skip=}"
}

main "$@"; exit
