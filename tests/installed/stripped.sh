#!/bin/bash
# Checks the sizes of installed files, that they have no debug information, and that debuggers find it in the files
# of `make install-debug`, and nowhere without them.
#
# usage: stripped.sh PREFIX LIBDIR   LIBDIR is inside PREFIX, absolute; both are of `make install-debug`
set -euo pipefail
prefix=$1 libdir=$2

# rustc puts the 34 bytes of .debug_gdb_scripts into programs; they are loaded with the program.
no_debug_information() {
    if readelf -SW "$1" 2>/dev/null | grep '\.z\?debug_' | grep -v '\.debug_gdb_scripts'; then
        echo "$1 has debug information"
        exit 1
    fi
}
below() { # a file, and the bytes that it may have: about one and a half of what it has
    local bytes
    bytes=$(stat -Lc %s "$1")
    echo "$1: $bytes bytes"
    [ "$bytes" -lt "$2" ] || { echo "$1 has $bytes bytes, $2 or more"; exit 1; }
}
# With Rust 1.85 they are about a tenth larger than with 1.95.
below "$libdir/libferry.so" 8400000
below "$libdir/libferry_mooncake.so" 4500000
below "$libdir/libferry.a" 18300000
below "$prefix/bin/ferry-bench" 8000000
for file in "$libdir"/libferry{,_mooncake}.so "$libdir/libferry.a" "$prefix/bin/ferry-bench"; do
    no_debug_information "$file"
done

# Prints the source file of a function of a library, as a debugger finds it.
source_of() {
    local address
    address=$(nm -D --defined-only "$1" | awk -v name="$2" '$3 == name { print $1 }')
    addr2line -e "$1" "0x$address"
}
resolves() { # a library, a function, and the file that has it
    local real debug
    real=$(realpath "$1")
    debug=$(dirname "$real")/.debug/$(basename "$real").debug
    [[ $(source_of "$real" "$2") == *"$3":* ]] || { echo "$real: no source of $2 by its link"; exit 1; }
    mv "$debug" "$debug.away"
    [[ $(source_of "$real" "$2") == '??'* ]] || { echo "$real has debug information itself"; exit 1; }
    mv "$debug.away" "$debug"
}
resolves "$libdir/libferry.so" ferry_engine_open ffi/src/engine.rs
resolves "$libdir/libferry_mooncake.so" createTransferEngine bindings/mooncake/src/engine.rs
readelf --debug-dump=links "$prefix/bin/ferry-bench" | grep -q 'Separate debug info file: ferry-bench.debug'
