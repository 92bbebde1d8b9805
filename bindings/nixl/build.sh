#!/bin/bash
# Builds libplugin_FERRY.so, the plugin for NIXL, over libferry.so. Needs a C++17 compiler and nothing of NIXL.
#
# usage: build.sh [FOLDER]    default target/nixl
#
# FERRY_LIBRARY=/path/to/libferry.so links with that library; otherwise scripts/build.sh builds one. The plugin finds
# libferry.so.0 at run time beside itself, two folders up (`make install`), or where the loader looks.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
case $target in /*) ;; *) target=$root/$target ;; esac
folder=${1:-$target/nixl}
mkdir -p "$folder"
library=${FERRY_LIBRARY:-}
if [ -z "$library" ]; then
    "$root/scripts/build.sh"
    library=$target/release/libferry.so
fi
: "${CXX:=g++}"
command -v "$CXX" >/dev/null || { echo "the plugin for NIXL needs a C++ compiler: install g++, or set CXX" >&2; exit 1; }
read -ra flags <<<"${CXXFLAGS:--O2}"
"$CXX" -std=c++17 -Wall -Wextra "${flags[@]}" -fPIC -fvisibility=hidden -shared -I"$root/include" \
    "$root"/bindings/nixl/src/*.cpp "$library" -pthread -Wl,--no-undefined -Wl,-soname,libplugin_FERRY.so \
    -Wl,-rpath,'$ORIGIN:$ORIGIN/../..' -o "$folder/libplugin_FERRY.so"
