#!/bin/sh
# Makes a static library that can be linked into any program: keeps the code of IN.a that the ferry_ functions
# need, and makes all other symbols local. Otherwise the symbols of the Rust standard library would clash with
# those of another Rust library in the same program.
#
# usage: localize.sh IN.a OUT.a
set -eu
in=$1
out=$2
symbols=$(dirname "$0")/symbols.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Links one relocatable object from the listed symbols and drops sections that they don't reach.
undefined=$(sed 's/^/-u /' "$symbols")
# shellcheck disable=SC2086 # words must split
${LD:-ld} -r --gc-sections $undefined -o "$work/ferry.o" "$in"
# Removes the bitcode that rustc left beside the code. If an older LLVM has installed its plugin into binutils,
# the plugin would otherwise claim the whole object, fail, and leave the archive without an index.
${OBJCOPY:-objcopy} --keep-global-symbols="$symbols" -R .llvmbc -R .llvmcmd "$work/ferry.o"
# Each function and value has a section, named after it: 1.4 MB of names. A number does, behind the prefix by which linkers
# sort sections.
${READELF:-readelf} -SW "$work/ferry.o" |
    sed -n 's/^ *\[ *[0-9]*\] \(\.\(text\|rodata\|data\|bss\|gcc_except_table\)\.[^ ]*\) .*/\1/p' | sort -u |
    awk '{
        split($1, part, ".")
        prefix = "." part[2]
        if ($1 ~ /^\.data\.rel\.ro\./) prefix = ".data.rel.ro"
        if ($1 ~ /^\.text\.(unlikely|hot|startup)\./) prefix = ".text." part[3]
        print "--rename-section " $1 "=" prefix "." NR
    }' >"$work/names"
${OBJCOPY:-objcopy} "@$work/names" "$work/ferry.o"
rm -f "$out"
${AR:-ar} rcsD "$out" "$work/ferry.o"
