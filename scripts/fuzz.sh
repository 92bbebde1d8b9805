#!/bin/bash
# Fuzzes the targets of fuzz/src/lib.rs with libFuzzer.
#
#   scripts/fuzz.sh run SECONDS [TARGET...]   each target (or these) for so many seconds, on one core, at low priority
#   scripts/fuzz.sh replay TARGET FILE...     one target on these inputs
#   scripts/fuzz.sh minimise TARGET...        replaces the corpora in fuzz/corpus by small ones that reach as much
#   scripts/fuzz.sh hostile ROUNDS [SEED]     the hostile peer against a live engine (engine/tests/hostile/storm)
#   scripts/fuzz.sh build                     the program alone; prints its path
#
# All but the build are under AddressSanitizer; FERRY_FUZZ_SANITIZER=none does without it and is two to five times
# faster. FERRY_FUZZ_COMPARISONS=0 tells libFuzzer of no comparisons, which only parsers gain from; state machines are up
# to twice as fast then (`flight` 5,500 and 11,000 executions a second, `kv_handoff` 2,500 and 3,700).
# FERRY_FUZZ_FRESH=1 begins with the corpus of the repository and keeps none: one that has grown for hours is of long
# inputs (`machine` did 1,200 executions a second with it, and 29,000 in the first seconds without). `run` adds its
# executions to fuzz/executions.tsv. An input that breaks a target is kept in target/fuzz/found.
# The compiler is a pinned nightly (scripts/nightly.sh), which is installed if it is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
# shellcheck source=scripts/nightly.sh
source scripts/nightly.sh
sanitizer=${FERRY_FUZZ_SANITIZER:-address}
export FERRY_FUZZ_COMPARISONS=${FERRY_FUZZ_COMPARISONS:-1}
work=$target/fuzz
counts=fuzz/executions.tsv

flags() {
    local flags="-Cdebug-assertions"
    [ "$sanitizer" = none ] || flags+=" -Zsanitizer=$sanitizer"
    echo "$flags"
}

# Only ferry's own crates count the edges that an input reaches: libFuzzer looks at all counters after each input, and
# those of dependencies, which say nothing, would make up most of that.
build() {
    toolchain
    # With --target, build scripts and macros are built without these flags.
    local built=$work/$sanitizer
    [ "$FERRY_FUZZ_COMPARISONS" != 0 ] || built+=-plain # cargo does not see what the wrapper adds
    RUSTFLAGS=$(flags) RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/fuzz-rustc.sh cargo "+$nightly" build --quiet --profile fuzz \
        --target "$triple" --target-dir "$built" -p ferry-fuzz --features libfuzzer >&2
    echo "$built/$triple/fuzz/ferry-fuzz"
}

targets() {
    sed -n 's/^    \(parser\|states\)("\([a-z_]*\)".*/\2/p' fuzz/src/lib.rs
}

# The longest input of a target in bytes. A state machine takes a step for every few bytes.
input_bytes_max() {
    if grep -q "^    states(\"$1\"" fuzz/src/lib.rs; then echo 1024; else echo 4096; fi
}

# Adds a run to the counts: one line for each target and sanitizer.
record() {
    local name=$1 executions=$2 seconds=$3 features=$4
    (
        flock 9
        [ -s "$counts" ] || printf 'target\tsanitizer\texecutions\tseconds\tfeatures\tdate\n' >"$counts"
        awk -F'\t' -v OFS='\t' -v name="$name" -v with="$sanitizer" -v n="$executions" -v s="$seconds" \
            -v f="$features" -v date="$(date -u +%F)" '
            $1 == name && $2 == with { $3 += n; $4 += s; if (f > $5) $5 = f; $6 = date; done = 1 }
            { print }
            END { if (!done) print name, with, n, s, f, date }' "$counts" >"$work/counts"
        cp "$work/counts" "$counts"
    ) 9>"$work/counts.lock"
}

