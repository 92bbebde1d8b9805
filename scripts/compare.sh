#!/bin/bash
# Installs the peers' wheels into a virtual environment under the build folder and measures ferry beside
# them: the table, its figures as JSON, and a plot go to benches/results/. Options are those of
# `ferry-bench peers`. A peer that doesn't install is in the table with the reason.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
work=$target/compare
venv=$work/venv
results=${RESULTS:-benches/results}
mkdir -p "$work" "$results"

MOONCAKE=0.3.13.post1
NIXL=1.5.1

scripts/setup.sh compare || echo "compare: going on without what could not be installed"
[ -x "$venv/bin/pip" ] || python3 -m venv "$venv"

# What pip is asked for, once; why it failed is left for the table.
install() {
    local peer=$1 done=$work/$1.installed failed=$work/$1.failed reason
    shift
    [ "$(cat "$done" 2>/dev/null)" = "$*" ] && return
    rm -f "$done" "$failed"
    echo "compare: installing $peer"
    if timeout 900 "$venv/bin/pip" install --quiet --disable-pip-version-check "$@" >"$work/$peer.log" 2>&1; then
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

# A network namespace of its own: nobody else's traffic, and one congestion control for those who don't
# choose theirs. bbr, a common default, costs the peers up to half of their speed over loopback, and the
# comparison is to be with their best. Nothing outside it changes.
quiet() { "$@" >/dev/null 2>&1; }
inside='ip link set lo up && echo reno >/proc/sys/net/ipv4/tcp_congestion_control && exec "$@"'
namespace=()
if quiet unshare --net sh -c "$inside" sh true; then
    namespace=(unshare --net sh -c "$inside" sh)
elif quiet unshare --map-root-user --net sh -c "$inside" sh true; then
    namespace=(unshare --map-root-user --net sh -c "$inside" sh)
else
    echo "compare: no network namespace of its own: the peers have the host's congestion control"
fi

: >"$work/agents.log"
"${namespace[@]}" "$target/release/ferry-bench" peers \
    --python "$venv/bin/python" --scripts benches/peers --library "$target/release/libferry.so" \
    --install "$work" --log "$work/agents.log" --json "$results/compare.json" "$@" | tee "$results/compare.md"
"$venv/bin/python" benches/peers/plot.py "$results/compare.json" "$results/compare"
