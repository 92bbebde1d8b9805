#!/bin/bash
# Tests and measurements of CUDA. `leg` builds programs into a folder that can be copied to a machine with a
# GPU, where `./run.sh test`, `./run.sh tensors` (which needs torch) and `./run.sh bench` need neither network nor
# compilers. `test` (both tests) and `bench` build that folder and run it here. `standin` runs the tests and the
# bench against the stand-in for the driver; `standin-bench` runs only the bench, which is built like a test there
# and says nothing about speed. Further arguments choose cargo's packages; the default is `-p ferry`.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
leg=$target/cuda-leg

# Prints the program that cargo built last for a target. Arguments: the target's name, then those of cargo.
program() {
    local name=$1
    shift
    cargo "$@" --no-run --message-format=json-render-diagnostics |
        sed -n "s|.*\"name\":\"$name\".*\"executable\":\"\([^\"]*\)\".*|\1|p" | tail -1
}

build_standin() { tests/standin/build.sh "$target/standin"; }

build_leg() {
    local tests bench
    tests=$(program cuda test -p ferry --test cuda)
    bench=$(program cuda bench -p ferry --bench cuda)
    build_standin
    mkdir -p "$leg/standin"
    cp "$tests" "$leg/cuda-tests"
    cp "$bench" "$leg/cuda-bench"
    cp -r "$target/standin/cuda-12.4" "$target/standin/cuda-12.8" "$leg/standin"
    install -m 755 scripts/cuda-run.sh "$leg/run.sh"
    # On its own: cargo would otherwise build the library with the features of other packages.
    cargo build --release -p ferry-ffi
    rm -rf "$leg/python"
    mkdir -p "$leg/python"
    cp -r bindings/python/src/ferry bindings/python/tests/gpu.py "$leg/python"
    strip --strip-unneeded -o "$leg/python/ferry/libferry.so" "$target/release/libferry.so"
    echo "cuda: programs for a machine with a GPU are in $leg"
}

case ${1:-} in
leg) build_leg ;;
test | bench)
    build_leg
    "$leg/run.sh" "$1"
    [ "$1" = bench ] || "$leg/run.sh" tensors
    ;;
standin | standin-bench)
    packages=("${@:2}")
    [ $# -gt 1 ] || packages=(-p ferry)
    build_standin
    export FERRY_TEST_STANDIN=$PWD/$target/standin
    case $target in /*) FERRY_TEST_STANDIN=$target/standin ;; esac
    ulimit -c 0
    [ "$1" = standin-bench ] || cargo test "${packages[@]}" --test cuda
    FERRY_CUDA_LIBRARY=$FERRY_TEST_STANDIN/cuda-12.8/libcuda.so.1 cargo test "${packages[@]}" --bench cuda -- --rounds 2
    ;;
*)
    echo "usage: cuda.sh leg|test|bench, or standin|standin-bench [-p PACKAGE | --workspace]" >&2
    exit 2
    ;;
esac
