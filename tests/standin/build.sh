#!/bin/sh
# Builds the stand-in device libraries into OUTDIR, and with --tests also their own tests.
#
#   OUTDIR/cann-VERSION/    8.1, 8.3, 8.5, 9.0, 9.1, each with the symbols of that version: libascendcl.so, and
#                           from 8.5 on libhcomm.so and libcann_hixl.so
#   OUTDIR/cuda-VERSION/    12.4, 12.8: libcuda.so.1
#
# and libprogram.so in cann-9.1/ and cuda-12.8/, by which the tests of the bindings use them
# (program/program.h).
#
# CXX, CXXFLAGS and SANITIZE (address, thread) come from the environment. Files newer than their sources stay;
# several builds may use the same folder at once.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] || { echo "usage: build.sh OUTDIR [--tests]" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
tests=${2:-}
: "${CXX:=g++}"
flags="-std=c++17 -O1 -g -fPIC -fvisibility=hidden -pthread -Wall -Wextra -Werror ${CXXFLAGS:-}"
[ -z "${SANITIZE:-}" ] || flags="$flags -fsanitize=$SANITIZE"
objects=$out/objects
mkdir -p "$objects"
exec 9>"$out/lock"
flock 9
# Links everything again if any source is newer than the last link; the tests need a link of their own.
linked=$out/linked$tests
if [ -e "$linked" ] && [ -z "$(find "$here" -newer "$linked" -type f | head -1)" ]; then exit 0; fi
touch "$out/began" # what changes while it builds is newer than that

# Compiles each source that changed, or all if a header changed; two at a time.
newest_header=$(ls -t "$here"/*/*.h "$here/build.sh" | head -1)
for source in "$here"/core/*.cpp "$here"/ascend/*.cpp "$here"/cuda/*.cpp "$here"/net/*.cpp "$here"/program/*.cpp; do
    part=$(basename "$(dirname "$source")")
    object=$objects/$part-$(basename "$source" .cpp).o
    case $source in */profile.cpp) continue ;; esac
    [ "$object" -nt "$source" ] && [ "$object" -nt "$newest_header" ] && continue
    echo "$source $object"
done | xargs -r -P "$(nproc)" -n 2 sh -c "exec $CXX $flags -c \"\$0\" -o \"\$1\""

# library, soname, profile ("FLAG=VALUE source"), symbols to hide, objects
link() {
    library=$1 soname=$2 profile=$3 hidden=$4
    shift 4
    mkdir -p "$(dirname "$library")"
    # A version script hides the functions that this version lacks, so that dlsym doesn't find them.
    { echo "{ global: acl*; Hccl*; Hixl*; cu[A-Z]*; standin_*; program_*; local:"; for name in $hidden; do echo "$name;"; done; echo "*; };"; } \
        >"$objects/script"
    # shellcheck disable=SC2086 # words are meant to split
    $CXX $flags -shared -Wl,-soname,"$soname" -Wl,-z,defs -Wl,-Bsymbolic -Wl,--version-script="$objects/script" \
        -Wl,-rpath,'$ORIGIN' -o "$library.new" $profile "$@"
    mv "$library.new" "$library"
}

core="$objects/core-*.o"
ascend="$objects/ascend-runtime.o $objects/ascend-streams.o $objects/ascend-memory.o $objects/ascend-copies.o
    $objects/ascend-ipc.o $objects/ascend-vmm.o"
for version in 8.1 8.3 8.5 9.0 9.1; do
    number=$(echo $version | tr -d .)
    lacks=
    [ "$number" -ge 83 ] || lacks="$lacks aclrtIpcMemGetExportKey aclrtIpcMemSetImportPid aclrtIpcMemImportByKey aclrtIpcMemClose aclrtDeviceGetBareTgid"
    [ "$number" -ge 85 ] || lacks="$lacks aclrtMemcpyBatchAsync aclFinalizeReference"
    [ "$number" -ge 90 ] || lacks="$lacks aclrtMemGetAddressRange"
    folder=$out/cann-$version
    # shellcheck disable=SC2086
    link "$folder/libascendcl.so" libascendcl.so "-DSTANDIN_CANN=$number $here/ascend/profile.cpp" "$lacks" $core $ascend
    [ "$number" -ge 85 ] || continue
    lacks=
    [ "$number" -ge 91 ] || lacks="HixlCSClientBatchPutSync HixlCSClientBatchGetSync"
    below="-L$folder -lascendcl"
    # shellcheck disable=SC2086
    link "$folder/libcann_hixl.so" libcann_hixl.so "" "$lacks" $core "$objects/net-wire.o" "$objects/net-hixl.o" $below
    # shellcheck disable=SC2086
    link "$folder/libhcomm.so" libhcomm.so "" "" $core "$objects/net-wire.o" "$objects/net-hccl.o" $below
done

for version in 12.4 12.8; do
    lacks=
    [ $version != 12.4 ] || lacks=cuMemcpyBatchAsync
    # shellcheck disable=SC2086
    link "$out/cuda-$version/libcuda.so.1" libcuda.so.1 \
        "-DSTANDIN_CUDA=$(echo $version | sed 's/\./0/')0 $here/cuda/profile.cpp" "$lacks" $core "$objects"/cuda-*.o -ldl
done

link "$out/cann-9.1/libprogram.so" libprogram.so "" "" "$objects/program-ascend.o" -L"$out/cann-9.1" -lascendcl
link "$out/cuda-12.8/libprogram.so" libprogram.so "" "" "$objects/program-cuda.o" -L"$out/cuda-12.8" -l:libcuda.so.1

touch -r "$out/began" "$out/linked"
[ "$tests" = --tests ] || exit 0
# The tests: a program, then its sources and libraries; two at a time.
xargs -P "$(nproc)" -L 1 sh -c "exec $CXX $flags -o \"\$@\"" sh <<END
$out/test-acl $(echo "$here"/self/acl*.cpp) -L$out/cann-9.1 -lascendcl -Wl,-rpath,$out/cann-9.1
$out/test-net $here/self/net.cpp -L$out/cann-9.1 -lcann_hixl -lhcomm -lascendcl -Wl,-rpath,$out/cann-9.1
$out/test-cuda $(echo "$here"/self/cuda*.cpp) -L$out/cuda-12.8 -l:libcuda.so.1 -Wl,-rpath,$out/cuda-12.8
$out/test-opened $here/self/opened.cpp -ldl
$out/symbols $here/self/symbols.cpp -ldl
END
touch -r "$out/began" "$linked"
