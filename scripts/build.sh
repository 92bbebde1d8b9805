#!/bin/bash
# Builds the shipped libraries and ferry-bench, with the shipped options. Build all of them even if only one
# is needed: cargo chooses the features of dependencies by the packages that are named together. With other
# features it builds the engine and each library again, over the existing files.
set -euo pipefail
cd "$(dirname "$0")/.."
# Unset what cargo sets for tests: the build script of ring reads these variables, and all crates above it
# would be built again for a test, and once more after it.
unset CARGO_MANIFEST_DIR CARGO_MANIFEST_LINKS OUT_DIR "${!CARGO_PKG_@}"
exec "${CARGO:-cargo}" build --release -p ferry-ffi -p ferry-mooncake -p ferry-bench "$@"
