#!/bin/bash
# Builds the examples from an installed ferry, with pkg-config and with find_package, in C and in C++, against
# the shared and the static library, and runs them; checks the exported symbols of the libraries. Does the
# same with the tests of libferry_mooncake.
#
# usage: programs.sh PREFIX LIBDIR WORK    LIBDIR is inside PREFIX, absolute; WORK is the build folder
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
prefix=$1 libdir=$2 work=$3
warnings=(-Wall -Wextra -Wpedantic -Werror)
mkdir -p "$work"
export LD_LIBRARY_PATH=$libdir

echo "== symbols"
readelf -d "$libdir/libferry.so" | grep -q 'SONAME.*libferry.so.0'
for listing in "-D $libdir/libferry.so" "$libdir/libferry.a"; do
    # shellcheck disable=SC2086 # options and file are meant to split
    symbols=$(nm --defined-only --extern-only -f posix $listing | awk 'NF > 1 { print $1 }' | sort)
    [ "$symbols" = "$(sort "$root/ffi/abi/symbols.txt")" ] || {
        echo "the global symbols of $listing are not those of ffi/abi/symbols.txt:"
        diff <(echo "$symbols") <(sort "$root/ffi/abi/symbols.txt") || true
        exit 1
    }
done
if readelf -d "$libdir/libferry.so" | grep 'NEEDED.*\(ibverbs\|cuda\|stdc++\)'; then
    echo "libferry.so needs what it should open at run time"
    exit 1
fi

needs_ferry() { # program, and whether it should need libferry.so
    if readelf -d "$1" | grep -q 'NEEDED.*libferry.so.0'; then found=shared; else found=static; fi
    [ "$found" = "$2" ] || { echo "$1 is linked with the $found library"; exit 1; }
}

echo "== pkg-config"
config() { PKG_CONFIG_PATH=$libdir/pkgconfig pkg-config "--define-variable=prefix=$prefix" "$@" ferry; }
read -ra cflags <<<"$(config --cflags)"
read -ra shared <<<"$(config --libs)"
read -ra static <<<"$(config --static --libs | sed "s|-lferry|$libdir/libferry.a|")"
for kind in shared static; do
    declare -n libraries=$kind
    for example in transfer exchange; do
        cc -std=c99 -D_POSIX_C_SOURCE=200809L "${warnings[@]}" "${cflags[@]}" "$root/examples/c/$example.c" \
            "${libraries[@]}" -o "$work/pc-$example-$kind"
        needs_ferry "$work/pc-$example-$kind" $kind
    done
    for example in worker exchange kv_handoff; do
        c++ -std=c++17 "${warnings[@]}" "${cflags[@]}" "$root/bindings/cxx/examples/$example.cpp" \
            "${libraries[@]}" -pthread -o "$work/pc-$example-cxx-$kind"
        needs_ferry "$work/pc-$example-cxx-$kind" $kind
    done
    cc "${warnings[@]}" "${cflags[@]}" "$here/verbs.c" "${libraries[@]}" -libverbs -o "$work/pc-verbs-$kind"
    "$work/pc-verbs-$kind"
    "$root/tests/c/run-example.sh" "$work/pc-transfer-$kind"
    timeout 120 "$work/pc-worker-cxx-$kind"
    "$root/tests/kv_handoff.sh" "c++=$work/pc-kv_handoff-cxx-$kind"
    "$root/tests/exchange.sh" "c=$work/pc-exchange-$kind" "c++=$work/pc-exchange-cxx-$kind"
done

echo "== libferry_mooncake"
mooncake() { PKG_CONFIG_PATH=$libdir/pkgconfig pkg-config "--define-variable=prefix=$prefix" "$@" ferry-mooncake; }
read -ra cflags <<<"$(mooncake --cflags)"
read -ra libraries <<<"$(mooncake --libs)"
[ "$(nm -D --defined-only "$libdir/libferry_mooncake.so" | awk '{ print $3 }' | LC_ALL=C sort)" = \
    "$(cat "$root/bindings/mooncake/symbols.txt")" ]
cc -std=c99 "${warnings[@]}" "${cflags[@]}" -I"$root/tests/c" "$root"/bindings/mooncake/tests/c/*.c "${libraries[@]}" \
    -pthread -o "$work/mooncake"
readelf -d "$work/mooncake" | grep -q 'NEEDED.*libferry_mooncake.so.0'
"$work/mooncake"

echo "== find_package"
cmake -S "$here" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF >"$work/cmake.log" || { cat "$work/cmake.log"; exit 1; }
grep -q "^ferry_DIR:PATH=$libdir/cmake/ferry\$" "$work/cmake/CMakeCache.txt"
cmake --build "$work/cmake" >"$work/cmake.log" || { cat "$work/cmake.log"; exit 1; }
for kind in shared static; do
    for program in transfer exchange-c exchange-cxx worker kv_handoff verbs; do needs_ferry "$work/cmake/$program-$kind" $kind; done
    "$work/cmake/verbs-$kind"
    "$root/tests/c/run-example.sh" "$work/cmake/transfer-$kind"
    timeout 120 "$work/cmake/worker-$kind"
    "$root/tests/kv_handoff.sh" "c++=$work/cmake/kv_handoff-$kind"
    "$root/tests/exchange.sh" "c=$work/cmake/exchange-c-$kind" "c++=$work/cmake/exchange-cxx-$kind"
done
# A version that differs from the installed one.
cat >"$work/other.cmake" <<'END'
find_package(ferry 0.2 QUIET CONFIG)
if(ferry_FOUND)
  message(FATAL_ERROR "found ferry where 0.2 was asked for")
endif()
END
cmake -DCMAKE_PREFIX_PATH="$prefix" -P "$work/other.cmake"