fuzz_one() {
    local program=$1 name=$2 seconds=$3 corpus=$work/corpus/$2 log status=0
    mkdir -p "$corpus" "$work/found" "$work/logs" "fuzz/corpus/$name"
    [ "${FERRY_FUZZ_FRESH:-0}" = 0 ] || corpus=$(mktemp -d "$work/fresh.XXXXXX")
    log=$(mktemp "$work/logs/$name.XXXXXX") # two runs of one target must not read each other's counts
    FERRY_FUZZ_TARGET=$name nice -n 19 "$program" -max_total_time="$seconds" -timeout=20 \
        -max_len="$(input_bytes_max "$name")" -rss_limit_mb=4096 -print_final_stats=1 \
        -artifact_prefix="$work/found/$name-" \
        "$corpus" "fuzz/corpus/$name" >"$log" 2>&1 || status=$?
    [ "${FERRY_FUZZ_FRESH:-0}" = 0 ] || rm -rf "$corpus"
    local executions features
    executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log" | tail -1)
    features=$(sed -n 's/.* ft: \([0-9]*\).*/\1/p' "$log" | tail -1)
    [ -z "$executions" ] || record "$name" "$executions" "$seconds" "${features:-0}"
    printf '%-16s %12s executions, %6s features\n' "$name" "${executions:-0}" "${features:-0}"
    if [ "$status" -ne 0 ]; then
        tail -n 40 "$log"
        rm "$log"
        echo "$name: the target has failed; an input that breaks it is in $work/found"
        return 1
    fi
    mv "$log" "$work/logs/$name.$sanitizer.log"
}

run() {
    local seconds=$1 failed=0 name
    shift
    mkdir -p "$work"
    [ $# -gt 0 ] || mapfile -t all < <(targets)
    [ $# -eq 0 ] || all=("$@")
    # A copy: the next build may replace the program while this run goes on.
    program=$(mktemp "$work/run.XXXXXX")
    trap 'rm -f "$program"' EXIT
    cp "$(build)" "$program"
    chmod +x "$program"
    for name in "${all[@]}"; do fuzz_one "$program" "$name" "$seconds" || failed=1; done
    return $failed
}

replay() {
    local program name=$1
    shift
    program=$(build)
    FERRY_FUZZ_TARGET=$name "$program" "$@"
}

# The largest number of inputs that a corpus keeps, unless more have found bugs.
inputs_max=20
minimise() {
    local program name from to
    program=$(build)
    for name in "$@"; do
        from=$work/corpus/$name to=$work/minimised/$name
        rm -rf "$to" "$to.control" && mkdir -p "$to" "$from" "fuzz/corpus/$name"
        # The control file says what each input reaches.
        FERRY_FUZZ_TARGET=$name "$program" -merge=1 -merge_control_file="$to.control" -max_len=4096 "$to" \
            "fuzz/corpus/$name" "$from" 2>/dev/null
        python3 - "$to.control" "$inputs_max" "$to.kept" <<'END'
import os, sys

control, most, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
with open(control) as file:
    lines = file.read().splitlines()
files = lines[2 : 2 + int(lines[0])]
reached = {}
for line in lines[2 + len(files) :]:
    kind, index, *found = line.split()
    if kind in ("FT", "COV"):
        reached.setdefault(int(index), set()).update((kind, number) for number in found)
def adds(index):
    """New edges count more than new counts of them."""
    new = reached[index] - known
    return sum(kind == "COV" for kind, _ in new), len(new), -index


# The input that adds the most, time after time. Those that found a bug have a name, and stay anyhow.
named = [index for index, path in enumerate(files) if len(os.path.basename(path)) != 40]
known = set().union(*(reached.get(index, set()) for index in named))
kept = []
while len(kept) + len(named) < most:
    index = max(reached, key=adds, default=None)
    if index is None or not reached[index] - known:
        break
    kept.append(files[index])
    known |= reached.pop(index)
with open(out, "w") as file:
    file.writelines(f"{path}\n" for path in kept)
END
        rm -rf "$to" && mkdir -p "$to"
        xargs -r -a "$to.kept" -I{} cp {} "$to/"
        find "fuzz/corpus/$name" -type f -regextype posix-extended -regex '.*/[0-9a-f]{40}' -delete
        cp "$to"/* "fuzz/corpus/$name/" 2>/dev/null || true
    done
}

# The test has a time limit of its own: the number of rounds.
hostile() {
    toolchain
    RUSTFLAGS="$(flags)" FERRY_HOSTILE_ROUNDS=$1 FERRY_HOSTILE_SEED=${2:-} cargo "+$nightly" test --quiet \
        --profile fuzz --target "$triple" --target-dir "$work/$sanitizer-tests" -p ferry --test hostile -- \
        --nocapture storm
}

"$@"
