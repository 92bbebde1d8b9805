"""vLLM's KV cache as a layout of ferry.

vLLM gives each layer a tensor of [blocks, heads, tokens, row], whose strides say how the dimensions are nested. On a
CPU its kernels put the keys of a head's tokens before their values, inside of the same bytes; elsewhere a row is a
token's key and value side by side.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import torch
from ferry import kv
from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, MLAAttentionSpec, SlidingWindowSpec

KINDS = {FullAttentionSpec: kv.FULL, SlidingWindowSpec: kv.WINDOW, MLAAttentionSpec: kv.LATENT}
SPLITS = ("pipeline", "prefill_context", "decode_context")


def specs_of(config: VllmConfig, caches: KVCacheConfig) -> list[dict[str, Any]]:
    """The format of each layer's cache, by group. Refuses what would not be handed over rightly."""
    for name in SPLITS:
        if getattr(config.parallel_config, f"{name}_parallel_size", 1) > 1:
            raise ValueError(f"FerryConnector: {name}_parallel_size must be 1")
    groups = []
    for group in caches.transfer_groups:
        each = getattr(group.kv_cache_spec, "kv_cache_specs", {})
        groups.append({name: each.get(name, group.kv_cache_spec) for name in group.layer_names})
        for name, spec in groups[-1].items():
            if type(spec) not in KINDS:
                raise ValueError(f"FerryConnector: layer {name} has a {type(spec).__name__}, which is not supported")
    return groups


def key_of(config: VllmConfig, model: str) -> dict[str, str]:
    """What must be equal on both sides of a handoff."""
    names = ("rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor")
    found = {name: getattr(config.model_config.hf_text_config, name, None) for name in names}
    rope = json.dumps(found, sort_keys=True, default=str)
    return {
        "model": model or config.model_config.model,
        "revision": config.model_config.revision or "",
        "cache": f"{config.cache_config.cache_dtype}, {config.model_config.dtype}",
        "rope": rope if len(rope.encode()) < 256 else hashlib.sha256(rope.encode()).hexdigest(),
    }


def describe(
    config: VllmConfig, caches: KVCacheConfig, tensors: dict[str, torch.Tensor], rank: int, model: str
) -> tuple[list[kv.Layer], kv.Layout]:
    """This rank's layers in the order of computation, and its layout."""
    groups, layers = [], []
    ranks, total = config.parallel_config.tensor_parallel_size, config.model_config.get_total_num_kv_heads()
    for number, specs in enumerate(specs_of(config, caches)):
        spec = next(iter(specs.values()))
        groups.append(kv.Group(spec.block_size, KINDS[type(spec)], window_of(spec)))
        layers += [layer_of(spec, name, tensors[name], number, ranks, total) for name, spec in specs.items()]
    layers.sort(key=lambda layer: [int(digits) for digits in re.findall(r"\d+", layer.name)])
    return layers, kv.Layout(groups=groups, layers=layers, tp=(rank, ranks), **key_of(config, model))


def window_of(spec: Any) -> int:
    return spec.sliding_window if isinstance(spec, SlidingWindowSpec) else 0


def layer_of(spec: Any, name: str, tensor: torch.Tensor, group: int, ranks: int, total: int) -> kv.Layer:
    latent = isinstance(spec, MLAAttentionSpec)
    held = 1 if latent else spec.num_kv_heads
    heads = 1 if latent else total if held == max(1, total // ranks) else held * ranks
    size, row, apart = tensor.element_size(), tensor.shape[-1], tensor.device.type == "cpu" and not latent
    known = list(tensor.shape[1:-1]) == [held, spec.block_size] and tensor.stride(-1) == 1
    if not known or (apart and tensor.stride(2) != row):
        shape = f"{list(tensor.shape)} with strides of {list(tensor.stride())}"
        raise ValueError(f"FerryConnector: layer {name} has a tensor of {shape}, which is not known")
    block, head, token, element = (stride * size for stride in tensor.stride())
    pairs, pair = 1, 0
    if apart:
        pairs, row, token = 2, row // 2, token // 2
        pair = token * spec.block_size
    strides = (block, pair, head, token, element)
    place = {"blocks": tensor.shape[0], "address": tensor.data_ptr(), "group": group, "strides": strides}
    return kv.Layer(name=name, heads=heads, elements=row, element_bytes=size, pairs=pairs, **place)
