#!/bin/bash
# Tests the C++ binding against the shipped libferry: the suites of ferry.hpp and ferry_kv.hpp under ASan and UBSan over
# TCP and over the same-host path, the same for device memory with stand-ins for the CUDA driver and AscendCL, programs
# without exceptions and with coroutines, mistakes that the compiler refuses, the examples, the README's programs, and a
# few rounds of the benchmark. Warnings are errors. Arguments go to the suite (--gtest_filter=...).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
target=${CARGO_TARGET_DIR:-$root/target}
case $target in /*) ;; *) target=$root/$target ;; esac
out=$target/cxx-tests
: "${CXX:=g++}" "${CC:=gcc}"
warnings=(-Wall -Wextra -Wpedantic -Werror -Wshadow -Wconversion -Wno-sign-conversion)
sanitizers=(-g -O0 -fsanitize=address,undefined -fno-sanitize-recover=all)
mkdir -p "$out"

"$root/scripts/build.sh"
ln -sf "$target/release/libferry.so" "$out/libferry.so.0"

compile() { # program, then flags and sources
    local program=$out/$1
    shift
    "$CXX" "${warnings[@]}" -I"$root/include" -I"$here" "$@" "$out/libferry.so.0" -Wl,-rpath,"$out" -pthread -o "$program"
}
refused() { # the compiler refuses each case of refused.cpp, and says why
    local check=("$CXX" "${warnings[@]}" -I"$root/include" -std=c++17 -fsyntax-only "$here/refused.cpp") case words cases=0
    "${check[@]}" || return 1
    while read -r case words; do
        cases=$((cases + 1))
        if "${check[@]}" -D"CASE=$case" 2>"$out/refused.err"; then
            echo "refused.cpp: the compiler takes case $case"
            return 1
        fi
        grep -qE "$words" "$out/refused.err" || { cat "$out/refused.err"; echo "case $case lacks: $words"; return 1; }
    done < <(sed -nE 's/^#(el)?if CASE == ([0-9]+) \/\/ /\2 /p' "$here/refused.cpp")
    echo "refused: $cases passed"
    [ $cases -gt 0 ]
}
refused
compile suite -std=c++17 "${sanitizers[@]}" "$here/suite.cpp" "$here/lifetimes.cpp" "$here/count.cpp" -lgtest -lgtest_main
kv_suite=("$here/kv_layouts.cpp" "$here/kv_handoff.cpp" "$here/kv_timeline.cpp" "$here/directory.cpp"
    "$here/mistakes.cpp")
compile kv-suite -std=c++17 "${sanitizers[@]}" "${kv_suite[@]}" -lgtest -lgtest_main
standin=$target/standin
"$root/tests/standin/build.sh" "$standin"
devices() { # program, folder of the stand-in, then flags
    compile "$1" -std=c++17 "${sanitizers[@]}" -isystem "$root/tests/standin/program" "${@:3}" "$here/devices.cpp" -lgtest \
        -lgtest_main -L"$standin/$2" -lprogram -Wl,-rpath,"$standin/$2"
}
devices devices-cuda cuda-12.8
devices devices-ascend cann-9.1 -DASCEND
compile noexcept -std=c++17 -fno-exceptions -fno-rtti "${sanitizers[@]}" "$here/noexcept.cpp"
programs=(noexcept)
if echo '#include <coroutine>' | "$CXX" -std=c++20 -x c++ -fsyntax-only - 2>/dev/null; then
    compile coroutine -std=c++20 "${sanitizers[@]}" "$here/coroutine.cpp"
    programs+=(coroutine)
else
    echo "SKIPPED: coroutines; $CXX has none"
fi
for example in worker exchange handoff kv_handoff; do
    compile "$example" -std=c++17 "${sanitizers[@]}" "$root/bindings/cxx/examples/$example.cpp"
done
for example in exchange handoff kv_handoff; do
    "$CC" -std=c99 -g -O1 -Wall -Wextra -Wpedantic -Werror -Wconversion -Wno-sign-conversion -I"$root/include" \
        "$root/examples/c/$example.c" "$out/libferry.so.0" -Wl,-rpath,"$out" -o "$out/$example-c"
done
compile overhead -std=c++17 -O2 "$root/bindings/cxx/bench/overhead.cpp"

# Every program of the README, unchanged.
rm -f "$out"/readme-*.cpp
awk -v out="$out" '/^```cpp$/ { n++; on = 1; next } /^```/ { on = 0 } on { print > (out "/readme-" n ".cpp") }' \
    "$root/bindings/cxx/README.md"
for source in "$out"/readme-*.cpp; do
    name=$(basename "$source" .cpp)
    compile "$name" -std=c++20 "${sanitizers[@]}" "$source"
    programs+=("$name")
done

export FERRY_CUDA_LIBRARY=$standin/cuda-12.8/libcuda.so.1 FERRY_ASCEND_LIBRARY=$standin/cann-9.1/libascendcl.so
for transports in tcp local,tcp; do
    export FERRY_TRANSPORTS=$transports
    echo "== transports $transports"
    timeout 300 "$out/suite" --gtest_brief=1 "$@"
    timeout 300 "$out/kv-suite" --gtest_brief=1 "$@"
    for library in cuda ascend; do timeout 300 "$out/devices-$library" --gtest_brief=1; done
    for program in "${programs[@]}" worker; do timeout 120 "$out/$program"; done
    "$root/tests/exchange.sh" "c++=$out/exchange" "c=$out/exchange-c"
    "$root/tests/handoff.sh" "c++=$out/handoff" "c=$out/handoff-c"
    "$root/tests/kv_handoff.sh" "c++=$out/kv_handoff" "c=$out/kv_handoff-c"
done
if "$out/exchange" connect 127.0.0.1:1 2>/dev/null || "$out/exchange-c" connect 127.0.0.1:1 2>/dev/null; then
    echo "exchange: a client without a server did not fail"
    exit 1
fi
unset FERRY_TRANSPORTS
echo "== devices of one host by themselves"
for library in cuda ascend; do timeout 300 "$out/devices-$library" --gtest_brief=1; done
timeout 60 "$out/overhead" 5 200
