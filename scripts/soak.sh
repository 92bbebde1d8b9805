#!/bin/bash
# Builds the nodes of the soak in five languages and runs them against one another (tests/soak/soak.py):
#
#   scripts/soak.sh MINUTES [SEED]         at least 3 minutes; fails if a byte is wrong or a process grows
#   RECORD=1 scripts/soak.sh MINUTES SEED  also adds the run to tests/soak/runs.tsv and draws docs/pictures/soak.svg
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/nodes.sh
source scripts/nodes.sh
minutes=${1:?usage: soak.sh MINUTES [SEED]}
seed=${2:-$(date +%s)}
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out=$target/soak

build_nodes tests/soak "$out"
# On its own: cargo would otherwise build the libraries with the features of other packages.
"${CARGO:-cargo}" build --release -p ferry-soak
programs+=("rust=$target/release/soak-node")
python3 tests/soak/judge.py
record=()
[ -z "${RECORD:-}" ] || record=(--record)
exec python3 tests/soak/soak.py --minutes "$minutes" --seed "$seed" --out "$out" "${record[@]}" "${programs[@]}"
