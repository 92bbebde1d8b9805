#!/bin/bash
# Installs into a folder, moves the folder, and builds the examples from there as a user would
# (tests/installed/programs.sh), then the first programs of the pages (tests/installed/readme.sh). Checks before that
# what building asks for (tests/installed/setup.sh) and what a moved target folder needs (tests/installed/moved.sh), and
# that nothing installed has debug information (tests/installed/stripped.sh).
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tests/installed/setup.sh
tests/installed/moved.sh
make install PREFIX=/opt/ferry DESTDIR="$work/stage"
if find "$work/stage" -name '*.debug' | grep .; then echo "make install has installed debug information"; exit 1; fi
make install-debug install-nixl PREFIX=/opt/ferry DESTDIR="$work/stage"
grep -q '^prefix=/opt/ferry$' "$work/stage/opt/ferry/lib/pkgconfig/ferry.pc"
mv "$work/stage/opt/ferry" "$work/moved"
tests/installed/stripped.sh "$work/moved" "$work/moved/lib"
tests/installed/programs.sh "$work/moved" "$work/moved/lib" "$work/build"
tests/installed/readme.sh "$work/moved" "$work/build"
"$work/moved/bin/ferry-bench" --version
"$work/moved/bin/ferry-pool" --version
# The plugin for NIXL finds the library that was installed with it, can be loaded, and is stripped.
plugin=$work/moved/lib/ferry/nixl/libplugin_FERRY.so
if readelf -SW "$plugin" | grep '\.symtab'; then echo "the plugin has symbols"; exit 1; fi
env -u LD_LIBRARY_PATH python3 -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1]).nixl_plugin_init' "$plugin"
found=$(env -u LD_LIBRARY_PATH ldd "$plugin" | sed -n 's/.*libferry.so.0 => \(.*\) (.*/\1/p')
[ "$(realpath "$found")" = "$(realpath "$work/moved/lib/libferry.so")" ] || { echo "the plugin finds $found"; exit 1; }
