#!/bin/bash
# Installs the wheels of the peers into a virtual environment under the build folder and measures ferry beside
# them: `ferry-compare peers`, then the pool (benches/compare/peers/pool.py). Tables, figures as JSON, and a plot go to
# benches/results/. If a peer cannot be installed, the table has the reason.
#
# usage: compare.sh                    both
#        compare.sh OPTION...          the peers, with options of `ferry-compare peers`
#        compare.sh pool [OPTION...]   the pool, with options of pool.py
set -euo pipefail
cd "$(dirname "$0")/.."
parts="peers pool"
[ $# -eq 0 ] || parts=peers
if [ "${1:-}" = pool ]; then
    parts=pool
    shift
fi
target=${CARGO_TARGET_DIR:-target}
work=$target/compare
venv=$work/venv
results=${RESULTS:-benches/results}
mkdir -p "$work" "$results"

MOONCAKE=0.3.13.post1
NIXL=1.5.1

scripts/setup.sh compare || echo "compare: going on without the packages that could not be installed"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"

# Installs a peer with pip, once; keeps the reason of a failure for the table.
install() {
    local peer=$1 done=$work/$1.installed failed=$work/$1.failed reason
    shift
    [ "$(cat "$done" 2>/dev/null)" = "$*" ] && return
    rm -f "$done" "$failed"
    echo "compare: installing $peer"
    if timeout 900 "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" >"$work/$peer.log" 2>&1; then
        echo "$*" >"$done"
    else
        reason=$(grep -v '^ *$' "$work/$peer.log" | tail -1 || true)
        echo "${reason:-pip gave no reason, or none within 15 minutes}" >"$failed"
        echo "compare: $peer does not install: $(cat "$failed")"
    fi
}
install tools numpy matplotlib
install mooncake "mooncake-transfer-engine-non-cuda==$MOONCAKE"
install nixl --no-deps "nixl==$NIXL" "nixl-cu12==$NIXL"
# ferry's plugin for NIXL, with the library that it needs.
FERRY_LIBRARY=$target/release/libferry.so bindings/nixl/build.sh "$work/plugin"
cp "$target/release/libferry.so" "$work/plugin/libferry.so.0"

# Runs in its own network namespace: without other traffic, and with one congestion control for all peers that
# don't choose their own. bbr, a common default, costs the peers up to half of their speed over loopback, and
# the comparison must show them at their best. Nothing changes outside the namespace.
quiet() { "$@" >/dev/null 2>&1; }
inside='ip link set lo up && echo reno >/proc/sys/net/ipv4/tcp_congestion_control && exec "$@"'
namespace=()
if quiet unshare --net sh -c "$inside" sh true; then
    namespace=(unshare --net sh -c "$inside" sh)
elif quiet unshare --map-root-user --net sh -c "$inside" sh true; then
    namespace=(unshare --map-root-user --net sh -c "$inside" sh)
else
    echo "compare: this user cannot make a network namespace: the peers use the host's congestion control"
fi

: >"$work/agents.log"
for part in $parts; do
    case $part in
    peers)
        "${namespace[@]}" "$target/release/ferry-compare" peers \
            --python "$venv/bin/python" --scripts benches/compare/peers --library "$target/release/libferry.so" \
            --plugins "$(cd "$work/plugin" && pwd)" \
            --install "$work" --log "$work/agents.log" --json "$results/compare.json" "$@" | tee "$results/compare.md"
        "$venv/bin/python" benches/compare/peers/plot.py "$results/compare.json" "$results/compare"
        ;;
    pool)
        "${namespace[@]}" env PYTHONPATH=bindings/python/src FERRY_LIBRARY="$target/release/libferry.so" \
            "$venv/bin/python" benches/compare/peers/pool.py --program "$target/release/ferry-pool" \
            --json "$results/pool.json" "$@" 2>>"$work/agents.log" | tee "$results/pool.md"
        ;;
    esac
done
