#!/bin/bash
# Installs into a folder, moves the folder, and builds the examples from there as a user would
# (tests/installed/programs.sh), then the first programs of the pages (tests/installed/readme.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make install PREFIX=/opt/ferry DESTDIR="$work/stage"
grep -q '^prefix=/opt/ferry$' "$work/stage/opt/ferry/lib/pkgconfig/ferry.pc"
mv "$work/stage/opt/ferry" "$work/moved"
tests/installed/programs.sh "$work/moved" "$work/moved/lib" "$work/build"
tests/installed/readme.sh "$work/moved" "$work/build"
"$work/moved/bin/ferry-bench" --version
