#!/bin/bash
# Builds the first programs of README.md and bindings/cxx/README.md from an installed ferry, by the commands
# there, each in its own folder.
#
# usage: readme.sh PREFIX WORK
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
prefix=$1 work=$(cd "$2" && pwd)
block() { # language, page: the first block of that language
    awk -v fence="\`\`\`$1" '$0 == fence { on = 1; next } /^```/ { if (on) exit } on' "$2"
}
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
unset LD_LIBRARY_PATH

echo "== README.md, in C, and its Python program for the C program to talk to"
mkdir -p "$work/readme-c" "$work/readme-cxx"
cd "$work/readme-c"
block c "$root/README.md" >first.c
# shellcheck disable=SC2046 # flags are meant to split
cc -std=c99 -Wall -Wextra -Wpedantic -Werror first.c $(pkg-config --define-variable=prefix="$prefix" --cflags --libs ferry) \
    -Wl,-rpath,"$prefix/lib" -o first
block python "$root/README.md" >inbox.py
coproc PYTHONPATH=$root/bindings/python/src FERRY_LIBRARY=$prefix/lib/libferry.so PYTHONDONTWRITEBYTECODE=1 python3 inbox.py
server=$!
trap 'kill $server' EXIT
read -r address <&"${COPROC[0]}"
[ "$(./first "$address")" = "the bytes are in the peer's memory" ]
read -r told <&"${COPROC[0]}"
[ "$told" = "b'there it is' b'hello'" ]
if ./first 127.0.0.1:1 2>said; then exit 1; fi
grep -q '^UNREACHABLE: ' said

echo "== bindings/cxx/README.md, with CMake"
cd "$work/readme-cxx"
block cmake "$root/bindings/cxx/README.md" >CMakeLists.txt
block cpp "$root/bindings/cxx/README.md" >first.cpp
cmake -B build -DCMAKE_PREFIX_PATH="$prefix" >log && cmake --build build >>log || { cat log; exit 1; }
[ "$(build/first)" = '"sent", and the last word is 7' ]
