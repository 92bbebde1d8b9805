#!/bin/sh
# Builds the shipped libferry, and runs the C tests and the C example against it: plainly, linked statically,
# and under valgrind (valgrind.sh). Warnings are errors. Arguments go to the test program (a filter).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
library=$target/release
out=$target/c-tests
: "${CC:=gcc}"
warnings="-Wall -Wextra -Wpedantic -Werror -Wstrict-prototypes -Wconversion -Wno-sign-conversion"
mkdir -p "$out"

"$root/scripts/build.sh"
ln -sf "$library/libferry.so" "$out/libferry.so.0"
"$root/ffi/abi/localize.sh" "$library/libferry.a" "$out/libferry.a"

compile() { # output, then sources and libraries
    program=$1
    shift
    # shellcheck disable=SC2086 # words are meant to split
    "$CC" -std=c99 -g -O1 $warnings -I"$root/include" -I"$here" -o "$program" "$@" -pthread
}
sources=$(echo "$here"/*.c)
# shellcheck disable=SC2086 # words are meant to split
compile "$out/tests" $sources "$out/libferry.so.0" -Wl,-rpath,"$out"
# shellcheck disable=SC2086 # words are meant to split
compile "$out/tests-static" $sources "$out/libferry.a" -lm -ldl
compile "$out/transfer" "$root/examples/c/transfer.c" "$out/libferry.so.0" -Wl,-rpath,"$out"

# Engines of one host use TCP, except where a test says otherwise (local.c).
export FERRY_TRANSPORTS=tcp
echo "== C tests, shared library"
"$out/tests" "$@"
echo "== C tests, static library"
"$out/tests-static" "$@"
echo "== examples/c/transfer.c"
"$here/run-example.sh" "$out/transfer"
"$here/valgrind.sh" "$out" "$out/tests" "$@"
