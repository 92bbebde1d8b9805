#!/bin/bash
# Runs the test legs named, or all of them, and prints how long each took; the last line counts. Each leg is a
# process of its own (scripts/legs.sh has what it does) with a log of its own, which is printed when the leg fails.
# A leg that cannot run here says why and counts as skipped; one that does not end in its time has failed, and
# nothing that it started is left.
set -uo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
logs=$target/test-logs
SKIP=77

# The first ones build, and use every processor; local_path has transfers that must not be done before their
# deadlines, however slow the thread that looks at those is. Of the rest most use one, or wait: they go in two lanes, side by
# side, each in the order that it has here. Whoever writes what another reads is in one lane with it.
alone=(format clippy build tests local_path standin)
lanes=(
    "c mooncake_c rdma cuda selftest agents demo"
    "cxx python golang exchange installed deb docs io_uring"
)
# What `all` leaves out, for the end of the run.
elsewhere="not run: make bench, bench-cuda, compare and overhead, which measure"

# The bound of a leg in seconds: several times what it takes on two processors from nothing.
bound_s() {
    case $1 in
    tests) echo 1800 ;;
    rdma) echo 1500 ;; # the machine has a limit of its own, and may have to be fetched
    *) echo 900 ;;
    esac
}

# Ends what is left of a session: a leg has one of its own.
end_session() {
    local stat line pid words
    for stat in /proc/[0-9]*/stat; do
        { read -r line <"$stat"; } 2>/dev/null || continue
        # The name, in parentheses, may have blanks.
        read -ra words <<<"${line##*) }"
        pid=${line%% *}
        [ "${words[3]:-}" != "$1" ] || kill -KILL "$pid" 2>/dev/null
    done
}
end_all() {
    local file
    trap '' INT TERM HUP
    [ ${#workers[@]} -eq 0 ] || kill "${workers[@]}" 2>/dev/null
    for file in "$logs"/*.session; do [ ! -e "$file" ] || end_session "$(cat "$file")"; done
    exit 143
}

# Runs a leg and writes down how it went: its status, wall seconds and CPU seconds.
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
    # One after another, whatever lane they are in.
    { flock 8 && tell "$leg" "$status" $((SECONDS - started)); } 8>"$logs/lock"
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
        echo "FAILED  $leg ($seconds s); the end of its output, all of which is in $logs/$leg.log:"
        tail -n 300 "$logs/$leg.log"
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

# Read whole before it runs: that takes long, and the file may be edited meanwhile.
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
        [[ " ${all[*]} unit " == *" $leg "* ]] || { echo "test.sh: there is no leg $leg; there are: ${all[*]} unit" >&2; exit 2; }
    done
    # A checkout that nobody works in gains nothing from what incremental builds write down; one that somebody does
    # keeps what is built.
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
        *) failed=$((failed + 1)) ;;
        esac
    done
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ]
}

main "$@"; exit
