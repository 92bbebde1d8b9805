#!/bin/bash
# Runs the suites in C, Python and Go against a libferry that is built with a sanitizer, by the pinned nightly Rust
# (scripts/nightly.sh):
#
#   scripts/sanitize.sh thread|address [c|python|go ...]     all three, or these
#
# `thread` is ThreadSanitizer and `address` AddressSanitizer, with gcc's runtime. In each language a program first makes
# a planted mistake (tests/sanitize/planted.c). If the mistake is not reported, the sanitizer was not on, and the script
# fails. Then the suite runs, and any report fails it. Reports are in target/sanitize/KIND/LANGUAGE.*.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/nightly.sh
source scripts/nightly.sh
usage="usage: sanitize.sh thread|address [c|python|go ...]"
kind=${1:?$usage}
shift
languages=("$@")
[ $# -gt 0 ] || languages=(c python go)
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
out=$target/sanitize/$kind
mkdir -p "$out"
: "${CC:=gcc}"

# The standard library must be instrumented for ThreadSanitizer, which otherwise misses its locks.
case $kind in
thread)
    std=(-Zbuild-std)
    components=(rust-src)
    plant=planted_race
    mistake='data race'
    runtime=libtsan.so
    ;;
address)
    std=()
    components=()
    plant=planted_use_after_free
    mistake='heap-use-after-free'
    runtime=libasan.so
    ;;
*)
    echo "sanitize.sh: no sanitizer $kind; $usage" >&2
    exit 2
    ;;
esac

# Sets the options of the runtimes: each process writes its reports into a file of its own. A forked child goes on: the
# tests fork beside threads. Each frame of a report names its library.
options() {
    local options="log_path=$out/$1 stack_trace_format='    #%n %p in %f %S %M'"
    export TSAN_OPTIONS="$options exitcode=66 die_after_fork=0 suppressions=$PWD/tests/sanitize/thread.supp"
    # An interpreter's own leaks must not be its exit status: the file of the report decides.
    export ASAN_OPTIONS="$options exitcode=0 detect_leaks=${2:-1}"
    rm -f "$out/$1".*
}

# Runs a program that makes the planted mistake. The sanitizer must report it, and name libferry's code.
planted() {
    local language=$1
    shift
    options "$language-planted"
    "$@" >"$out/planted.log" 2>&1 || true
    if ! grep -qs "$mistake" "$out/$language-planted".* || ! grep -qs ferry_config_set "$out/$language-planted".*; then
        tail -n 20 "$out/planted.log"
        echo "error: $language: the planted mistake was not reported: the sanitizer is not on"
        return 1
    fi
    echo "$language: the planted mistake is reported: $(grep -hs "$mistake" "$out/$language-planted".* | head -1)"
}

# Runs the suite of a language; a report in any of its processes fails the suite. `leaks` is 0 or 1: look for leaks too.
leaks=1
judged() {
    local language=$1 status=0 report kept
    shift
    options "$language-suite" $leaks
    "$@" || status=$?
    for report in "$out/$language-suite".*; do
        [ -e "$report" ] || continue
        kept=$(judge "$language" "$report")
        [ -n "$kept" ] || continue
        printf '%s\n' "$kept"
        echo "error: $language: there is a report ($report)"
        status=1
    done
    [ "$status" -ne 0 ] || echo "$language: no report of $kind"
    return "$status"
}
# Prints what counts of a report: an interpreter leaks on its own.
judge() {
    case $kind-$1 in
    address-python) awk -f tests/sanitize/leaks.awk "$2" ;;
    *) cat "$2" ;;
    esac
}

# Compiles a C program or library of the tests with the sanitizer and links libferry.
compile() {
    "$CC" -std=c99 -g -O1 -fno-omit-frame-pointer "-fsanitize=$kind" -Wall -Wextra -Werror -Iinclude -Itests/c \
        -Itests/sanitize -o "$@" "${needed[@]}" -Wl,-rpath,"$out" -pthread
}

# Builds libferry with the sanitizer, and the library of the planted mistakes.
build() {
    toolchain "${components[@]}"
    RUSTFLAGS="-Zsanitizer=$kind" cargo "+$nightly" build --quiet "${std[@]}" \
        --target "$triple" --target-dir "$out" -p ferry-ffi
    ln -sf "$out/$triple/debug/libferry.so" "$out/libferry.so"
    ln -sf libferry.so "$out/libferry.so.0"
    needed=("$out/libferry.so")
    if [ "$kind" = thread ]; then
        # Not instrumented itself, and calls: gcc would make a loop of calls out of a call of its own.
        "$CC" -O1 -fno-builtin -shared -fPIC tests/sanitize/thread-runtime.c -o "$out/libthread-runtime.so"
        needed+=("$out/libthread-runtime.so")
    fi
    compile "$out/libplanted.so" -shared -fPIC tests/sanitize/planted.c
}

# Stand-ins for the libraries of devices, which the suites in Python and Go use. ThreadSanitizer must see their locks.
standins() {
    local folder=$target/standin
    [ "$kind" = address ] || folder=$out/standin
    SANITIZE=${kind/address/} tests/standin/build.sh "$folder" >"$out/standin.log" 2>&1 || {
        tail -n 20 "$out/standin.log"
        return 1
    }
    export FERRY_TEST_STANDIN=$folder
}

