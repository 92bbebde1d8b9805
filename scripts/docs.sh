#!/bin/bash
# Builds the pages of this repository as one site with search (mdBook), with the API references that it links:
# rustdoc, Doxygen (C and C++), pdoc (Python), docs/reference.go. Argument: the output folder, which is created anew.
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
out=${1:-$target/docs}
rm -rf "$out"
mkdir -p "$out/go"
out=$(cd "$out" && pwd)

RUSTDOCFLAGS="-D warnings" cargo doc -p ferry -p ferry-kv --no-deps
cp -r "$target/doc" "$out/rust"

FERRY_DOCS=$out doxygen docs/Doxyfile

# pdoc imports the module that it documents.
scripts/build.sh
venv=$target/docs-venv
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r bindings/python/requirements-docs.txt
FERRY_LIBRARY=$(realpath "$target/release/libferry.so") PYTHONPATH=bindings/python/src:bindings/python/mooncake/src \
    "$venv/bin/python" docs/reference.py "$out/python"

if command -v go >/dev/null; then
    for package in ferry ferry/kv; do
        (cd bindings/go && GOTOOLCHAIN=local GOPROXY=off go run ../../docs/reference.go ".${package#ferry}" "$package" "$out/go")
    done
else
    echo "SKIPPED: the Go reference, because go is not installed"
fi

# The same version everywhere, built once per target folder, unoptimised: it has 3 s of work. FERRY_MDBOOK names an
# installed mdBook.
mdbook_version=0.5.4
mdbook=${FERRY_MDBOOK:-$target/mdbook-$mdbook_version/bin/mdbook}
[ -x "$mdbook" ] || CARGO_TARGET_DIR=$target/mdbook-build cargo install mdbook --version "=$mdbook_version" --locked --quiet --debug \
    --no-default-features --features search --root "$target/mdbook-$mdbook_version"
rm -rf "$target/mdbook-build"
python3 docs/book.py "$mdbook" "$out"
rm -rf "$out"/xml "$out"/{go,python}/*.tsv
echo "written: $out/index.html"
