#!/bin/bash
# Measures what the bindings add to a call, against C: a synchronous WRITE of 64 bytes to an engine of the
# same process, and the submission of 100,000 pairs of blocks of which nothing merges. Each benchmark
# alternates between C and its own language in one process; this script alternates between the bindings.
# Prints medians over the rounds. At the end, what mooncake.engine adds to ferry's own Python.
#
# usage: overhead.sh [ROUNDS]    default 5, about 10 seconds each
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5}
[[ $rounds =~ ^[1-9][0-9]*$ ]] || { echo "overhead.sh: ROUNDS must be a number above 0, not \"$rounds\"" >&2; exit 2; }
mkdir -p "${CARGO_TARGET_DIR:-target}/overhead"
out=$(cd "${CARGO_TARGET_DIR:-target}/overhead" && pwd)
prefix=$out/prefix

scripts/setup.sh python
make install PREFIX="$prefix" >"$out/log" 2>&1 || { tail -50 "$out/log"; exit 1; }
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
read -ra flags <<<"$(pkg-config --cflags --libs ferry)"
"${CXX:-g++}" -std=c++17 -O2 bindings/cxx/bench/overhead.cpp "${flags[@]}" -pthread -o "$out/cxx"
[ -x "$out/venv/bin/python" ] || python3 -m venv "$out/venv"
"$out/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    -c bindings/python/requirements-test.txt numpy
export PYTHONPATH=$PWD/bindings/python/src FERRY_LIBRARY=$prefix/lib/libferry.so PYTHONDONTWRITEBYTECODE=1

cxx() { "$out/cxx" 31 2000; }
python() { "$out/venv/bin/python" bindings/python/benches/overhead.py 31; }
golang() { "$out/go" -test.run '^$' -test.bench OverC -test.benchtime 1s; }
benchmarks=(cxx python golang)
if command -v go >/dev/null; then
    (cd bindings/go && GOTOOLCHAIN=local GOPROXY=off GOFLAGS= GOWORK=off go test -c -o "$out/go" .)
else
    echo "SKIPPED: Go, which is not installed"
    benchmarks=(cxx python)
fi

: >"$out/rows"
for ((round = 0; round < rounds; round++)); do
    for ((nth = 0; nth < ${#benchmarks[@]}; nth++)); do
        "${benchmarks[(round + nth) % ${#benchmarks[@]}]}" | grep '^overhead' >>"$out/rows"
    done
done

echo "$(lscpu | sed -n 's/^Model name: *//p'), $(nproc) CPUs, Linux $(uname -r), load $(cut -d' ' -f1 /proc/loadavg)," \
    "nice $(nice), medians of $rounds rounds"
"$out/venv/bin/python" - "$out/rows" <<'END'
import statistics, sys

HEADS = {"write": ("a WRITE of 64 B, ns", 1, 0), "submit_blocks": ("submit_blocks of 100,000 pairs, ms", 1e6, 2)}
rows = {}
for line in open(sys.argv[1]):
    _, what, side, *numbers = line.rstrip("\n").split("\t")
    rows.setdefault((what, side), []).append([float(number) for number in numbers])
for what, (head, unit, digits) in HEADS.items():
    print(f"\n| {head} | C | binding | difference | ratio |\n|---|---|---|---|---|")
    for (found, side), taken in rows.items():
        if found == what:
            c, own, more, ratio = map(statistics.median, zip(*taken))
            print(f"| {side} | {c / unit:.{digits}f} | {own / unit:.{digits}f} | {more / unit:+.{digits}f} | {ratio:.2f} |")
END

echo
echo "mooncake.engine beside ferry's own Python: medians, difference, ratio and its quartiles"
PYTHONPATH=$PYTHONPATH:$PWD/bindings/python/mooncake/src \
    "$out/venv/bin/python" bindings/python/mooncake/benches/overhead.py $((3 * rounds))
