#!/bin/bash
# Runs the named test legs, or all of them, and prints the time of each; the last line counts them. Each leg
# is its own process (scripts/legs.sh) with its own log, which is printed if the leg fails. A leg that cannot
# run here prints the reason and counts as skipped. A leg that exceeds its time limit fails, and all its
# processes are killed.
set -uo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
logs=$target/test-logs
SKIP=77

# The first legs build and use every processor. local_path has transfers that must not end before their
# deadlines, however slow the deadline thread is. Most of the other legs use one processor, or wait: they run
# in two lanes side by side, each in the order given here. A leg that writes a file which another leg reads is
# in the same lane.
alone=(format clippy build tests local_path standin sim)
lanes=(
    "c mooncake_c docs rdma cuda io_uring selftest agents demo"
    "etcd cxx python golang exchange installed deb nixl"
)
# Printed at the end of a full run.
elsewhere="not run: make bench, bench-cuda, compare, overhead and pool-paper, which measure; sim, chaos and fuzz, which draw more faults; sanitize, miri and soak; make prove, which runs some of each; make test-engines, which runs vLLM and LMCache; make test-bare, which runs make demo and make test in a new Debian"

# The time limit of a leg in seconds: several times its time on two processors from an empty target folder.
bound_s() {
    case $1 in
    tests) echo 1800 ;;
    rdma) echo 1500 ;; # the machine has a limit of its own, and may have to be fetched
    *) echo 900 ;;
    esac
}

# shellcheck source=scripts/session.sh
source scripts/session.sh
end_all() {
    local file
    trap '' INT TERM HUP
    [ ${#workers[@]} -eq 0 ] || kill "${workers[@]}" 2>/dev/null
    for file in "$logs"/*.session; do [ ! -e "$file" ] || end_session "$(cat "$file")"; done
    exit 143
}

# Runs a leg and records its status, wall seconds and CPU seconds.
run() {
    local leg=$1 bound started=$SECONDS session status cpu=-
    bound=$(bound_s "$leg")
    rm -f "$logs/$leg".{cpu,session,result}
    setsid timeout -k 10 "$bound" scripts/legs.sh "$leg" >"$logs/$leg.log" 2>&1 </dev/null &
    session=$!
    echo "$session" >"$logs/$leg.session"
    wait "$session" 2>/dev/null # the shell would tell of one that is killed
    status=$?
    end_session "$session"
    rm -f "$logs/$leg.session"
    if [ $((SECONDS - started)) -ge "$bound" ] && { [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; }; then
        echo "the leg $leg did not end within $bound s, and was killed" >>"$logs/$leg.log"
    fi
    # "1m2.345s 0m6.789s"
    [ ! -e "$logs/$leg.cpu" ] ||
        cpu=$(tail -1 "$logs/$leg.cpu" | tr 'ms' '  ' | awk '{ printf "%.0f", 60 * $1 + $2 + 60 * $3 + $4 }')
    echo "$status $((SECONDS - started)) $cpu" >"$logs/$leg.result"
    # One at a time, whatever the lane.
    { flock 8 && tell "$leg" "$status" $((SECONDS - started)); } 8>"$logs/lock"
}

# The lines of a leg's log that name what failed, and what each panic said.
named_failures() {
    LC_ALL=C awk '{
        named = said || /FAILED|--- FAIL:|^    .*\.c:[0-9]+: |descriptors before|panicked at|ended with status|did not end within|failed; once more|SUMMARY: |^error|: error:/
        said = /panicked at/
    }
    named && !seen[$0]++' "$logs/$1.log" | head -n 40
}

tell() {
    local leg=$1 status=$2 seconds=$3
    case $status in
    0)
        echo "ok      $leg ($seconds s)"
        grep -h "SKIPPED" "$logs/$leg.log" | sed 's/^/        /' || true
        ;;
    "$SKIP") echo "skipped $leg: $(tail -1 "$logs/$leg.log")" ;;
    *)
        echo "FAILED  $leg ($seconds s):"
        named_failures "$leg"
        echo "the end of its output, all of which is in $logs/$leg.log:"
        tail -n 200 "$logs/$leg.log"
        ;;
    esac
}

# Arguments: the legs that ran.
table() {
    local leg status wall cpu
    echo
    echo "seconds by leg      wall    CPU"
    for leg in "$@"; do
        read -r status wall cpu <"$logs/$leg.result"
        printf '%-16s %7s %6s\n' "$leg" "$wall" "$cpu"
    done
    printf '%-16s %7s\n' "all" "$SECONDS"
}

# bash reads the whole function before it runs: a run takes long, and the file may be edited meanwhile.
main() {
    mkdir -p "$logs"
    rm -f "$logs"/*.session
    workers=()
    trap end_all INT TERM HUP

    all=("${alone[@]}")
    for lane in "${lanes[@]}"; do
        read -ra words <<<"$lane"
        all+=("${words[@]}")
    done
    legs=("$@")
    [ $# -gt 0 ] || legs=("${all[@]}")
    for leg in "${legs[@]}"; do
        [[ " ${all[*]} unit " == *" $leg "* ]] || { echo "test.sh: $leg is no leg; the legs are: ${all[*]} unit" >&2; exit 2; }
    done
    # A fresh checkout does not gain from incremental builds; a checkout that somebody works in keeps them.
    [ -d "$target/debug/incremental" ] || export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
    export FERRY_TEST_LEGS=${legs[*]}
    if [ $# -gt 0 ]; then
        for leg in "${legs[@]}"; do run "$leg"; done
    else
        for leg in "${alone[@]}"; do run "$leg"; done
        for lane in "${lanes[@]}"; do
            (for leg in $lane; do run "$leg"; done) &
            workers+=($!)
        done
        wait "${workers[@]}"
    fi

    table "${legs[@]}"
    [ $# -gt 0 ] || echo "$elsewhere"
    passed=0 failed=0 skipped=0
    for leg in "${legs[@]}"; do
        read -r status _ <"$logs/$leg.result"
        case $status in
        0) passed=$((passed + 1)) ;;
        "$SKIP") skipped=$((skipped + 1)) ;;
        *)
            failed=$((failed + 1))
            # Once more: the output above may be long.
            echo "FAILED  $leg:"
            named_failures "$leg"
            tail -n 3 "$logs/$leg.log"
            ;;
        esac
    done
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
}

main "$@"; exit
