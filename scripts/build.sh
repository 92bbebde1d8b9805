#!/bin/bash
# Builds the shipped libraries and programs, with the shipped options. Build both libraries even if only
# one is needed: cargo chooses the features of dependencies by the packages that are named together. With other
# features it builds the engine and each library again, over the existing files. ferry-bench is built on its
# own, because it switches the engine's feature `internals` on, which the libraries are built without.
set -euo pipefail
cd "$(dirname "$0")/.."
# Unset what cargo sets for tests: the build script of ring reads these variables, and all crates above it
# would be built again for a test, and once more after it.
unset CARGO_MANIFEST_DIR CARGO_MANIFEST_LINKS OUT_DIR "${!CARGO_PKG_@}"
"${CARGO:-cargo}" build --release -p ferry-ffi -p ferry-mooncake -p ferry-pool-node "$@"
exec "${CARGO:-cargo}" build --release -p ferry-bench "$@"
