#!/bin/bash
# Builds what is shipped, the libraries and ferry-bench, as it is shipped. Whoever needs one of them builds all,
# with this: cargo chooses the features of dependencies by the packages that are named together, and with other
# features builds the engine anew, and each library that it is in, over the one that is there.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${CARGO:-cargo}" build --release -p ferry-ffi -p ferry-mooncake -p ferry-bench "$@"
