#!/bin/bash
# Tests the plugin for NIXL: under a stand-in for NIXL's core, with two sanitizers; then in the unmodified wheel, which
# is installed into a virtual environment (67 MB). For the record, the test of releases also runs over the wheel's own
# UCX.
#
# usage: test.sh [VERSION]    of nixl-cu12; default 1.5.1
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
target=${CARGO_TARGET_DIR:-$root/target}
case $target in /*) ;; *) target=$root/$target ;; esac
version=${1:-1.5.1}
here=bindings/nixl
work=$target/nixl-tests
[ -n "${FERRY_LIBRARY:-}" ] || scripts/build.sh
export FERRY_LIBRARY=${FERRY_LIBRARY:-$target/release/libferry.so}

"$here/tests/host/run.sh" address
"$here/tests/host/run.sh" thread
"$here/tests/host/run.sh" none --gtest_filter='Release*'

# Without its dependencies: the wheel needs torch only for torch's tensors.
venv=$work/venv-$version
python=$venv/bin/python
[ -x "$python" ] || python3 -m venv "$venv"
quiet=(--quiet --disable-pip-version-check)
"$python" -m pip install "${quiet[@]}" --no-deps "nixl-cu12==$version"
"$python" -m pip install "${quiet[@]}" -c bindings/python/requirements-test.txt numpy pytest ruff
rm -rf "$work/wheels" "$here/python/build"
"$python" -m pip wheel "${quiet[@]}" --no-deps --wheel-dir "$work/wheels" "./$here/python" ./bindings/python
"$python" -m pip install "${quiet[@]}" --force-reinstall --no-deps "$work"/wheels/*.whl
rm -rf "$here/python/build" "$here"/python/src/*.egg-info
"$python" -m ruff format --config bindings/python/pyproject.toml --check "$here" tests/inference
"$python" -m ruff check --config bindings/python/pyproject.toml "$here" tests/inference
"$python" -m pytest -q -p no:cacheprovider "$here/python/tests"

plugin=$work/none
export PYTHONDONTWRITEBYTECODE=1
NIXL_PLUGIN_DIR=$plugin "$python" -m pytest -q -p no:cacheprovider "$here/tests"
# The agent of `make compare` imports NIXL by the package `nixl`, which could bring another wheel: no dependencies.
"$python" -m pip install "${quiet[@]}" --no-deps "nixl==$version"
"$python" benches/compare/peers/test_peers.py "$FERRY_LIBRARY" "$plugin"
UCX_TLS=tcp NIXL_TEST_BACKEND=UCX "$python" -m pytest -q -p no:cacheprovider "$here/tests" -k a_release_returns ||
    echo "UCX's process ended with status $?"

# One round of the measurement, to check that it runs.
"${CXX:-g++}" -std=c++17 -O2 -Wall -Wextra -Werror -Iinclude "$here/tests/host/overhead.cpp" "$plugin/libcore.so" \
    "$plugin/libferry.so.0" -Wl,-rpath,"$plugin" -pthread -o "$work/overhead"
"$work/overhead" "$plugin/libplugin_FERRY.so" 1
