# Builds the nodes of a test (tests/soak, tests/chaos) in the languages of ferry's bindings. The scripts source this file:
#
#   build_nodes FOLDER OUT [FILE.c...]
#
# installs ferry below OUT, builds FOLDER's nodes with the FILEs against it, and leaves in `programs` what runs each,
# "c=PROGRAM", "c++=...", "python=...", "go=...", with the environment that they need. Go's node is left out, and that is
# told, if Go is missing or too old. Downloads nothing but crates.
build_nodes() {
    local folder=$1 out=$2 wanted found file warnings=(-O2 -Wall -Wextra -Wpedantic -Werror) objects=() flags
    shift 2
    : "${CXX:=g++}" "${CC:=gcc}"
    mkdir -p "$out"
    make install PREFIX="$out/prefix" >"$out/install.log" 2>&1 || { tail -20 "$out/install.log"; return 1; }
    export PKG_CONFIG_PATH=$out/prefix/lib/pkgconfig LD_LIBRARY_PATH=$out/prefix/lib
    read -ra flags <<<"$(pkg-config --cflags --libs ferry) -pthread"
    for file in "$@"; do
        objects+=("$out/$(basename "$file" .c).o")
        "$CC" -std=c11 -fPIC "${warnings[@]}" -c "$file" -o "${objects[-1]}"
    done
    "$CC" -std=c11 "${warnings[@]}" "$folder/node.c" "${objects[@]}" "${flags[@]}" -o "$out/node-c"
    "$CXX" -std=c++17 "${warnings[@]}" "$folder/node.cpp" "${objects[@]}" "${flags[@]}" -o "$out/node-cxx"
    programs=("c=$out/node-c" "c++=$out/node-cxx" "python=python3 $PWD/$folder/node.py")
    if [ ${#objects[@]} -gt 0 ]; then
        "$CC" -shared "${objects[@]}" -o "$out/shared.so"
        programs[2]+=" $out/shared.so"
    fi
    export FERRY_LIBRARY=$out/prefix/lib/libferry.so PYTHONPATH=$PWD/bindings/python/src
    wanted=$(sed -n 's/^go //p' bindings/go/go.mod)
    found=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null || true)
    found=${found#go}
    if [ -n "$found" ] && [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -1)" = "$wanted" ]; then
        (cd "$folder/go" && GOTOOLCHAIN=local GOPROXY=off GOFLAGS='' GOWORK=off go build -o "$out/node-go" .)
        programs+=("go=$out/node-go")
    else
        echo "SKIPPED: the node in Go, because Go is ${found:-not installed} and the module needs $wanted"
    fi
}
