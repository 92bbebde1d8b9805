#!/bin/bash
# The legs of scripts/test.sh, which runs each leg as its own process, `legs.sh LEG`, with a time limit. Exit
# status SKIP means that the leg cannot run here; its last line has the reason. A leg builds what an earlier
# leg did not, so `scripts/test.sh LEG` is enough.
set -uo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
logs=$target/test-logs
SKIP=77
standin=$target/standin

# True if the leg `tests` is part of this run; the tests of that leg then don't run a second time.
with_tests() { [[ " ${FERRY_TEST_LEGS:-} " == *" tests "* ]]; }
# Runs test programs of a package; further arguments are cargo's. Cargo takes the features of dependencies
# from the packages that are named together, and with other features builds every program again. After `tests`
# the whole workspace is named for that reason.
suite() {
    local packages=(-p "$1")
    if with_tests; then packages=(--workspace); fi
    cargo test "${packages[@]}" "${@:2}"
}

# ferry builds with an older Rust than its lints are for, and than mdBook needs.
TOOLS_RUST=1.88
has_tools() {
    local found
    found=$(rustc --version | cut -d' ' -f2)
    [ "$(printf '%s\n%s\n' $TOOLS_RUST "$found" | sort -V | head -1)" = $TOOLS_RUST ] ||
        { echo "SKIPPED: $1 Rust $TOOLS_RUST or later, and rustc is $found"; return $SKIP; }
}

