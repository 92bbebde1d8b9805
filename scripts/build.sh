#!/bin/bash
# Builds what is shipped, the libraries and ferry-bench, as it is shipped. Whoever needs one of them builds all,
# with this: cargo chooses the features of dependencies by the packages that are named together, and with other
# features builds the engine anew, and each library that it is in, over the one that is there.
set -euo pipefail
cd "$(dirname "$0")/.."
# What cargo tells the tests that it runs: a build script (ring's) asks for it, and all that needs that crate would be
# built anew for a test, and after it once more.
unset CARGO_MANIFEST_DIR CARGO_MANIFEST_LINKS OUT_DIR "${!CARGO_PKG_@}"
exec "${CARGO:-cargo}" build --release -p ferry-ffi -p ferry-mooncake -p ferry-bench "$@"
