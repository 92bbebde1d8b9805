#!/bin/bash
# Runs all that looks for faults beyond `make test`, on two processors within an hour, builds included:
#
#   scripts/prove.sh [PART...]     all parts, or these
#
# Each part is a process with its own time limit and log (target/prove/PART.log). The script prints the seconds of each,
# tells aloud what could not run here, and at the end repeats what failed. SEED=n repeats the random parts of a run; the
# first line has the number. Parts that nightly Rust builds install it (scripts/nightly.sh).
set -uo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/session.sh
source scripts/session.sh
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
logs=$target/prove
SKIP=77
seed=${SEED:-$(date +%s)}
# All limits together, in seconds. `main` checks the sum.
budget_s=3600

# part  limit in seconds  command. The limits include the builds from an empty target folder, in this order: soak uses
# what chaos has built.
parts="
address    460  scripts/sanitize.sh address
thread     570  scripts/sanitize.sh thread
miri       600  scripts/miri.sh
fuzz       450  scripts/fuzz.sh run 6
hostile    300  scripts/fuzz.sh hostile 2000 $seed
chaos      580  make chaos ROUNDS=12 SEED=$seed
soak       300  make soak MINUTES=3 SEED=$seed
sim        300  scripts/sim.sh run --seeds 1500 --from $seed
"

limit_of() { awk -v part="$1" '$1 == part { print $2 }' <<<"$parts"; }
command_of() { awk -v part="$1" '$1 == part { $1 = $2 = ""; print }' <<<"$parts"; }

# Runs a part and records its status and seconds.
run() {
    local part=$1 limit started=$SECONDS status seconds
    limit=$(limit_of "$part")
    # shellcheck disable=SC2046  # a command of several words
    setsid timeout -k 10 "$limit" $(command_of "$part") >"$logs/$part.log" 2>&1 </dev/null &
    session=$!
    wait "$session" 2>/dev/null # the shell would tell of one that is killed
    status=$?
    end_session "$session"
    session=
    seconds=$((SECONDS - started))
    if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
        echo "the part $part did not end within $limit s, and was killed" >>"$logs/$part.log"
    fi
    echo "$status $seconds" >"$logs/$part.result"
    case $status in
    0) printf 'ok      %-8s %5s s of %s\n' "$part" "$seconds" "$limit" ;;
    "$SKIP") printf 'SKIPPED %-8s %s\n' "$part" "$(tail -n 1 "$logs/$part.log" | sed 's/^SKIPPED: //')" ;;
    *) printf 'FAILED  %-8s %5s s of %s\n' "$part" "$seconds" "$limit" ;;
    esac
    [ "$status" -eq "$SKIP" ] || grep -ah SKIPPED "$logs/$part.log" | sed 's/^/        /'
}

# Repeats the end of what a failed part has written.
tell() {
    echo
    echo "FAILED  $1, by:$(command_of "$1")"
    tail -n 60 "$logs/$1.log"
    echo "(all of it is in $logs/$1.log)"
}

# bash reads the whole function before it runs: a run takes long, and the file may be edited meanwhile.
main() {
    local all chosen part status passed=0 failed=() skipped=0
    mapfile -t all < <(awk 'NF { print $1 }' <<<"$parts")
    chosen=("${all[@]}")
    [ $# -eq 0 ] || chosen=("$@")
    for part in "${chosen[@]}"; do
        [ -n "$(limit_of "$part")" ] || { echo "prove.sh: $part is no part; the parts are: ${all[*]}" >&2; exit 2; }
    done
    [ "$(awk '{ sum += $2 } END { print sum }' <<<"$parts")" -le $budget_s ] || {
        echo "prove.sh: the limits exceed $budget_s s" >&2
        exit 2
    }
    mkdir -p "$logs"
    session=
    trap 'trap "" INT TERM HUP; [ -z "$session" ] || end_session "$session"; exit 143' INT TERM HUP

    echo "prove: SEED=$seed on $(nproc) processors"
    for part in "${chosen[@]}"; do run "$part"; done
    for part in "${chosen[@]}"; do
        read -r status _ <"$logs/$part.result"
        case $status in
        0) passed=$((passed + 1)) ;;
        "$SKIP") skipped=$((skipped + 1)) ;;
        *) failed+=("$part") ;;
        esac
    done
    [ ${#failed[@]} -eq 0 ] || for part in "${failed[@]}"; do tell "$part"; done
    echo
    echo "$passed passed, ${#failed[@]} failed, $skipped skipped, in $SECONDS s"
    [ ${#failed[@]} -eq 0 ]
}

main "$@"; exit
