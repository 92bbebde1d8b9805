#!/bin/bash
# Builds the nodes of the soak in five languages and runs them against one another (tests/soak/soak.py):
#
#   scripts/soak.sh MINUTES [SEED]         at least 3 minutes; fails if a byte is wrong or a process grows
#   RECORD=1 scripts/soak.sh MINUTES SEED  also adds the run to tests/soak/runs.tsv and draws docs/pictures/soak.svg
#
# Go's node is left out, and that is told, if Go is missing or too old. Downloads nothing but crates.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${1:?usage: soak.sh MINUTES [SEED]}
seed=${2:-$(date +%s)}
mkdir -p "${CARGO_TARGET_DIR:-target}/soak"
out=$(cd "${CARGO_TARGET_DIR:-target}/soak" && pwd)
prefix=$out/prefix
: "${CXX:=g++}" "${CC:=gcc}"

make install PREFIX="$prefix" >"$out/install.log" 2>&1 || { tail -20 "$out/install.log"; exit 1; }
# On its own: cargo would otherwise build the libraries with the features of other packages.
"${CARGO:-cargo}" build --release -p ferry-soak
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
warnings=(-O2 -Wall -Wextra -Wpedantic -Werror)
# shellcheck disable=SC2046  # pkg-config prints several words
"$CC" -std=c11 "${warnings[@]}" tests/soak/node.c $(pkg-config --cflags --libs ferry) -pthread -o "$out/node-c"
# shellcheck disable=SC2046
"$CXX" -std=c++17 "${warnings[@]}" tests/soak/node.cpp $(pkg-config --cflags --libs ferry) -pthread -o "$out/node-cxx"
programs=("c=$out/node-c" "c++=$out/node-cxx" "rust=${CARGO_TARGET_DIR:-target}/release/soak-node" "python=python3 tests/soak/node.py")
wanted=$(sed -n 's/^go //p' bindings/go/go.mod)
found=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null || true)
found=${found#go}
if [ -n "$found" ] && [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -1)" = "$wanted" ]; then
    (cd tests/soak/go && GOTOOLCHAIN=local GOPROXY=off GOFLAGS='' GOWORK=off go build -o "$out/node-go" .)
    programs+=("go=$out/node-go")
else
    echo "SKIPPED: the node in Go, because Go is ${found:-not installed} and the module needs $wanted"
fi

export FERRY_LIBRARY=$prefix/lib/libferry.so PYTHONPATH=bindings/python/src
python3 tests/soak/judge.py
record=()
[ -z "${RECORD:-}" ] || record=(--record)
exec python3 tests/soak/soak.py --minutes "$minutes" --seed "$seed" --out "$out" "${record[@]}" "${programs[@]}"
