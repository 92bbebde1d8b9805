#!/bin/bash
# Runs the test legs named, or all of them. Each leg's output goes to a log that is printed when the leg
# fails; the last line counts. A leg that cannot run here says why and counts as skipped.
set -uo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
logs=$target/test-logs
mkdir -p "$logs"
passed=0 failed=0 skipped=0

SKIP=77
format() { cargo fmt --all --check; }
clippy() { cargo clippy --workspace --all-targets -- -D warnings; }
unit() { cargo test -p ferry --lib && cargo test -p ferry --test imports --test plan_properties --test loom_region; }
tests() { cargo test --workspace; }
# The lane threads' two ways to wait, each forced on over the suite that every transport passes.
epoll() { FERRY_TCP_POLLER=epoll cargo test -p ferry --test conformance --test smoke; }
io_uring() {
    if [ "$(cat /proc/sys/kernel/io_uring_disabled 2>/dev/null || echo 0)" = 2 ]; then
        echo "SKIPPED: this kernel has io_uring switched off"
        return $SKIP
    fi
    FERRY_TCP_POLLER=io_uring cargo test -p ferry --test conformance --test smoke
}
# The same tests once more, with the same-host path in place of TCP.
local_path() {
    FERRY_TEST_TRANSPORTS=local cargo test -p ferry --test futures --test notifications --test queues \
        --test regions --test smoke --test threads --test transfers
}
# What needs RDMA devices, in a virtual machine that has them; the binaries are built here.
rdma() {
    local listed binaries
    scripts/setup.sh rdma || return 1
    cargo build --release -p ferry-bench || return 1
    listed=$(cargo test -p ferry --lib --test rdma --test smoke --test notifications --test queues --test futures \
        --no-run --message-format=json-render-diagnostics) || return 1
    # Of the library's own tests, only those that need the machine.
    mapfile -t binaries < <(sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' <<<"$listed" |
        sed 's|/ferry-[0-9a-f]*$|& transport::rdma::fault_tests|')
    [ ${#binaries[@]} -eq 6 ] || return 1
    FERRY_TEST_TRANSPORTS=rdma FERRY_BENCH=$target/release/ferry-bench \
        scripts/rdma-vm.sh --limit 1200 run tests/rdma/guest.sh "${binaries[@]}"
}
# The stand-ins for device libraries keep their rules; and two processes with their devices, for every pair of
# memories and every failure.
standin() {
    tests/standin/test.sh "$target/standin" || return 1
    FERRY_TEST_STANDIN=$(realpath "$target/standin/plain") cargo test -p ferry --test devices
}
# CUDA against the stand-in for its driver, and on a GPU where there is one.
cuda() {
    scripts/cuda.sh standin || return 1
    if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
        scripts/cuda.sh test
    else
        echo "SKIPPED: the same tests on a GPU, of which there is none (make test-cuda where there is)"
    fi
}
# The references, that nothing public is missing in them, and the links of all pages.
docs() { scripts/setup.sh docs && scripts/docs.sh "$target/docs" && python3 tests/docs.py "$target/docs"; }
c() { tests/c/run.sh; }
cxx() { bindings/cxx/tests/run.sh; }
mooncake_c() { bindings/mooncake/tests/run.sh; }
installed() { scripts/test_install.sh; }
deb() {
    if ! command -v dpkg >/dev/null; then
        echo "SKIPPED: this is no Debian"
        return $SKIP
    fi
    scripts/setup.sh deb && scripts/test_deb.sh
}
golang() { bindings/go/test.sh; }
# The package in a virtual environment, and the module of Mooncake's name on top of it.
python() { scripts/setup.sh python && bindings/python/test.sh && bindings/python/mooncake/test.sh; }
# One program in five languages, each with each; built by the legs of the languages.
exchange() {
    local programs=("rust=$target/release/exchange" "c=$target/cxx-tests/exchange-c" "c++=$target/cxx-tests/exchange")
    cargo build --release -p ferry-examples || return 1
    programs+=("python=$target/python/venv/bin/python bindings/python/examples/exchange.py")
    if [ -x "$target/go/exchange" ]; then
        programs+=("go=$target/go/exchange")
        export LD_LIBRARY_PATH=$target/go/prefix/lib
    else
        echo "SKIPPED: the pairs with Go, of which there is none"
    fi
    tests/exchange.sh "${programs[@]}"
}
# Both ends on loopback: memory of the host, and of the stand-ins' devices.
selftest() {
    local bench=$target/release/ferry-bench standin=$target/standin
    cargo build --release -p ferry-bench && "$bench" selftest --json "$logs/selftest.json" || return 1
    tests/standin/build.sh "$standin" && standin=$(realpath "$standin") || return 1
    FERRY_CUDA_LIBRARY=$standin/cuda-12.8/libcuda.so.1 "$bench" selftest --use_cuda=0 &&
        FERRY_ASCEND_LIBRARY=$standin/cann-9.1/libascendcl.so "$bench" selftest --use_ascend=0
}
# The Python ends of `make compare`, without the peers: ferry's library and the bare system call.
agents() {
    if ! command -v python3 >/dev/null; then
        echo "SKIPPED: there is no python3"
        return $SKIP
    fi
    cargo build --release -p ferry-ffi && python3 benches/peers/test_peers.py "$target/release/libferry.so"
}
demo() { cargo run --release -p ferry-examples --bin kv_demo; }

run() {
    local leg=$1 started=$SECONDS
    "$leg" >"$logs/$leg.log" 2>&1 </dev/null
    case $? in
    0)
        passed=$((passed + 1))
        echo "ok      $leg ($((SECONDS - started)) s)"
        grep -h "SKIPPED" "$logs/$leg.log" | sed 's/^/        /' || true
        ;;
    "$SKIP")
        skipped=$((skipped + 1))
        echo "skipped $leg: $(tail -1 "$logs/$leg.log")"
        ;;
    *)
        failed=$((failed + 1))
        echo "FAILED  $leg ($((SECONDS - started)) s); its output:"
        tail -n 150 "$logs/$leg.log"
        ;;
    esac
}

legs_all=(format clippy tests epoll io_uring local_path rdma standin cuda docs c cxx mooncake_c installed deb python golang exchange selftest agents demo)
if [ $# -gt 0 ]; then legs=("$@"); else legs=("${legs_all[@]}"); fi
for leg in "${legs[@]}"; do run "$leg"; done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
