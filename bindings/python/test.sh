#!/bin/bash
# Installs the package into its own virtual environment and tests it there: format, types, tests, the tag
# and size of the wheel, the import time. FERRY_LIBRARY names a library that is already built. Device memory
# is tested against stand-ins for the CUDA driver and AscendCL, which need a C++ compiler.
set -euo pipefail
cd "$(dirname "$0")/../.."
mkdir -p "${CARGO_TARGET_DIR:-target}/python"
work=$(cd "${CARGO_TARGET_DIR:-target}/python" && pwd)
here=bindings/python
wheel_bytes_max=5000000
import_starts_max=3 # starts of the interpreter: a bound for a machine of any speed

# The build of the wheel uses the same versions.
export PIP_CONSTRAINT=$PWD/$here/requirements-test.txt
[ -z "${FERRY_LIBRARY:-}" ] || FERRY_LIBRARY=$(realpath "$FERRY_LIBRARY")

rm -rf "$work/venv" "$work/wheel" "$here/build"
python3 -m venv "$work/venv"
python=$work/venv/bin/python
"$python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements-test.txt"
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$work/wheel" "./$here"
wheel=$(echo "$work"/wheel/ferry-*.whl)
"$python" -m pip install --quiet --disable-pip-version-check "$wheel"

tests/installed/wheel.sh "$python"
tests/standin/build.sh "$work/../standin"
FERRY_TEST_STANDIN=$(realpath "$work/../standin")
export FERRY_TEST_STANDIN

# From here on the installed package is used, with its own library.
unset FERRY_LIBRARY
cd "$here"
"$python" -m ruff format --check --config pyproject.toml . ../../examples/disagg
"$python" -m ruff check --config pyproject.toml . ../../examples/disagg
"$python" -m mypy src/ferry examples tests benches
"$python" -m pytest
"$python" benches/overhead.py 1

# The tag says that the wheel needs this glibc and no other system library: neither verbs nor CUDA.
tag=${wheel##*-}
tag=${tag%.whl}
found=$("$python" -m auditwheel show "$wheel" | tr '\n' ' ')
[[ $found == *"the following platform tag: \"$tag\""* ]] || { echo "the wheel is tagged $tag, but $found"; exit 1; }

bytes=$(stat -c %s "$wheel")
echo "wheel: ${wheel##*/}, $bytes bytes"
if [ "$bytes" -ge $wheel_bytes_max ]; then
    echo "the wheel has $bytes bytes, $wheel_bytes_max or more"
    exit 1
fi
"$python" - $import_starts_max <<'END'
import subprocess, sys, time

def start_ms():
    """Returns the time of an interpreter that does nothing."""
    start = time.perf_counter()
    subprocess.check_call([sys.executable, "-c", "pass"])
    return 1000 * (time.perf_counter() - start)

def import_ms():
    """Returns the time of one import in a new interpreter, without the interpreter's start."""
    program = "import time; a = time.perf_counter(); import ferry; print(1000 * (time.perf_counter() - a))"
    return float(subprocess.check_output([sys.executable, "-c", program]))

start, best = map(min, zip(*((start_ms(), import_ms()) for _ in range(9))))
print(f"import: {best:.1f} ms, and {start:.1f} ms for the interpreter")
if best >= float(sys.argv[1]) * start:
    sys.exit(f"importing ferry takes {sys.argv[1]} times as long as starting the interpreter, or more")
END
