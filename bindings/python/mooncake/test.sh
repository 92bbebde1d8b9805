#!/bin/bash
# Tests ferry-mooncake in the virtual environment that ../test.sh made. If Mooncake's own wheel can be
# installed, the script runs the same cases against it and prints the differences; they are no failure.
# Device memory is tested against stand-ins for the CUDA driver and AscendCL, which need a C++ compiler.
set -euo pipefail
cd "$(dirname "$0")/../../.."
scripts/build.sh
work=$(cd "${CARGO_TARGET_DIR:-target}/python" && pwd)
tests/standin/build.sh "$work/../standin"
FERRY_TEST_STANDIN=$(realpath "$work/../standin")
export FERRY_TEST_STANDIN
cd bindings/python/mooncake
python=$work/venv/bin/python
[ -x "$python" ] || { echo "run bindings/python/test.sh first"; exit 1; }

rm -rf build
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall .
"$python" -m mypy src benches
MOONCAKE_C_LIBRARY=$work/../release/libferry_mooncake.so "$python" -m pytest
"$python" benches/overhead.py 2

# Mooncake's wheel links libibverbs but does not contain it.
theirs=$work/mooncake
if [ ! -x "$theirs/bin/python" ]; then python3 -m venv "$theirs"; fi
if ! "$theirs/bin/python" -m pip install --quiet --disable-pip-version-check numpy==2.4.6 \
    mooncake-transfer-engine-non-cuda==0.3.13.post1 ||
    ! "$theirs/bin/python" -c 'import mooncake.engine' 2>"$work/mooncake.log"; then
    echo "SKIPPED: Mooncake's own wheel can't be used here: $(tail -1 "$work/mooncake.log" 2>/dev/null)"
    exit
fi
echo "Mooncake's own wheel:"
for case in $("$python" -c 'import sys; sys.path.insert(0, "tests"); import conformance; print(*(case.__name__ for case in conformance.CASES))'); do
    timeout -k 2 30 "$theirs/bin/python" tests/conformance.py "$case" 2>/dev/null || echo "$case differs (status $?)"
done
