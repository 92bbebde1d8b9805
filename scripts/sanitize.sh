#!/bin/bash
# Runs the C suite against a libferry that is built with a sanitizer, by the pinned nightly Rust (scripts/nightly.sh):
#
#   scripts/sanitize.sh thread|address
#
# `thread` is ThreadSanitizer and `address` AddressSanitizer. First a program makes a planted mistake
# (tests/sanitize/planted.c). If the mistake is not reported, the sanitizer was not on, and the script fails. Then the
# suite runs, and any report fails it. The runtime is gcc's. Reports are in target/sanitize/KIND/reports.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/nightly.sh
source scripts/nightly.sh
kind=${1:?usage: sanitize.sh thread|address}
mkdir -p "${CARGO_TARGET_DIR:-target}/sanitize/$kind"
out=$(cd "${CARGO_TARGET_DIR:-target}/sanitize/$kind" && pwd)
reports=$out/reports
: "${CC:=gcc}"
export FERRY_CUDA_LIBRARY=no-libcuda.so FERRY_ASCEND_LIBRARY=no-libascendcl.so

# The standard library must be instrumented for ThreadSanitizer, which otherwise misses its locks.
case $kind in
thread)
    toolchain rust-src
    std=(-Zbuild-std)
    plant=planted_race
    mistake='data race'
    ;;
address)
    toolchain
    std=()
    plant=planted_use_after_free
    mistake='heap-use-after-free'
    ;;
*)
    echo "sanitize.sh: no sanitizer $kind" >&2
    exit 2
    ;;
esac

cargo_build() {
    RUSTFLAGS="-Zsanitizer=$kind" cargo "+$nightly" build --quiet "${std[@]}" --target "$triple" --target-dir "$out" "$@"
}

# Each process writes its reports into a file of its own. A forked child goes on: the tests fork beside threads.
options() {
    local options="log_path=$reports/$1 exitcode=66 die_after_fork=0 suppressions=$PWD/tests/sanitize/thread.supp"
    if [ "$kind" = thread ]; then
        export TSAN_OPTIONS=$options
    else
        export ASAN_OPTIONS="log_path=$reports/$1 exitcode=66 detect_leaks=1"
    fi
    rm -rf "$reports/$1".*
    mkdir -p "$reports"
}

# Runs a program that makes the planted mistake. The sanitizer must report it, and name libferry's code.
planted() {
    options planted
    "$@" >"$out/planted.log" 2>&1 || true
    if ! grep -qs "$mistake" "$reports"/planted.* || ! grep -qs ferry_config_set "$reports"/planted.*; then
        tail -n 20 "$out/planted.log"
        echo "error: the planted mistake was not reported: the sanitizer is not on"
        return 1
    fi
    echo "the planted mistake is reported: $(grep -hs "$mistake" "$reports"/planted.* | head -1)"
}

# Runs a suite; a report in any of its processes fails the suite.
judged() {
    local status=0
    options suite
    "$@" || status=$?
    if compgen -G "$reports/suite.*" >/dev/null; then
        cat "$reports"/suite.*
        echo "error: there are reports ($reports)"
        return 1
    fi
    return "$status"
}

# Compiles a C program or library of the tests with the sanitizer and links libferry.
compile() {
    "$CC" -std=c99 -g -O1 -fno-omit-frame-pointer "-fsanitize=$kind" -Wall -Wextra -Werror -Iinclude -Itests/c \
        -Itests/sanitize -o "$@" "${needed[@]}" -Wl,-rpath,"$out" -pthread
}

cargo_build -p ferry-ffi
ln -sf "$out/$triple/debug/libferry.so" "$out/libferry.so"
ln -sf libferry.so "$out/libferry.so.0"
needed=("$out/libferry.so")
if [ "$kind" = thread ]; then
    # Not instrumented itself, and calls: gcc would make a loop of calls out of a call of its own.
    "$CC" -O1 -fno-builtin -shared -fPIC tests/sanitize/thread-runtime.c -o "$out/libthread-runtime.so"
    needed+=("$out/libthread-runtime.so")
fi
printf '#include "planted.h"\nint main(void) { return %s(); }\n' $plant >"$out/planted-main.c"
compile "$out/planted" "$out/planted-main.c" tests/sanitize/planted.c
compile "$out/tests" tests/c/*.c
planted "$out/planted"
# Over TCP, except for the tests of the same-host path: ThreadSanitizer does not see the kernel's copies.
FERRY_TRANSPORTS=tcp judged "$out/tests"
echo "no report of $kind"
