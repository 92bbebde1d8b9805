#!/bin/bash
# Builds the nodes of chaos in the languages of the bindings, and plays rounds in which each process of a node is one of
# them or the one in Rust (engine/tests/chaos, tests/chaos):
#
#   ROUNDS=20 SEED=n scripts/chaos.sh           on hosts that are network namespaces: TCP and the same host
#   RDMA=1 ROUNDS=5 SEED=n scripts/chaos.sh     in the virtual machine with RDMA devices, whose limit is LIMIT seconds
#                                               (1800)
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/nodes.sh
source scripts/nodes.sh
out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/chaos
: "${CARGO:=cargo}"

build_nodes tests/chaos "$out" tests/chaos/host.c
CHAOS_NODES=$(IFS=';' && echo "${programs[*]}")
export CHAOS_NODES
[ -n "${RDMA:-}" ] || exec "$CARGO" test -p ferry --test chaos

scripts/setup.sh rdma
program=$("$CARGO" test -p ferry --test chaos --no-run --message-format=json-render-diagnostics |
    sed -n 's|.*/engine/Cargo.toml".*"executable":"\([^"]*\)".*|\1|p')
exec scripts/rdma-vm.sh --limit "${LIMIT:-1800}" run env CHAOS_RDMA=1 CHAOS_NODES="$CHAOS_NODES" ROUNDS="${ROUNDS:-5}" \
    SEED="${SEED:-}" LD_LIBRARY_PATH="$LD_LIBRARY_PATH" PYTHONPATH="$PYTHONPATH" "$program"
