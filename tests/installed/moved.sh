#!/bin/bash
# A target folder that was moved, or copied, with CMake's cache in it: CMake refuses the cache until scripts/moved.sh has
# run, and accepts what is there afterwards. A cache that was not moved stays, by whatever link it is reached.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/source"
printf 'cmake_minimum_required(VERSION 3.10)\nproject(moved NONE)\n' >"$work/source/CMakeLists.txt"
build=release/build/rdma-mummy-sys-0/out/build
configure() { cmake -S "$work/source" -B "$1/$build" >"$work/said" 2>&1; }
mend() { CARGO_TARGET_DIR=$1 scripts/moved.sh; }

configure "$work/old/sim"
ln -s "$work/old" "$work/link"
mend "$work/link"
[ -e "$work/old/sim/$build/CMakeCache.txt" ] || { echo "a cache that was not moved is gone"; exit 1; }
cp -r "$work/old" "$work/copied"
for moved in copied renamed; do
    [ $moved = copied ] || mv "$work/old" "$work/renamed"
    if configure "$work/$moved/sim"; then echo "CMake takes a cache that was $moved: scripts/moved.sh has no use"; exit 1; fi
    mend "$work/$moved"
    configure "$work/$moved/sim" || { echo "the target folder was $moved, and CMake says:"; cat "$work/said"; exit 1; }
done
