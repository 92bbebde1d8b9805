#!/bin/bash
# Makes a target folder that was moved or copied usable where it is now. CMake refuses a cache that was made in another
# folder; the build of rdma-mummy-sys has one. cargo runs that build again, if it has to.
set -euo pipefail
cd "$(dirname "$0")/.."
shopt -s nullglob
for cache in "${CARGO_TARGET_DIR:-target}"/{,*/,*/*/,*/*/*/,*/*/*/*/}build/rdma-mummy-sys-*/out/build/CMakeCache.txt; do
    folder=${cache%/*}
    made_in=$(sed -n 's/^CMAKE_CACHEFILE_DIR:INTERNAL=//p' "$cache")
    [ "$made_in" -ef "$folder" ] || rm -rf "$folder"
done
