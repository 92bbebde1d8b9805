"""vLLM's KV cache as a layout of ferry.

vLLM gives each layer a tensor of [blocks, heads, tokens, row], whose strides say how the dimensions are nested. A row
is a token's key and value side by side. On a CPU the same bytes of a head are the keys, with the tokens of each element
side by side, and behind them the values, with the elements of each token side by side: two layers of ferry.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import torch
from ferry import kv
from vllm.config import VllmConfig
from vllm.v1.attention.backends.cpu_attn import _get_attn_isa
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, MLAAttentionSpec, SlidingWindowSpec

from .options import Options

KINDS = {FullAttentionSpec: kv.FULL, SlidingWindowSpec: kv.WINDOW, MLAAttentionSpec: kv.LATENT}


def specs_of(config: VllmConfig, caches: KVCacheConfig, draft: bool) -> list[dict[str, Any]]:
    """The format of each layer's cache, by group. Refuses caches that could not be handed over correctly."""
    for name in ("pipeline", "prefill_context", "decode_context"):
        if getattr(config.parallel_config, f"{name}_parallel_size", 1) > 1:
            raise ValueError(f"FerryConnector: {name}_parallel_size must be 1")
    speculative = getattr(config, "speculative_config", None)
    if (has := bool(speculative and speculative.uses_draft_kv_cache())) != draft:
        raise ValueError(
            f"FerryConnector: this engine has {'' if has else 'no '}draft layers, and the option draft is {draft}. Engines "
            "that hand caches to each other have the same draft layers: set draft on all of them, or on none"
        )
    groups = []
    for group in caches.transfer_groups:
        each = getattr(group.kv_cache_spec, "kv_cache_specs", {})
        groups.append({name: each.get(name, group.kv_cache_spec) for name in group.layer_names})
        for name, spec in groups[-1].items():
            if type(spec) not in KINDS:
                raise ValueError(f"FerryConnector: layer {name} has a {type(spec).__name__}, which is not supported")
    return groups


def key_of(config: VllmConfig, model: str) -> dict[str, str]:
    """The texts that must be equal on both sides of a handoff."""
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
    config: VllmConfig, caches: KVCacheConfig, tensors: dict[str, torch.Tensor], rank: int, options: Options
) -> tuple[dict[str, tuple[int, int]], kv.Layout]:
    """The places of each layer's parts in this rank's layout, in the order of computation; and the layout."""
    groups, parts = [], {}
    for number, specs in enumerate(specs_of(config, caches, options.draft)):
        spec = next(iter(specs.values()))
        groups.append(kv.Group(spec.block_size, KINDS[type(spec)], window_of(spec)))
        # A layer that reads another's cache has the same tensor: it is handed over once, by the first name.
        own = {tensors[name].data_ptr(): name for name in reversed(specs)}.values()
        parts |= {name: parts_of(config, specs[name], name, tensors[name], number) for name in own}
    layers, places = [], {}
    for name in sorted(parts, key=lambda name: [int(digits) for digits in re.findall(r"\d+", name)]):
        places[name] = (len(layers), len(layers) + len(parts[name]))
        layers += parts[name]
    ranks = config.parallel_config.tensor_parallel_size
    return places, kv.Layout(groups=groups, layers=layers, tp=(rank, ranks), **key_of(config, options.model))


def window_of(spec: Any) -> int:
    """How many tokens vLLM keeps: those that the next token attends to besides itself. 0: all."""
    return max(spec.sliding_window - 1, 1) if isinstance(spec, SlidingWindowSpec) else 0


def parts_of(config: VllmConfig, spec: Any, name: str, tensor: torch.Tensor, group: int) -> list[kv.Layer]:
    latent = isinstance(spec, MLAAttentionSpec)
    held, ranks = 1 if latent else spec.num_kv_heads, config.parallel_config.tensor_parallel_size
    total = config.model_config.get_total_num_kv_heads()
    heads = 1 if latent else total if held == max(1, total // ranks) else held * ranks
    count, size, row, apart = spec.block_size, tensor.element_size(), tensor.shape[-1], tensor.device.type == "cpu"
    known = list(tensor.shape[1:-1]) == [held, count] and tensor.stride(-1) == 1
    isa = _get_attn_isa(spec.dtype, count, spec.head_size, config.cache_config.cache_dtype) if apart else "vec"
    if not known or (apart and tensor.stride(2) != row) or isa not in ("vec", "vec16"):
        shape = f"{list(tensor.shape)} with strides of {list(tensor.stride())}, for {isa}"
        raise ValueError(f"FerryConnector: layer {name} has a tensor of {shape}, which is not known")
    block, head, token, element = (stride * size for stride in tensor.stride())
    parts = [("", 0, row, (block, 0, head, token, element))]
    if apart and not latent:
        row //= 2
        parts = [(".keys", 0, row, (block, 0, head, size, count * size))]
        parts.append((".values", count * row * size, row, (block, 0, head, row * size, size)))
    same = {"heads": heads, "element_bytes": size, "blocks": tensor.shape[0], "group": group, "pairs": 1}
    at = tensor.data_ptr()
    return [kv.Layer(name + what, elements=row, address=at + to, strides=by, **same) for what, to, row, by in parts]