format() { cargo fmt --all --check && cargo fmt --manifest-path sim/runs/Cargo.toml --check; }
# Fails if a crate needs a newer Rust than `rust-version`. Arguments: a workspace, and cargo's about features.
crates_are_old_enough() {
    local host
    host=$(rustc -vV | sed -n 's/^host: //p')
    cargo metadata --locked --format-version 1 --filter-platform "$host" --manifest-path "$@" |
        python3 -c 'import json, sys
packages = json.load(sys.stdin)["packages"]
number = lambda it: tuple(map(int, ((it["rust_version"] or "0") + ".0.0").split(".")[:2]))
ours = next(number(it) for it in packages if it["name"] == "ferry")
wrong = ["{name} {version} needs Rust {rust_version}".format(**it) for it in packages if number(it) > ours]
sys.exit("\n".join(wrong) or None)'
}
# Checks everything, and then what is shipped, which has less: the tests' feature `internals` is off. Code that
# only tests use is dead there. Clippy reports what Rust of `rust-version` lacks (incompatible_msrv).
clippy() {
    has_tools "the lints are those of" || return
    crates_are_old_enough Cargo.toml --all-features && crates_are_old_enough sim/runs/Cargo.toml || return
    cargo clippy --workspace --all-targets -- -D warnings &&
        cargo clippy -p ferry -p ferry-ffi -p ferry-mooncake -p ferry-examples -- -D warnings &&
        cargo clippy --locked --manifest-path sim/runs/Cargo.toml --target-dir "$target/sim" --all-targets -- -D warnings
}
unit() { cargo test -p ferry --lib && cargo test -p ferry --test imports --test plan_properties --test loom_models; }
# Runs whole engines by seeds on the simulated kernel, in a build of their own: the seeds that showed bugs, and some
# more. `make sim` runs as many as it is told. A planted bug whose patch no longer applies is found here.
sim() {
    scripts/mutants.sh check && cargo test --locked --release --manifest-path sim/runs/Cargo.toml --target-dir "$target/sim" &&
        scripts/sim.sh run --seeds 400
}
# Builds the shipped files for the legs that use them.
build() { scripts/build.sh; }
# Runs every test of the workspace. The stand-ins are built first, once, for all of them.
tests() {
    tests/standin/build.sh "$standin" || return 1
    FERRY_TEST_STANDIN=$(realpath "$standin") scripts/suites.sh
}
# Runs the suite that every transport passes with the other poller of the lane threads; `tests` uses epoll,
# the default. Skips tests that name a poller or have no lanes: they would not differ.
io_uring() {
    if [ "$(cat /proc/sys/kernel/io_uring_disabled 2>/dev/null || echo 0)" = 2 ]; then
        echo "SKIPPED: this kernel has io_uring switched off"
        return $SKIP
    fi
    FERRY_TCP_POLLER=io_uring suite ferry --test conformance -- --skip epoll --skip io_uring --skip same_host
}
# Runs the same tests again, with the same-host path instead of TCP.
local_path() {
    FERRY_TEST_TRANSPORTS=local suite ferry --test futures --test notifications --test queues --test regions --test threads \
        --test transfers
}
# Runs the tests that need RDMA devices, in a virtual machine that has them; the binaries are built here.
rdma() {
    local listed handoffs binaries
    scripts/setup.sh rdma && scripts/build.sh || return 1
    listed=$(suite ferry --lib --test rdma --test smoke --test notifications --test queues --test futures \
        --no-run --message-format=json-render-diagnostics) || return 1
    handoffs=$(suite ferry-kv --test cache --no-run --message-format=json-render-diagnostics) || return 1
    # Of the library's own tests, only those that need the machine.
    mapfile -t binaries < <(sed -n 's|.*/engine/Cargo.toml".*"executable":"\([^"]*\)".*|\1|p' <<<"$listed" |
        sed 's|/ferry-[0-9a-f]*$|& transport::rdma::fault_tests|'
        sed -n 's|.*/kv/Cargo.toml".*"executable":"\([^"]*\)".*|\1|p' <<<"$handoffs")
    [ ${#binaries[@]} -eq 7 ] || { printf 'not the seven programs expected: %s\n' "${binaries[*]}"; return 1; }
    guest "${binaries[@]}" || {
        local status=$?
        [ $status -eq 125 ] || return $status
        echo "the machine itself failed; once more, with what had not passed"
        touch "$target/rdma-vm/out/passed"
        mapfile -t binaries < <(printf '%s\n' "${binaries[@]}" | grep -vxFf "$target/rdma-vm/out/passed")
        guest "${binaries[@]}"
    }
}
guest() {
    FERRY_TEST_TRANSPORTS=rdma FERRY_BENCH=$target/release/ferry-bench \
        scripts/rdma-vm.sh --limit 1200 run tests/rdma-vm/guest.sh "$@"
}
# Checks that the stand-ins for device libraries keep their rules; then two processes with their devices, for
# every pair of memories and every failure.
standin() {
    tests/standin/test.sh "$standin" || return 1
    with_tests || FERRY_TEST_STANDIN=$(realpath "$standin") suite ferry --test devices
}
# Tests CUDA against the stand-in for its driver, and on a GPU if this machine has one.
cuda() {
    if with_tests; then scripts/cuda.sh standin-bench --workspace; else scripts/cuda.sh standin; fi || return 1
    if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
        scripts/cuda.sh test
    else
        echo "SKIPPED: the same tests on a GPU, because this machine has none (make test-cuda runs them)"
    fi
}
# Builds the references, checks that they document everything public, and checks the links of all pages.
docs() {
    has_tools "mdBook needs" || return
    scripts/setup.sh docs && scripts/docs.sh "$target/docs" && python3 tests/docs.py "$target/docs"
}
c() { tests/c/run.sh; }
cxx() { bindings/cxx/tests/run.sh; }
mooncake_c() { bindings/mooncake/tests/run.sh; }
installed() { scripts/test_install.sh; }
deb() {
    if ! command -v dpkg >/dev/null; then
        echo "SKIPPED: dpkg is not installed"
        return $SKIP
    fi
    scripts/setup.sh deb && scripts/test_deb.sh
}
golang() { bindings/go/test.sh; }
# Starts servers of etcd, for directories in them. The legs of the languages find etcd then, and reach it too.
etcd() {
    scripts/setup.sh etcd && suite ferry-directory --test etcd && suite ferry-pool-node --test membership
}
# Tests the package in a virtual environment, and the module of Mooncake's name on top of it.
python() {
    scripts/setup.sh python || return 1
    bindings/python/test.sh && bindings/python/mooncake/test.sh
}
# Tests the plugin for NIXL under a stand-in for NIXL's core, and in the wheel.
nixl() { scripts/setup.sh python && bindings/nixl/test.sh; }
# Runs three programs in five languages, each with each; the legs of the languages build them. Rust's are those of
# `cargo test`.
exchange() {
    local program command programs python=$target/python/venv/bin/python
    suite ferry-examples --test programs --no-run || return 1
    [ ! -x "$target/go/exchange" ] || export LD_LIBRARY_PATH=$target/go/prefix/lib
    for program in exchange kv_handoff handoff; do
        programs=()
        for command in "rust=$target/debug/$program" "c=$target/cxx-tests/$program-c" "c++=$target/cxx-tests/$program" \
            "python=$python bindings/python/examples/$program.py" "go=$target/go/$program"; do
            if [ -e "${command##*[= ]}" ]; then
                programs+=("$command")
            else
                echo "SKIPPED: $program with ${command%%=*}, because its program was not built"
            fi
        done
        "tests/$program.sh" "${programs[@]}" || return 1
    done
    FERRY_TRANSPORTS=tcp tests/handoff.sh "${programs[@]}"
}
# Runs both ends of the shipped ferry-bench on loopback. `tests` does the same with memory of the stand-ins' devices.
selftest() { scripts/build.sh && "$target/release/ferry-bench" selftest --json "$logs/selftest.json"; }
# Tests the Python ends of `make compare`, without the peers: ferry's library and the bare system call.
agents() {
    if ! command -v python3 >/dev/null; then
        echo "SKIPPED: python3 is not installed"
        return $SKIP
    fi
    scripts/build.sh && python3 benches/compare/peers/test_peers.py "$target/release/libferry.so"
}
# Runs with 4,096 tokens, as `make demo` does; the program is that of `cargo test`.
demo() { suite ferry-examples --test programs --no-run && "$target/debug/kv_demo"; }

"$1"
status=$?
# The CPU time of all child processes, for the table.
times >"$logs/$1.cpu"
exit $status
