#!/bin/bash
# Builds ferry-sim and runs it with these arguments: `run --seeds N`, `replay SEED --story`, `bugs`. Its build is apart
# from the product's, because the engine's feature `sim` must never reach the product.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}/sim
"${CARGO:-cargo}" build --locked --release --manifest-path sim/runs/Cargo.toml --target-dir "$target"
"$target/release/ferry-sim" "$@"
