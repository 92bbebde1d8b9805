#!/bin/sh
# Builds the shipped libferry_mooncake.so and a program that knows only its interface, and runs the program
# over TCP, over the path that ferry chooses on one host, and under valgrind (tests/c/valgrind.sh). Warnings are
# errors. Arguments go to the program (a filter).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
case $target in /*) ;; *) target=$root/$target ;; esac
out=$target/mooncake-tests
mkdir -p "$out"

"$root/scripts/build.sh"
ln -sf "$target/release/libferry_mooncake.so" "$out/libferry_mooncake.so.0"
compile() { # program, then sources
    "${CC:-gcc}" -std=c99 -g -O1 -Wall -Wextra -Wpedantic -Werror -Wstrict-prototypes -Wconversion -Wno-sign-conversion \
        -I"$here/.." -I"$root/tests/c" -o "$@" "$out/libferry_mooncake.so.0" -Wl,-rpath,"$out" -pthread
}
compile "$out/suite" "$here"/c/*.c

unset FERRY_TRANSPORTS FERRY_LOG FERRY_SECRET FERRY_SECRET_FILE FERRY_ALLOW_UNAUTHENTICATED
echo "== TCP"
FERRY_TRANSPORTS=tcp "$out/suite" "$@"
echo "== the best path"
"$out/suite" "$@"

echo "== the program in README.md"
awk '/^```c$/ { on = 1; next } /^```/ { on = 0 } on' "$here/../README.md" >"$out/readme.c"
compile "$out/readme" "$out/readme.c"
rm -f "$out/told" "$out/answered"
mkfifo "$out/told" "$out/answered"
"$out/suite" --peer 127.0.0.1 <"$out/told" >"$out/answered" &
exec 3>"$out/told"
read -r session address _ <"$out/answered"
"$out/readme" "$session" "$address"
exec 3>&-
wait $!
FERRY_TRANSPORTS=tcp "$root/tests/c/valgrind.sh" "$out" "$out/suite" "$@"
