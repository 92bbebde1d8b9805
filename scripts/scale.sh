#!/bin/bash
# Measures what a peer and a region cost an engine, from few to very many (engine/tests/growth): 10,000 peers, 100,000
# regions. Prints the table, and fails if the cost of one grows with the number of all. Takes a minute or two.
#
#   scripts/scale.sh           needs a limit of 15,100 descriptors (ulimit -Hn)
#   RECORD=1 scripts/scale.sh  also keeps the figures in tests/scale/figures.tsv and draws docs/pictures/scale.svg
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "${CARGO_TARGET_DIR:-target}"
FIGURES=$(realpath "${CARGO_TARGET_DIR:-target}")/scale.tsv
export FIGURES
"${CARGO:-cargo}" test -p ferry --test growth
[ -n "${RECORD:-}" ] || exit 0
cp "$FIGURES" tests/scale/figures.tsv
model=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)
note="make scale, $(date -u +%F), commit $(git rev-parse --short HEAD), $(nproc) cores, ${model:-unknown processor}"
python3 tests/scale/plot.py "$note"
