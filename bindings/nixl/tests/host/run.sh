#!/bin/bash
# Builds the plugin and the stand-in for NIXL's core under a sanitizer, and runs the suite. Needs libgtest.
#
# usage: run.sh [address|thread|none] [gtest's options]    default address
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
case $target in /*) ;; *) target=$root/$target ;; esac
sanitizer=address
case ${1:-} in address | thread | none) sanitizer=$1 && shift ;; esac
case $sanitizer in
address) flags=(-g -O0 -fsanitize=address,undefined -fno-sanitize-recover=all) ;;
thread) flags=(-g -O0 -fsanitize=thread) ;;
none) flags=(-g -O2) ;;
esac
out=$target/nixl-tests/$sanitizer
: "${CXX:=g++}" "${CC:=gcc}"

[ -n "${FERRY_LIBRARY:-}" ] || "$root/scripts/build.sh"
library=${FERRY_LIBRARY:-$target/release/libferry.so}
mkdir -p "$out"
cp -u "$library" "$out/libferry.so.0"
FERRY_LIBRARY=$out/libferry.so.0 CXXFLAGS="${flags[*]} -Werror" "$root/bindings/nixl/build.sh" "$out"
compile() { "$CXX" -std=c++17 -Wall -Wextra -Werror "${flags[@]}" -I"$root/include" "$@"; }
# -Bsymbolic: a copy calls its own functions, so that the plugin sees the copy.
compile -fPIC -shared -Wl,-Bsymbolic "$here/core.cpp" -o "$out/libcore.so"
compile "$here"/{suite,notices,stopped}.cpp "$root/bindings/nixl/src/notices.cpp" "$root/bindings/nixl/src/log.cpp" "$out/libcore.so" \
    "$out/libferry.so.0" -Wl,-rpath,"$out" -lgtest -pthread -o "$out/suite"

# Copies of the core, each beside plugins of engines with a vtable of this many bytes.
for bytes in 232 264 empty; do
    mkdir -p "$out/$bytes/plugins"
    cp "$out/libcore.so" "$out/$bytes/libcore.so"
    [ "$bytes" = empty ] || "$CC" -DBYTES="$bytes" -fPIC -shared "$here/sibling.c" -o "$out/$bytes/plugins/libplugin_X.so"
done
# ThreadSanitizer of older compilers fails if the kernel randomises addresses with more bits.
fixed=()
if [ "$sanitizer" = thread ] && setarch "$(uname -m)" -R true 2>/dev/null; then fixed=(setarch "$(uname -m)" -R); fi
# The core keeps metadata and requests of agents that end, so leaks of the stand-in are not checked.
ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS="suppressions=$here/tsan.txt" \
    timeout 300 "${fixed[@]}" "$out/suite" "$out/libplugin_FERRY.so" "$out" "$@"
