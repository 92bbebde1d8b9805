#!/bin/bash
# Splits a library or a program of a build: OUT without debug information, and .debug/NAME.debug beside OUT with
# it. OUT has a link to that file, with its checksum; gdb, perf and addr2line follow the link. `make install`
# and scripts/deb.sh install what this script writes.
#
# usage: strip.sh IN OUT
set -euo pipefail
in=$1 out=$2
folder=$(dirname "$out")/.debug
debug=$folder/$(basename "$out").debug
mkdir -p "$folder"
objcopy --only-keep-debug "$in" "$debug"
objcopy --strip-unneeded --add-gnu-debuglink="$debug" "$in" "$out"
chmod 755 "$out"
chmod 644 "$debug"
