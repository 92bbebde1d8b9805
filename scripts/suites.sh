#!/bin/bash
# Runs every test of the workspace, as `cargo test --workspace` does, with two test programs at a time:
# programs that mostly wait, for leases, deadlines and other processes, beside programs that compute. Each has
# a time limit and a log. At the end the script prints the seconds of each, and the output of the failed ones.
set -uo pipefail
cd "$(dirname "$0")/.."
target=$(realpath "${CARGO_TARGET_DIR:-target}")
logs=$target/test-logs/suites
bound_s=600
# The programs that wait most, by package and name; the others take about the same time together.
waits=" ferry/faults ferry/devices ferry/hostile ferry/ferry kv/processes tool/two_ends compare/whole_programs "

rm -rf "$logs"
mkdir -p "$logs"
# cargo's list of programs with tests: its package's folder, its name, the program.
listed=$(cargo test --workspace --no-run --message-format=json-render-diagnostics) || exit 1
pattern='.*"manifest_path":"\([^"]*\)/Cargo.toml".*"target":{"kind":\["[^"]*".*"name":"\([^"]*\)".*'
pattern+='"overflow_checks":[a-z]*,"test":true}.*"executable":"\([^"]*\)".*'
# The leg `etcd` runs the tests in etcd: it installs etcd first.
mapfile -t programs < <(sed -n "s|$pattern|\1 \2 \3|p" <<<"$listed" | grep -vE '/directory etcd |/program membership ')
[ ${#programs[@]} -gt 0 ] || { echo "cargo named no test program"; exit 1; }

# Runs a program in the folder where cargo would; records its name, status, wall and CPU seconds.
run() {
    local folder=$1 name=$2 program=$3 started=$SECONDS status
    (
        cd "$folder" || exit 1
        timeout -k 10 $bound_s "$program" >"$logs/${name/\//-}.log" 2>&1 </dev/null
        status=$?
        seconds=$((SECONDS - started))
        times >"$logs/${name/\//-}.cpu" # not in a pipeline, where it would be that of a new process
        cpu=$(tail -1 "$logs/${name/\//-}.cpu" | tr 'ms' '  ' | awk '{ printf "%.0f", 60 * $1 + $2 + 60 * $3 + $4 }')
        echo "$name $status $seconds $cpu" >>"$logs/results"
    )
}
named() { # the package's name, by its folder, and the program's
    case $1 in
    */engine) echo "ferry/$2" ;;
    *) echo "$(basename "$1")/$2" ;;
    esac
}
# Runs the lane of waiting programs, or the other lane.
lane() {
    local folder name program full
    for line in "${programs[@]}"; do
        read -r folder name program <<<"$line"
        full=$(named "$folder" "$name")
        if [[ $waits == *" $full "* ]]; then [ "$1" = waits ]; else [ "$1" = computes ]; fi || continue
        run "$folder" "$full" "$program"
    done
}
# bash reads the whole function before it runs: that takes minutes, and the file may be edited meanwhile.
main() {
    lane waits &
    waiting=$!
    lane computes
    started=$SECONDS
    cargo test --workspace --doc >"$logs/doc.log" 2>&1
    echo "doc $? $((SECONDS - started)) -" >>"$logs/results"
    wait "$waiting"

    echo "seconds by test program       wall    CPU"
    sort -k3 -rn "$logs/results" | awk '{ printf "%-26s %7s %6s%s\n", $1, $3, $4, $2 ? "  FAILED" : "" }'
    grep -h "SKIPPED" "$logs"/*.log | sort -u
    awk '/^test result: / { passed += $4; failed += $6; ignored += $8 }
        END { printf "%d tests passed, %d failed, %d ignored\n", passed, failed, ignored }' "$logs"/*.log
    failed=0
    while read -r name status _; do
        [ "$status" -ne 0 ] || continue
        failed=$((failed + 1))
        echo "== $name ended with status $status$([ "$status" -ne 124 ] || echo ": it did not end within $bound_s s")"
        # From libtest's list of failures on; a crashed program has no such list.
        sed -n '/^failures:$/,$p' "$logs/${name/\//-}.log" | grep . || tail -n 60 "$logs/${name/\//-}.log"
    done <"$logs/results"
    ran=$(wc -l <"$logs/results")
    [ "$ran" -eq $((${#programs[@]} + 1)) ] || { echo "$ran of $((${#programs[@]} + 1)) suites ran"; exit 1; }
    [ "$failed" -eq 0 ]
}

main; exit
