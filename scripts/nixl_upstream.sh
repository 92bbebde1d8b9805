#!/bin/bash
# Runs NIXL's own tests and examples over the plugin, from a checkout of NIXL's repository: its test of the Python
# interface with the backend FERRY; with ferry in UCX's place its test of the bindings, and its examples of two peers
# and of partial metadata. Installs the wheel, torch and pytest into a virtual environment.
#
# usage: nixl_upstream.sh [PATH]    PATH is the checkout; without it ferry's own suite of the same behaviours runs
set -euo pipefail
path=${1:+$(cd "$1" && pwd)}
cd "$(dirname "$0")/.."
if [ -z "$path" ]; then
    echo "no checkout of NIXL is named: NIXL's own tests do not run; ferry's suite of the same behaviours does"
    exec bindings/nixl/test.sh
fi
target=${CARGO_TARGET_DIR:-$PWD/target}
case $target in /*) ;; *) target=$PWD/$target ;; esac
work=$target/nixl-upstream
python=$work/venv/bin/python
[ -x "$python" ] || python3 -m venv "$work/venv"
pip() { "$python" -m pip install --quiet --disable-pip-version-check "$@"; }
pip numpy pytest tabulate torch
pip --no-deps nixl==1.5.1 nixl-cu12==1.5.1 nixl-cu13==1.5.1

[ -n "${FERRY_LIBRARY:-}" ] || scripts/build.sh
library=${FERRY_LIBRARY:-$target/release/libferry.so}
FERRY_LIBRARY=$library bindings/nixl/build.sh "$work/plugin"
mkdir -p "$work/alias"
cp "$library" "$work/plugin/libferry.so.0"
cp "$library" "$work/alias/libferry.so.0"
cp "$work/plugin/libplugin_FERRY.so" "$work/alias/libplugin_UCX.so"
export PYTHONDONTWRITEBYTECODE=1

cd "$path/test/python"
NIXL_PLUGIN_DIR=$work/plugin timeout 600 "$python" -m pytest -q -p no:cacheprovider test_nixl_api.py --backend FERRY
export NIXL_PLUGIN_DIR=$work/alias
timeout 600 "$python" -m pytest -q -p no:cacheprovider test_nixl_bindings.py

cd "$path/examples/python"
port=$((20000 + RANDOM % 20000))
for example in basic_two_peers expanded_two_peers; do
    port=$((port + 1))
    timeout 120 "$python" $example.py --mode target --ip 127.0.0.1 --port $port >"$work/$example.log" 2>&1 &
    peer=$!
    # The target listens when it has made its agent.
    for ((i = 0; i < 600; i++)); do grep -q 'Running test' "$work/$example.log" && break || sleep 0.1; done
    timeout 120 "$python" $example.py --mode initiator --ip 127.0.0.1 --port $port 2>&1 | tail -2
    wait "$peer" || { tail -20 "$work/$example.log"; exit 1; }
    echo "ok      $example"
done
NIXL_ETCD_ENDPOINTS=none timeout 120 "$python" partial_md_example.py 2>&1 | tail -1
echo "ok      partial_md_example"
