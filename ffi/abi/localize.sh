#!/bin/sh
# Makes a static library fit to be linked into anything: of IN.a, as cargo built it, keeps what the
# ferry_ functions need, and makes every symbol but those local. Otherwise the Rust standard library's
# symbols would clash with those of another Rust library in the same program.
#
# usage: localize.sh IN.a OUT.a
set -eu
in=$1
out=$2
symbols=$(dirname "$0")/symbols.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One relocatable object, started from the listed symbols; sections that they don't reach are dropped.
undefined=$(sed 's/^/-u /' "$symbols")
# shellcheck disable=SC2086 # words are meant to split
${LD:-ld} -r --gc-sections $undefined -o "$work/ferry.o" "$in"
# Bitcode that rustc left beside the code goes: where an older LLVM has put its plugin into binutils, that
# would claim the whole object for it, fail, and leave the archive without an index.
${OBJCOPY:-objcopy} --keep-global-symbols="$symbols" -R .llvmbc -R .llvmcmd "$work/ferry.o"
rm -f "$out"
${AR:-ar} rcsD "$out" "$work/ferry.o"
