#!/bin/bash
# Measures what docs/results.md, README.md and the plot show, on this machine and this commit, and rewrites them
# (docs/figures.py). What needs other hardware or a virtual machine keeps its figures: the page says which.
#
# usage: figures.sh [PART...]    peers, sockets, bindings; default all of them: about 40 minutes on a quiet machine
set -euo pipefail
cd "$(dirname "$0")/.."
parts=("$@")
[ $# -gt 0 ] || parts=(peers sockets bindings)
target=${CARGO_TARGET_DIR:-target}
out=$target/figures
for part in "${parts[@]}"; do
    [[ " peers sockets bindings " == *" $part "* ]] || { echo "figures.sh: $part is no part: peers, sockets, bindings" >&2; exit 2; }
done
git diff --quiet HEAD -- . ':!docs' ':!README.md' || { echo "figures.sh: commit the changes first: the figures name a commit" >&2; exit 2; }
rm -rf "$out"
mkdir -p "$out"
echo "$(date -u +%F), commit $(git rev-parse --short=8 HEAD)" >"$out/measured"
for part in "${parts[@]}"; do
    case $part in
    peers) RESULTS=$out scripts/compare.sh ;;
    sockets) "$target/release/ferry-compare" sockets --json "$out/bench.json" ;;
    bindings)
        scripts/overhead.sh >"$out/overhead.md"
        cat "$out/overhead.md"
        ;;
    esac
done
python3 docs/figures.py "$out"
