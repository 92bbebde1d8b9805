#!/bin/bash
# Tests the Go module against a libferry that the script builds and installs under the target folder. Exits with 77
# if Go is missing or too old. Downloads nothing. Device memory is tested against stand-ins for the CUDA driver and
# AscendCL, which need a C++ compiler.
set -euo pipefail
cd "$(dirname "$0")/../.."
# The tests use no other toolchain, and no module from the network.
export GOTOOLCHAIN=local GOPROXY=off GOFLAGS= GOWORK=off
wanted=$(sed -n 's/^go //p' bindings/go/go.mod)
if ! command -v go >/dev/null; then
    echo "SKIPPED: go is not installed"
    exit 77
fi
found=$(go env GOVERSION)
found=${found#go}
if [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -1)" != "$wanted" ]; then
    echo "SKIPPED: go is $found; the module needs $wanted"
    exit 77
fi

mkdir -p "${CARGO_TARGET_DIR:-target}/go"
built=$(cd "${CARGO_TARGET_DIR:-target}/go" && pwd)
prefix=$built/prefix
make install PREFIX="$prefix"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
root=$PWD
tests/standin/build.sh "$built/../standin"
FERRY_TEST_STANDIN=$(realpath "$built/../standin")
export FERRY_TEST_STANDIN

cd bindings/go
unformatted=$(gofmt -l .)
if [ -n "$unformatted" ]; then
    echo "gofmt would change: $unformatted"
    exit 1
fi
go vet ./...
go test -race -timeout 300s ./...
go test -timeout 300s ./...
for example in exchange handoff kv_handoff; do go build -o "$built/$example" "./examples/$example"; done

# The program of README.md, in a new module that is made as README.md says.
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
awk '/^```go$/ { inside = 1; next } /^```$/ { if (inside) exit } inside' README.md >"$fresh/main.go"
(
    cd "$fresh"
    go mod init first
    go mod edit -require ferry@v0.0.0 -replace ferry="$root/bindings/go"
    printed=$(go run .)
    [ "$printed" = "5 bytes over LOCAL: written hello" ] || { echo "README.md's program printed: $printed"; exit 1; }
)
"$root/tests/exchange.sh" "go=$built/exchange"
"$root/tests/handoff.sh" "go=$built/handoff"
go test -run '^$' -bench . -benchtime 200ms -timeout 300s .
