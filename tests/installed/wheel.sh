#!/bin/bash
# Which library the Python package gets where no cargo is: the one that FERRY_LIBRARY names, that of target/release in
# a checkout, that of pkg-config outside of one, and none whose version is another. Stand-ins for the libraries tell
# them apart. setup.py builds no wheel here, only the package's folder.
#
# usage: wheel.sh PYTHON   PYTHON has setuptools
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$(command -v "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bin" "$work/checkout/bindings" "$work/checkout/ffi" "$work/checkout/target/release" "$work/installed/lib"
for tool in pkg-config strip; do ln -s "$(command -v $tool)" "$work/bin/$tool"; done

# Three programs of this machine, stripped, in place of libraries.
stand_in() { strip --strip-unneeded -o "$2" "$(readlink -f "$(type -P "$1")")"; }
stand_in true "$work/named.so"
stand_in cat "$work/checkout/target/release/libferry.so"
stand_in ls "$work/installed/lib/libferry.so"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -1)
pc() { printf 'libdir=%s\nName: ferry\nDescription: a stand-in\nVersion: %s\n' "$work/installed/lib" "$1" >"$work/installed/ferry.pc"; }
pc "$version"
cp "$root/Cargo.toml" "$work/checkout"
cp "$root/ffi/Cargo.toml" "$work/checkout/ffi"
cp -r "$root/bindings/python" "$work/checkout/bindings/python"
rm -rf "$work/checkout/bindings/python/build"
# The files of an unpacked source archive.
mkdir "$work/archive"
cp -r "$work/checkout/bindings/python" "$work/archive/ferry"
printf 'Metadata-Version: 2.4\nName: ferry\nVersion: %s\n' "$version" >"$work/archive/ferry/PKG-INFO"

package() { # the folder of setup.py, and variables
    rm -rf "$1/build"
    (cd "$1" && env -i HOME="$HOME" PATH="$work/bin" PKG_CONFIG_PATH="$work/installed" "${@:2}" "$python" setup.py --quiet build_py --build-lib build/lib)
}
gets() { # the folder of setup.py, the library that the package must have, and variables
    package "$1" "${@:3}" >/dev/null
    cmp "$1/build/lib/ferry/libferry.so" "$2" || { echo "the package of $1 has another library than $2"; exit 1; }
}
checkout=$work/checkout/bindings/python archive=$work/archive/ferry
gets "$checkout" "$work/named.so" FERRY_LIBRARY="$work/named.so"
gets "$checkout" "$work/checkout/target/release/libferry.so"
mv "$work/checkout/target" "$work/elsewhere"
gets "$checkout" "$work/elsewhere/release/libferry.so" CARGO_TARGET_DIR="$work/elsewhere"
gets "$checkout" "$work/installed/lib/libferry.so"
gets "$archive" "$work/named.so" FERRY_LIBRARY="$work/named.so"
gets "$archive" "$work/installed/lib/libferry.so"
pc 99.0.0
for folder in "$checkout" "$archive"; do
    if package "$folder" 2>"$work/said"; then echo "the package of $folder has a library of another version"; exit 1; fi
    grep -q 'set FERRY_LIBRARY to a libferry.so of this version' "$work/said" || { cat "$work/said"; exit 1; }
done

# As under pip, which hides what a build prints: the terminal is told what goes on. cargo is a stand-in that has failed.
printf '#!/bin/sh\nexit 1\n' >"$work/bin/cargo"
chmod +x "$work/bin/cargo"
mkdir "$work/checkout/scripts"
cp "$root/scripts/moved.sh" "$work/checkout/scripts"
ln -s "$(command -v bash)" "$(command -v dirname)" "$(command -v env)" "$work/bin"
export -f package
export work python checkout
"$python" -c 'import pty; pty.spawn(["bash", "-c", "package $checkout >/dev/null 2>&1"])' </dev/null >"$work/said"
grep -q 'ferry: cargo builds libferry.so' "$work/said" || { echo "the terminal was not told that cargo builds"; exit 1; }
echo "the Python package takes a library that is already built"
