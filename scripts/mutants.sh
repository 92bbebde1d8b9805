#!/bin/bash
# Plants the bugs of sim/mutants in a copy of HEAD, one at a time, and lets each one's tool find it.
#
#   scripts/mutants.sh run [NAME...]   all (or these); fails if a bug is not found
#   scripts/mutants.sh check           tells whether each patch still applies to this tree
#
# scripts/plant.py places a patch by what its lines say. A patch begins with the lines `contract: N` and
# `tool: simulation`, `tool: COMMAND`, or `tool: none` for a bug that no tool finds at will: `run` leaves it out unless it
# is named, and then tries the simulation. The simulation has SEEDS seeds, in one process, so that it finds a bug after
# the same number of seeds each time. The seed, or the command, must pass without the bug. RECORD=1 keeps what was found
# in sim/mutants/found.tsv. The copy, its builds and the logs are in target/mutants.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
patches=$PWD/sim/mutants
found=$patches/found.tsv
work=$target/mutants
tree=$work/tree
seeds=${SEEDS:-10000}
# A command may take this many seconds; one that hangs has found its bug.
limit_s=300
# Rebuilding takes longer than running: less is optimised.
export CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_DEBUG=0 CARGO_PROFILE_RELEASE_INCREMENTAL=true
export CARGO_TARGET_DIR=$work/build

# Prints what stands behind a word at the head of a patch.
head_of() { sed -n "/^--- /q; s/^$2: //p" "$patches/$1.patch"; }

copy() {
    [ -d "$tree/.git" ] || git init --quiet "$tree"
    git -C "$tree" fetch --quiet --depth 1 "file://$PWD" HEAD
    # Files that are alike keep their times, and what was built of them.
    git -C "$tree" checkout --quiet --force --detach FETCH_HEAD
}

build() {
    (cd "$tree" && "${CARGO:-cargo}" build --quiet --locked --release --manifest-path sim/runs/Cargo.toml \
        --target-dir "$CARGO_TARGET_DIR/sim")
}

# Runs a command in the copy, and writes what it says to a log. A command that finds no test fails here.
command_fails() {
    ! (cd "$tree" && timeout $limit_s bash -c "$1") >"$2" 2>&1
}

# Prints how the bug that is now in the copy was found. Fails if it was not.
find_one() {
    local name=$1 tool=$2 log=$work/logs/$1.log seed count=0 from=0
    if [ "$tool" != simulation ] && [ "$tool" != none ]; then
        (cd "$tree" && bash -c "${tool%% -- *} --no-run") >"$log" 2>&1 || { echo "does not compile"; return 1; }
        command_fails "$tool" "$log" || { echo "is not found by: $tool"; return 1; }
        echo "$tool"
        return
    fi
    build >"$log" 2>&1 || { echo "does not compile"; return 1; }
    while [ "$count" -lt "$seeds" ]; do
        "$CARGO_TARGET_DIR/sim/release/ferry-sim" run --from "$from" --seeds $((seeds - count)) --jobs 1 --first \
            >"$log" 2>&1 && break
        seed=$(sed -n 's/^seed \([0-9]*\) FAILED.*/\1/p' "$log" | head -1)
        [ -n "$seed" ] || { echo "the simulation broke"; return 1; }
        count=$((count + 1 + $(sed -n 's/^\([0-9]*\) seeds ran.*/\1/p' "$log")))
        if "$work/sound" replay "$seed" >/dev/null 2>&1; then
            echo "seed $seed after $count"
            return
        fi
        # Fails without the bug, too.
        from=$((seed + 1))
    done
    echo "is not found by $seeds seeds"
    return 1
}

# Puts one line in the place of an earlier one of the same name.
record() {
    local name=$1 contract=$2 how=$3 tool count=
    case $how in
        seed\ *) tool=simulation count=${how##* } ;;
        *) tool=$how ;;
    esac
    {
        printf 'mutant\tcontract\ttool\tseeds\tdate\n'
        {
            [ ! -f "$found" ] || tail -n +2 "$found" | awk -F'\t' -v name="$name" '$1 != name'
            printf '%s\t%s\t%s\t%s\t%s\n' "$name" "$contract" "$tool" "$count" "$(date -u +%F)"
        } | LC_ALL=C sort
    } >"$work/found.tsv"
    mv "$work/found.tsv" "$found"
}

run() {
    local names=("$@") name tool contract how begin failed=0
    [ $# -gt 0 ] || mapfile -t names < <(cd "$patches" && grep -L '^tool: none$' -- *.patch | sed 's/\.patch$//')
    mkdir -p "$work/logs"
    copy
    build
    cp "$CARGO_TARGET_DIR/sim/release/ferry-sim" "$work/sound"
    for name in "${names[@]}"; do head_of "$name" tool; done | sed '/^simulation$/d; /^none$/d' | sort -u |
        while read -r tool; do
            # The limit is for the tests, not for compiling them.
            (cd "$tree" && bash -c "${tool%% -- *} --no-run") >"$work/logs/sound.log" 2>&1 || true
            if command_fails "$tool" "$work/logs/sound.log"; then
                tail -n 20 "$work/logs/sound.log"
                echo "fails without a bug: $tool"
                exit 1
            fi
        done
    for name in "${names[@]}"; do
        contract=$(head_of "$name" contract) tool=$(head_of "$name" tool) begin=$SECONDS
        if ! scripts/plant.py "$tree" "$patches/$name.patch"; then
            how="NOT FOUND: does not apply" && failed=1
        else
            how=$(find_one "$name" "$tool") || failed=1 how="NOT FOUND: $how"
            git -C "$tree" checkout --quiet -- .
            git -C "$tree" clean -fdq
        fi
        printf '%-36s %3s  %-60s %4s s\n' "$name" "$contract" "$how" $((SECONDS - begin))
        [[ "$how" == NOT* || -z "${RECORD:-}" ]] || record "$name" "$contract" "$how"
    done
    return $failed
}

check() {
    local patch word failed=0
    scripts/plant.py --check . "$patches"/*.patch || failed=1
    for patch in "$patches"/*.patch; do
        for word in 'contract: [0-9]' 'tool: .'; do
            grep -q "^$word" "$patch" || { echo "does not say its ${word%%:*}: ${patch##*/}"; failed=1; }
        done
    done
    return $failed
}

"$@"
