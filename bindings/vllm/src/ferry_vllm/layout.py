"""vLLM's KV cache as a layout of ferry.

vLLM gives each layer a tensor of [blocks, heads, tokens, row], whose strides say how the dimensions are
nested. On a CPU its kernels put the keys of a head's tokens before their values, inside of the same bytes;
elsewhere a row is a token's key and value side by side. A group's blocks may be split into smaller ones for
the kernels; `Cache.split` is into how many.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ferry import kv
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec

KINDS = {FullAttentionSpec: kv.FULL, SlidingWindowSpec: kv.WINDOW, MLAAttentionSpec: kv.LATENT}


@dataclass
class Cache:
    layout: kv.Layout
    # Into how many blocks of the layout each block of vLLM is split, by group.
    split: list[int]
    # Each layer's place in the order of computation.
    places: dict[str, int]


def spec_of(group: KVCacheGroupSpec, name: str) -> Any:
    """The format of one layer's cache."""
    spec = group.kv_cache_spec
    spec = spec.kv_cache_specs[name] if isinstance(spec, UniformTypeKVCacheSpecs) else spec
    if type(spec) not in KINDS:
        raise ValueError(f"FerryConnector: layer {name} has a {type(spec).__name__}, which is not supported")
    return spec


def check(config: VllmConfig, caches: KVCacheConfig) -> None:
    """Refuses what would not be handed over rightly."""
    parallel = config.parallel_config
    for name in ("pipeline", "prefill_context", "decode_context"):
        if getattr(parallel, f"{name}_parallel_size", 1) > 1:
            raise ValueError(f"FerryConnector: {name}_parallel_size must be 1")
    for group in caches.transfer_groups:
        for name in group.layer_names:
            spec_of(group, name)


def key_of(config: VllmConfig, model: str) -> dict[str, str]:
    """What must be equal on both sides of a handoff."""
    text = config.model_config.hf_text_config
    names = ("rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor")
    rope = json.dumps({name: getattr(text, name, None) for name in names}, sort_keys=True, default=str)
    return {
        "model": model or config.model_config.model,
        "revision": config.model_config.revision or "",
        "cache": f"{config.cache_config.cache_dtype}, {config.model_config.dtype}",
        "rope": rope if len(rope.encode()) < 256 else hashlib.sha256(rope.encode()).hexdigest(),
    }


def describe(
    config: VllmConfig, caches: KVCacheConfig, tensors: dict[str, torch.Tensor], rank: int, model: str
) -> Cache:
    """The layout of this rank's tensors."""
    groups, layers, split = [], [], []
    for number, group in enumerate(caches.transfer_groups):
        found = [_layer(config, caches, group, name, tensors[name], number, rank) for name in group.layer_names]
        layers += [layer for layer, _ in found]
        split.append(found[0][1])
        if {pieces for _, pieces in found} != {split[-1]}:
            raise ValueError(f"FerryConnector: group {number} has layers of different blocks")
        spec = spec_of(group, group.layer_names[0])
        window = spec.sliding_window if type(spec) is SlidingWindowSpec else 0
        groups.append(kv.Group(spec.block_size // split[-1], KINDS[type(spec)], window))
    layers.sort(key=lambda layer: [int(digits) for digits in re.findall(r"\d+", layer.name)])
    layout = kv.Layout(
        groups=groups,
        layers=layers,
        tp=(rank, config.parallel_config.tensor_parallel_size),
        **key_of(config, model),
    )
    return Cache(layout, split, {layer.name: place for place, layer in enumerate(layers)})


def _layer(
    config: VllmConfig,
    caches: KVCacheConfig,
    group: KVCacheGroupSpec,
    name: str,
    tensor: torch.Tensor,
    number: int,
    rank: int,
) -> tuple[kv.Layer, int]:
    """One tensor, and into how many blocks each of vLLM's blocks is split in it."""
    spec = spec_of(group, name)
    latent = KINDS[type(spec)] == kv.LATENT
    split = tensor.shape[0] // caches.num_blocks
    held = 1 if latent else spec.num_kv_heads
    if tensor.dim() != 4 or list(tensor.shape[1:3]) != [held, spec.block_size // max(split, 1)]:
        raise ValueError(f"FerryConnector: layer {name} has a tensor of {list(tensor.shape)}, which is not known")
    ranks = config.parallel_config.tensor_parallel_size
    total = config.model_config.get_total_num_kv_heads()
    heads = 1 if latent else total if held == max(1, total // ranks) else held * ranks
    block, head, token, element = (stride * tensor.element_size() for stride in tensor.stride())
    pairs, row, pair = 1, tensor.shape[3], 0
    if tensor.device.type == "cpu" and not latent:
        if token != row * element or element != tensor.element_size():
            raise ValueError(f"FerryConnector: layer {name} has strides of {tensor.stride()}, which are not known")
        pairs, row, token = 2, row // 2, token // 2
        pair = token * tensor.shape[2]
    layer = kv.Layer(
        name=name,
        heads=heads,
        elements=row,
        element_bytes=tensor.element_size(),
        blocks=tensor.shape[0],
        address=tensor.data_ptr(),
        group=number,
        pairs=pairs,
        strides=(block, pair, head, token, element),
    )
    return layer, split
