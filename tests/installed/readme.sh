#!/bin/bash
# Builds the first programs of the pages, by the commands there, each in its own folder: the program of
# bindings/cxx/README.md, and the pairs of target and initiator in C, C++, Python, Go and Rust. Then every target runs
# with every initiator. C and C++ take an installed ferry, Python and Go its library, Rust the crate of this checkout.
#
# usage: readme.sh PREFIX WORK
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
prefix=$1 work=$(cd "$2" && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
case $target in /*) ;; *) target=$root/$target ;; esac
block() { # language and words behind it, page, and which: the n-th block that opens with exactly these
    awk -v fence="\`\`\`$1" -v wanted="${3:-1}" '/^```/ { if (on) exit; on = $0 == fence && ++found == wanted; next } on' "$2"
}
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig PYTHONDONTWRITEBYTECODE=1
unset LD_LIBRARY_PATH
languages=(c c++ python)
declare -A targets initiators
read -ra flags <<<"$(pkg-config --define-variable=prefix="$prefix" --cflags --libs ferry) -Wl,-rpath,$prefix/lib"

echo "== README.md and ffi/README.md, in C"
mkdir -p "$work/readme-c" "$work/readme-cxx" "$work/readme-python"
cd "$work/readme-c"
block c "$root/ffi/README.md" >target.c
block c "$root/README.md" >initiator.c
for program in target initiator; do
    cc -std=c99 -Wall -Wextra -Wpedantic -Werror $program.c "${flags[@]}" -o $program
done
targets[c]=$PWD/target initiators[c]=$PWD/initiator
# What is wrong is said, also without a call that failed.
if ./initiator 2>said; then exit 1; fi
grep -q '^usage: ' said
if ./initiator 127.0.0.1:1 2>said; then exit 1; fi
grep -q '^UNREACHABLE: 127.0.0.1:1: ' said

echo "== docs/kv.md"
for number in 1 2; do
    block c "$root/docs/kv.md" $number >kv$number.c
    cc -std=c99 -Wall -Wextra -Wpedantic -Werror kv$number.c "${flags[@]}" -o kv$number
done
[ "$(./kv2 | tail -n 1)" = 7 ]
# Both workers, as a person runs them: once to the end, and once with the prefill worker killed while it computes.
for dies in no yes; do
    rm -f ids && mkfifo ids
    ./kv1 <ids >prefill.out.$dies 2>&1 &
    prefill=$!
    exec 9>ids
    address=
    for _ in {1..300}; do
        address=$(sed -n 's/^ADDRESS //p' prefill.out.$dies)
        if [ -n "$address" ]; then break; fi
        sleep 0.1
    done
    ./kv1 "$address" 2>&1 | while read -r line; do
        if [ ! -e decode.$dies ]; then echo "$line" >&9; fi # the id
        echo "$line" >>decode.$dies
        if [ "$line $dies" = "LAYERS 3 yes" ]; then kill -9 "$prefill"; fi
    done
    exec 9>&-
    wait "$prefill" && died=no || died=yes
    [ $died = $dies ] || { cat prefill.out.$dies decode.$dies; exit 1; }
done
[ "$(tail -n 1 decode.no)" = 31 ] && grep -q '^SENT: ' prefill.out.no
grep -q '^PEER_LOST: .*, 0 tokens are valid$' decode.yes

echo "== docs/pool.md"
block c "$root/docs/pool.md" >pool.c
cc -std=c99 -Wall -Wextra -Wpedantic -Werror pool.c "${flags[@]}" -o pool
exec 8< <(exec ./pool)
lender=$!
read -r address <&8
[ "$(./pool "$address")" = "$(echo "0 of 4 chunks are in the pool"; for at in 0 1 2 3; do echo "chunk $at: OK, its last byte is $at"; done)" ]
[ "$(./pool "$address" | head -n 1)" = "4 of 4 chunks are in the pool" ]
kill "$lender"
exec 8<&-

echo "== docs/directory.md"
block c "$root/docs/directory.md" >directory.c
cc -std=c99 -Wall -Wextra -Wpedantic -Werror directory.c "${flags[@]}" -o directory
if ./directory static:prefill/0 2>said; then exit 1; fi
grep -q '^INVALID: entry 0 of url' said
if ./directory etcd:http://127.0.0.1:23790 2>said; then exit 1; fi
grep -q '^UNREACHABLE: url: etcd does not answer' said
if ! command -v etcd >/dev/null; then
    echo "SKIPPED: the program of docs/directory.md with etcd, because there is none (Debian's package etcd-server)"
else
    etcd --data-dir "$work/etcd" --listen-client-urls http://127.0.0.1:23790 \
        --advertise-client-urls http://127.0.0.1:23790 --listen-peer-urls http://127.0.0.1:23800 2>etcd.log &
    etcd=$!
    for _ in {1..100}; do
        if ./directory etcd:http://127.0.0.1:23790 >said 2>&1; then break; fi
    done
    kill "$etcd"
    grep -q '^prefill/0 is at ' said || { cat said etcd.log; exit 1; }
fi

echo "== bindings/cxx/README.md, with CMake and without"
cd "$work/readme-cxx"
block cmake "$root/bindings/cxx/README.md" >CMakeLists.txt
block cpp "$root/bindings/cxx/README.md" >first.cpp
cmake -B build -DCMAKE_PREFIX_PATH="$prefix" >log && cmake --build build >>log || { cat log; exit 1; }
[ "$(build/first)" = '"sent", and the last word is 7' ]
for program in target initiator; do
    block "cpp $program" "$root/bindings/cxx/README.md" >$program.cpp
    c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror $program.cpp "${flags[@]}" -o $program
done
targets[c++]=$PWD/target initiators[c++]=$PWD/initiator

cd "$work/readme-python"
block python "$root/README.md" >target.py
block python "$root/bindings/python/README.md" >named.py
cmp target.py named.py
block python "$root/bindings/python/README.md" 2 >initiator.py
python="env PYTHONPATH=$root/bindings/python/src FERRY_LIBRARY=$prefix/lib/libferry.so python3"
targets[python]="$python $PWD/target.py" initiators[python]="$python $PWD/initiator.py"

if command -v go >/dev/null; then
    echo "== bindings/go/README.md"
    languages+=(go)
    mkdir -p "$work/readme-go"/{target,initiator}
    cd "$work/readme-go"
    for program in target initiator; do block "go $program" "$root/bindings/go/README.md" >$program/main.go; done
    export GOTOOLCHAIN=local GOPROXY=off GOFLAGS= GOWORK=off
    go mod init first 2>log && go mod edit -require ferry@v0.0.0 -replace ferry="$root/bindings/go"
    # The installed files were moved; the page's user sets LD_LIBRARY_PATH instead.
    for program in target initiator; do
        CGO_CFLAGS="-I$prefix/include" CGO_LDFLAGS="-L$prefix/lib -Wl,-rpath,$prefix/lib" go build -o run-$program ./$program
    done
    targets[go]=$PWD/run-target initiators[go]=$PWD/run-initiator
else
    echo "SKIPPED: the programs of bindings/go/README.md, because go is not installed"
fi

echo "== engine/README.md, in a crate of its own with a path dependency"
languages+=(rust)
# Outside of the checkout: cargo would make the crate a member of its workspace. The build is kept.
case $work in "$root"/*) echo "WORK lies in the checkout"; exit 2 ;; esac
rm -rf "$work/readme-rust"
mkdir "$work/readme-rust"
cd "$work/readme-rust"
cargo new --quiet --vcs none first && cd first
# The versions of the checkout, and nothing from the network.
cp "$root/Cargo.lock" .
cargo add --quiet --offline ferry --path "$root/engine"
mkdir src/bin
block rust,no_run "$root/engine/README.md" 1 >src/bin/target.rs
block rust,no_run "$root/engine/README.md" 2 >src/bin/initiator.rs
CARGO_TARGET_DIR=$target/readme-rust cargo build --quiet --offline --bins
targets[rust]=$target/readme-rust/debug/target initiators[rust]=$target/readme-rust/debug/initiator

echo "== every target with every initiator"
server=
trap '[ -z "$server" ] || kill $server' EXIT
pairs=0
for serves in "${languages[@]}"; do
    expected="there it is: hello"
    [ "$serves" != python ] || expected="b'there it is' b'hello'"
    coproc TARGET { exec ${targets[$serves]}; }
    server=$TARGET_PID
    told=${TARGET[0]}
    read -r -t 60 address <&"$told"
    for writes in "${languages[@]}"; do
        said=$(timeout 60 ${initiators[$writes]} "$address")
        [ "$writes" = python ] || [ "$said" = "the bytes are in the peer's memory" ] || { echo "$writes said: $said"; exit 1; }
        read -r -t 60 line <&"$told" || { echo "the target in $serves was silent about the initiator in $writes"; exit 1; }
        [ "$line" = "$expected" ] || { echo "the target in $serves told: $line"; exit 1; }
        pairs=$((pairs + 1))
    done
    kill "$server"
    wait "$server" 2>/dev/null || true
    server=
done
echo "$pairs pairs of the pages' programs exchanged their bytes"
