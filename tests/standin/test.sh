#!/bin/sh
# Builds the stand-ins and runs their own tests: plainly, and under AddressSanitizer and ThreadSanitizer.
# Argument: the build folder, which gets the plain libraries for all other tests.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
[ $# -eq 1 ] || { echo "usage: test.sh OUTDIR" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
export FERRY_STANDIN_DIR="$out/shared" ASAN_OPTIONS=handle_segv=0:handle_abort=0 TSAN_OPTIONS=halt_on_error=1:handle_segv=0:handle_abort=0

# library, then NAME=yes or NAME=no
symbols() {
    library=$1
    shift
    for word in "$@"; do
        "$out/symbols" "$library" "${word%=*}" | grep -qx "${word%=*} ${word#*=}" ||
            { echo "$library: not so: $word" >&2; exit 1; }
    done
}

for sanitizer in "" address thread; do
    folder=$out${sanitizer:+/$sanitizer}
    SANITIZE=$sanitizer "$here/build.sh" "$folder" --tests
    for program in "$folder"/test-*; do
        echo "== $(basename "$program") ${sanitizer:-plain}"
        rm -rf "$FERRY_STANDIN_DIR"
        (ulimit -c 0 && cd "$folder" && timeout 120 "$program")
    done
done

for version in 8.1 8.3 8.5 9.0 9.1; do
    symbols "$out/cann-$version/libascendcl.so" aclInit=yes aclrtMemcpyBatch=yes standin_set=yes
done
symbols "$out/cann-8.1/libascendcl.so" aclrtIpcMemGetExportKey=no aclrtIpcMemImportByKey=no aclrtIpcMemClose=no
symbols "$out/cann-8.3/libascendcl.so" aclrtIpcMemGetExportKey=yes aclrtMemGetAddressRange=no
symbols "$out/cann-9.0/libascendcl.so" aclrtMemGetAddressRange=yes
for version in 8.5 9.0 9.1; do
    symbols "$out/cann-$version/libcann_hixl.so" HixlCSClientBatchPutAsync=yes
    symbols "$out/cann-$version/libhcomm.so" HcclCommPrepare=yes
done
symbols "$out/cann-9.0/libcann_hixl.so" HixlCSClientBatchPutSync=no
symbols "$out/cann-9.1/libcann_hixl.so" HixlCSClientBatchPutSync=yes
symbols "$out/cuda-12.4/libcuda.so.1" cuMemAlloc_v2=yes cuMemAlloc=no cuMemcpyBatchAsync=no
symbols "$out/cuda-12.8/libcuda.so.1" cuMemcpyBatchAsync=yes
echo "== passed"
