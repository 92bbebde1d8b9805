#!/bin/bash
# Tests directories in etcd, in a build of libferry that has them: the crate's tests start, stop and cut off servers of
# etcd; the C, C++, Python and Go suites of directories run over the library.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
case $target in /*) ;; *) target=$PWD/$target ;; esac
export ETCD=1
scripts/setup.sh tests
scripts/setup.sh python
"${CARGO:-cargo}" clippy -p ferry-directory --features etcd --all-targets -- -D warnings
"${CARGO:-cargo}" test -p ferry-directory --features etcd

out=$target/etcd
mkdir -p "$out"
"${CARGO:-cargo}" build -p ferry-ffi --features etcd --target-dir "$out"
ln -sf "$out/debug/libferry.so" "$out/libferry.so.0"
cc -std=c99 -g -Iinclude -Itests/c -o "$out/tests" tests/c/*.c "$out/libferry.so.0" -Wl,-rpath,"$out" -pthread
export FERRY_TEST_HAS_ETCD=1
FERRY_TRANSPORTS=tcp "$out/tests" directory
c++ -std=c++17 -g -Iinclude -o "$out/tests-cxx" bindings/cxx/tests/directory.cpp "$out/libferry.so.0" -Wl,-rpath,"$out" \
    -pthread -lgtest -lgtest_main
FERRY_TRANSPORTS=tcp "$out/tests-cxx" --gtest_brief=1
if command -v go >/dev/null; then
    ln -sf libferry.so.0 "$out/libferry.so"
    printf 'Name: ferry\nDescription: ferry\nVersion: 0\nLibs: -L%s -lferry\nCflags: -I%s\n' "$out" "$PWD/include" >"$out/ferry.pc"
    (
        cd bindings/go
        export GOTOOLCHAIN=local GOPROXY=off GOFLAGS= GOWORK=off PKG_CONFIG_PATH=$out LD_LIBRARY_PATH=$out
        go test -count=1 -race -timeout 300s -run 'Director|Etcd|Registration' .
    )
else
    echo "SKIPPED: directories of Go, because go is not installed"
fi
[ -x "$out/venv/bin/python" ] || python3 -m venv "$out/venv"
"$out/venv/bin/python" -m pip install --quiet --disable-pip-version-check -r bindings/python/requirements-test.txt
FERRY_LIBRARY=$out/libferry.so.0 PYTHONPATH=bindings/python/src \
    "$out/venv/bin/python" -m pytest -q -p no:cacheprovider bindings/python/tests/test_directory.py
echo "etcd: passed"