# Over TCP, except for the tests of the same-host path: ThreadSanitizer does not see the kernel's copies.
suite_c() {
    printf '#include "planted.h"\nint main(void) { return %s(); }\n' $plant >"$out/planted-main.c"
    compile "$out/planted" "$out/planted-main.c" "$out/libplanted.so"
    compile "$out/tests" tests/c/*.c
    planted c "$out/planted"
    FERRY_CUDA_LIBRARY=no-libcuda.so FERRY_ASCEND_LIBRARY=no-libascendcl.so FERRY_TRANSPORTS=tcp judged c "$out/tests"
}

# Why the tests of progress are no matter for ThreadSanitizer.
overlap='the requests of their transfers write one range, from several lanes at once: a race of the program'

# The interpreter is not instrumented: the runtime is loaded before it.
suite_python() {
    local venv=$target/sanitize/venv preloaded
    scripts/setup.sh python
    [ -x "$venv/bin/pytest" ] || {
        python3 -m venv "$venv"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r bindings/python/requirements-test.txt
    }
    standins
    preloaded=$("$CC" -print-file-name=$runtime)
    [ "$kind" = address ] || preloaded+=" $out/libthread-runtime.so"
    # Memory of the interpreter comes from malloc, where AddressSanitizer sees its end, and what it points at. numpy's
    # threads are not instrumented, and would seem to race: it has none.
    python=(env "LD_PRELOAD=$preloaded" PYTHONMALLOC=malloc OPENBLAS_NUM_THREADS=1 "FERRY_LIBRARY=$out/libferry.so"
        "PYTHONPATH=$PWD/bindings/python/src" "$venv/bin/python")
    planted python "${python[@]}" tests/sanitize/planted.py "$out/libplanted.so" $plant
    pytest=(env -C bindings/python "${python[@]}" -m pytest)
    # The interpreter that ends with engines open leaks them on purpose: it runs apart.
    local open=tests/test_fork.py::test_an_interpreter_ends_with_everything_left_open left_out
    left_out=test_notifications_are_given_back
    echo "SKIPPED: $left_out, because it measures resident memory, which the sanitizer keeps"
    if [ "$kind" = thread ]; then
        left_out+=' or show_progress or progress_is_shown or progress_shows or test_devices'
        left_out+=' or test_a_child_has_engines_of_its_own or test_a_child_has_caches_of_its_own'
        echo "SKIPPED: test_a_child_has_engines_of_its_own and test_a_child_has_caches_of_its_own: ThreadSanitizer ends a \
forked child that starts threads"
        left_out+=' or test_results_of_each_request'
        echo "SKIPPED: the tests of progress, and test_results_of_each_request, because $overlap"
        # An access of the kind that tests/sanitize/thread.supp names is looked up for every 8 bytes: minutes for a MiB.
        echo "SKIPPED: test_devices.py, because ThreadSanitizer takes minutes for each test of it"
    fi
    judged python "${pytest[@]}" --deselect $open -k "not ($left_out)" || return
    leaks=0 judged python "${pytest[@]}" $open
}

# Go's code is not instrumented: Go's race detector (bindings/go/test.sh) has a runtime of its own, and a program with
# both runtimes crashes when it starts. cgo tells the sanitizer of each call into C. Go's leaks of C memory are looked for.
suite_go() {
    local wanted found build=(-asan) left_out=()
    export GOTOOLCHAIN=local GOPROXY=off GOFLAGS='' GOWORK=off
    wanted=$(sed -n 's/^go //p' bindings/go/go.mod)
    found=$(go env GOVERSION 2>/dev/null || true)
    found=${found#go}
    if [ -z "$found" ] || [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -1)" != "$wanted" ]; then
        echo "SKIPPED: the suite in Go, because Go is ${found:-not installed} and the module needs $wanted"
        return
    fi
    standins
    printf 'Name: ferry\nDescription: ferry with a sanitizer\nVersion: 0\nCflags: -I%s\nLibs: -L%s -lferry\n' \
        "$PWD/include" "$out" >"$out/ferry.pc"
    export PKG_CONFIG_PATH=$out LD_LIBRARY_PATH=$out CGO_CFLAGS="-g -O1 -I$PWD/tests/sanitize" CGO_LDFLAGS="-L$out"
    if [ "$kind" = address ]; then
        left_out=(-skip '^(TestEventsLeaveNothingInC|TestTheCollectorFreesWhatNobodyHas)$')
        echo "SKIPPED: TestEventsLeaveNothingInC and TestTheCollectorFreesWhatNobodyHas, because they measure resident \
memory, which the sanitizer keeps; it looks for leaks itself"
    else
        build=()
        left_out=(-skip '^TestProgressShowsHowFarATransferIs$')
        echo "SKIPPED: TestProgressShowsHowFarATransferIs, because $overlap"
        CGO_CFLAGS+=" -fsanitize=thread"
        CGO_LDFLAGS+=" -fsanitize=thread $out/libthread-runtime.so"
    fi
    CGO_LDFLAGS="$CGO_LDFLAGS -lplanted" go build -C tests/sanitize/go "${build[@]}" -o "$out/planted-go" .
    planted go "$out/planted-go" $plant
    judged go go test -C bindings/go "${build[@]}" "${left_out[@]}" -count=1 -timeout 900s ./...
}

# bash reads the whole function before it runs: a run takes long, and the file may be edited meanwhile.
main() {
    local language failed=0
    for language in "${languages[@]}"; do
        declare -F "suite_$language" >/dev/null || { echo "sanitize.sh: no suite $language; $usage" >&2; exit 2; }
    done
    build
    # In a shell of its own, which a failure ends, and the others run.
    set +e
    for language in "${languages[@]}"; do
        (set -e; "suite_$language")
        failed=$((failed + ($? != 0)))
    done
    [ "$failed" -eq 0 ]
}

main; exit
