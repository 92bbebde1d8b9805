#!/bin/bash
# The API references and the guide as HTML: rustdoc, Doxygen (C and C++), pdoc (Python), `go doc`, and an index.html
# that leads to them. Argument: the folder to write, which is made anew.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
out=${1:-$target/docs}
rm -rf "$out"
mkdir -p "$out/go"
out=$(cd "$out" && pwd)

RUSTDOCFLAGS="-D warnings" cargo doc -p ferry --no-deps
cp -r "$target/doc" "$out/rust"

FERRY_DOCS=$out doxygen docs/Doxyfile

# pdoc imports what it documents.
scripts/build.sh
venv=$target/docs-venv
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r bindings/python/requirements-docs.txt
FERRY_LIBRARY=$(realpath "$target/release/libferry.so") PYTHONPATH=bindings/python/src:bindings/python/mooncake/src \
    "$venv/bin/python" -m pdoc --output-directory "$out/python" ferry mooncake.engine

if command -v go >/dev/null; then
    (cd bindings/go && GOTOOLCHAIN=local GOPROXY=off go doc -all .) >"$out/go/ferry.txt"
else
    echo "SKIPPED: the Go reference; there is no go"
fi

"$venv/bin/python" docs/guide.py "$out"
echo "written: $out/index.html"
