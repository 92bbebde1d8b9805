#!/bin/bash
# Installs into a folder of its own and builds the C example from there, as a user would: with pkg-config,
# once against the shared library and once against the static one. Then runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make install PREFIX="$work/prefix"
export PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig
warnings=(-Wall -Wextra -Wpedantic -Werror)
read -ra shared <<<"$(pkg-config --cflags --libs ferry)"
read -ra static <<<"$(pkg-config --static --cflags --libs ferry | sed "s|-lferry|$work/prefix/lib/libferry.a|")"
cc -std=c99 -D_POSIX_C_SOURCE=200809L "${warnings[@]}" examples/c/transfer.c "${shared[@]}" -o "$work/shared"
cc -std=c99 -D_POSIX_C_SOURCE=200809L "${warnings[@]}" examples/c/transfer.c "${static[@]}" -o "$work/static"
export LD_LIBRARY_PATH=$work/prefix/lib
readelf -d "$work/shared" | grep -q 'NEEDED.*libferry.so.0'
if readelf -d "$work/static" | grep -q libferry; then echo "the static program needs libferry.so"; exit 1; fi
tests/c/run-example.sh "$work/shared"
tests/c/run-example.sh "$work/static"
"$work/prefix/bin/ferry-bench" --version
