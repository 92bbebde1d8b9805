#!/bin/bash
# Runs the programs of `scripts/cuda.sh leg`, which are in this folder, on this machine's GPU: `test`, `tensors` (two
# processes move tensors of torch, over Python) or `bench`. A test that cannot run prints SKIPPED with the reason, and
# is counted. `standin` runs the tests without a GPU.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)

# Runs the tests and counts them; libtest counts a skipped test as passed.
run_tests() {
    local log status
    log=$(mktemp)
    "$here/cuda-tests" --nocapture --test-threads=1 2>&1 | tee "$log"
    status=$?
    local ok failed skipped
    ok=$(sed -n 's/^test result: .* \([0-9]*\) passed; .*/\1/p' "$log" | tail -1)
    failed=$(sed -n 's/^test result: .* \([0-9]*\) failed; .*/\1/p' "$log" | tail -1)
    skipped=$(grep -o 'SKIPPED [a-z_]*' "$log" | sort -u | wc -l)
    rm -f "$log"
    echo "$((${ok:-0} - skipped)) passed, ${failed:-1} failed, $skipped skipped"
    return "$status"
}

case ${1:-} in
test) FERRY_TEST_CUDA=real run_tests ;;
standin) FERRY_TEST_STANDIN=$here/standin run_tests ;;
tensors)
    if why=$(python3 -c 'import torch; torch.cuda.init()' 2>&1); then
        PYTHONPATH=$here/python python3 "$here/python/gpu.py"
    else
        echo "SKIPPED tensors: python3 has no torch with CUDA here: ${why##*$'\n'}"
    fi
    ;;
bench) "$here/cuda-bench" "${@:2}" ;;
*)
    echo "usage: run.sh test|tensors|bench [--rounds N]|standin" >&2
    exit 2
    ;;
esac
