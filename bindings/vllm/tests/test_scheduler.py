"""The decisions of the scheduler's half, without workers; and the configurations that are refused at the start."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import (
    BLOCK,
    BLOCKS,
    ELEMENTS,
    HEADS,
    blocks_of,
    caches_of,
    config_of,
    output_of,
    parallel_of,
    request_of,
    results_of,
)
from ferry import kv
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm import SamplingParams, _custom_ops
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.attention.backends import cpu_attn
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request, RequestStatus

from ferry_vllm import FerryConnector
from ferry_vllm.layout import describe, key_of, parts_of, specs_of, window_of
from ferry_vllm.messages import Offer
from ferry_vllm.options import LEASE_MS, Options
from ferry_vllm.stats import PromMetrics

ID = kv.new_id()
PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}
DECODE = {"do_remote_prefill": True, "ferry_id": ID.hex(), "ferry_producers": ["00ff"]}
SHAPE = {"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": ELEMENTS, "dtype": torch.float32}


def scheduler(caches: Any = None, **extra: Any) -> FerryConnector:
    made = FerryConnector(config_of(extra), KVConnectorRole.SCHEDULER, caches or caches_of())
    made.producers = ["aa"]
    return made


def manager_of(caches: Any, block: int) -> KVCacheManager:
    """vLLM's own manager of blocks."""
    return KVCacheManager(caches, max_model_len=1024, scheduler_block_size=block, hash_block_size=block, enable_caching=False)


def test_a_prompt_without_an_id_is_offered_when_it_is_whole() -> None:
    half, request = scheduler(), request_of("a", 70, **PREFILL)
    half.update_state_after_alloc(request, blocks_of([1, 2, 3]), 0)
    assert half.build_connector_meta(output_of({"a": 70}, {"a": ([1, 2, 3],)})).offers == []
    request.status = RequestStatus.FINISHED_LENGTH_CAPPED
    delay, params = half.request_finished_all_groups(request, ([1, 2, 3, 4],))
    assert delay and params["ferry_producers"] == ["aa"] and len(params["ferry_id"]) == 32
    step = half.build_connector_meta(output_of({}))
    (offer,) = step.offers
    assert (offer.blocks, offer.is_new, offer.cached, offer.tokens, offer.sealed) == (
        [(0, [1, 2, 3])],
        True,
        70,
        70,
        70,
    )
    assert step.aborted == []


def test_chunks_add_their_blocks_and_the_last_one_seals() -> None:
    half, request = scheduler(), request_of("a", 70, **PREFILL, ferry_id=ID.hex())
    request.num_computed_tokens = 32
    half.update_state_after_alloc(request, blocks_of([1]), 0)
    told = []
    for blocks, tokens in (([1, 2], 20), ([1, 2], 10), ([1, 2, 3, 9], 8), ([1, 2, 3, 9], 1)):
        told += half.build_connector_meta(output_of({"a": tokens}, {"a": (blocks,)})).offers
        request.num_computed_tokens += tokens
    rows = [(offer.blocks, offer.is_new, offer.cached, offer.tokens, offer.sealed) for offer in told]
    assert rows == [
        ([(0, [1, 2])], True, 32, 52, 0),
        ([(0, [])], False, 0, 62, 0),
        ([(0, [3])], False, 0, 70, 70),
    ]


def test_a_preempted_prompt_is_told_before_it_begins_anew() -> None:
    half, request = scheduler(), request_of("a", 70, **PREFILL, ferry_id=ID.hex())
    half.update_state_after_alloc(request, blocks_of([1]), 0)
    half.build_connector_meta(output_of({"a": 32}, {"a": ([1],)}))
    request.num_computed_tokens = 0
    step = half.build_connector_meta(output_of({"a": 64}, {"a": ([5, 6],)}, preempted=["a", "other"]))
    assert step.retracted == ["a"]
    assert [(offer.blocks, offer.is_new) for offer in step.offers] == [([(0, [5, 6])], False)]


def test_what_is_not_computed_is_not_offered_and_its_id_ends() -> None:
    half, request = scheduler(layerwise=False), request_of("a", 70, **PREFILL, ferry_id=ID.hex())
    half.update_state_after_alloc(request, blocks_of([1, 2, 3]), 0)
    request.status = RequestStatus.FINISHED_ABORTED
    assert half.request_finished_all_groups(request, ([1, 2, 3],))[0]
    step = half.build_connector_meta(output_of({}))
    assert (step.offers, step.aborted) == ([Offer("a", ID, [(0, [])], True, 0, 0, 0)], ["a"])
    half, request = scheduler(), request_of("b", 70, **PREFILL, ferry_id=ID.hex())
    half.update_state_after_alloc(request, blocks_of([1]), 0)
    half.build_connector_meta(output_of({"b": 32}, {"b": ([1],)}))
    request.status = RequestStatus.FINISHED_STOPPED
    assert half.request_finished_all_groups(request, ([1],))[0]
    step = half.build_connector_meta(output_of({}))
    assert (step.offers, step.aborted) == ([], ["b"])


def test_layerwise_is_off_if_the_options_or_a_window_say_so() -> None:
    window = SlidingWindowSpec(**SHAPE, sliding_window=48)
    for half in (scheduler(layerwise=False), scheduler(caches_of(window))):
        request = request_of("a", 70, **PREFILL, ferry_id=ID.hex())
        half.update_state_after_alloc(request, blocks_of([1]), 0)
        assert half.build_connector_meta(output_of({"a": 70}, {"a": ([1, 2, 3],)})).offers == []
        request.status = RequestStatus.FINISHED_STOPPED
        assert half.request_finished_all_groups(request, ([1, 2, 3],))[0]
        assert half.build_connector_meta(output_of({})).offers[0].id == ID


def test_blocks_that_have_left_a_window_are_not_named() -> None:
    caches = caches_of([FullAttentionSpec(**SHAPE), SlidingWindowSpec(**SHAPE, sliding_window=40)], groups=2)
    half, request = scheduler(caches), request_of("a", 100, **PREFILL)
    request.status = RequestStatus.FINISHED_LENGTH_CAPPED
    assert half.request_finished_all_groups(request, ([1, 2, 3, 4], [0, 6, 7, 8, 9]))[0]
    assert half.build_connector_meta(output_of({})).offers[0].blocks == [(0, [1, 2, 3, 4]), (BLOCK, [6, 7, 8])]


@pytest.mark.parametrize("window", [2, 40, 64, 65])
def test_at_every_length_vllms_own_manager_keeps_what_a_window_needs(window: int) -> None:
    block = 16
    specs = [
        FullAttentionSpec(**{**SHAPE, "block_size": block}),
        SlidingWindowSpec(**{**SHAPE, "block_size": block}, sliding_window=window),
    ]
    caches = replace(caches_of(specs, groups=2), num_blocks=64)
    for tokens in range(1, 4 * block + 80):
        manager, half = manager_of(caches, block), scheduler(caches)
        request = Request("a", list(range(tokens)), SamplingParams(max_tokens=9), None)
        request.kv_transfer_params = dict(PREFILL)
        assert manager.allocate_slots(request, tokens)
        request.num_computed_tokens = tokens
        manager.remove_skipped_blocks("a", tokens, tokens)
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        half.request_finished_all_groups(request, manager.get_block_ids("a"))
        (offer,) = half.build_connector_meta(output_of({})).offers
        assert offer.sealed == tokens, "the prompt is offered"
        (_, whole), (first, last) = offer.blocks
        assert len(whole) == len(last) + first // block == -(-tokens // block)
        # The list holds the tokens that a layout with this window must have, and 0 is the number of no block.
        assert first <= max(tokens - window_of(specs[1]), 0) and 0 not in last


def test_a_prompt_whose_window_has_moved_on_ends_at_once() -> None:
    caches = caches_of([FullAttentionSpec(**SHAPE), SlidingWindowSpec(**SHAPE, sliding_window=40)], groups=2)
    for held, is_whole in (([0, 2, 3, 4], True), ([0, 0, 3, 4], False)):
        half, request = scheduler(caches), request_of("a", 98, **PREFILL, ferry_id=ID.hex())
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        assert half.request_finished_all_groups(request, ([1, 2, 3, 4], held))[0]
        step = half.build_connector_meta(output_of({}))
        assert (step.offers[0].id, step.offers[0].sealed) == (ID, 98 if is_whole else 0)
        assert step.aborted == ([] if is_whole else ["a"])


def test_one_take_serves_all_samples_of_a_prompt() -> None:
    half = scheduler()
    first, second, gone = (request_of(name, 70, **DECODE) for name in ("0_a", "1_a", "2_a"))
    assert half.get_num_new_matched_tokens(first, 0) == (70, True)
    half.update_state_after_alloc(first, blocks_of([1, 2, 3]), 70)
    for waiting in (second, gone, second):
        assert half.get_num_new_matched_tokens(waiting, 0) == (None, False)
    half.update_connector_output(results_of({"0_b"}))
    assert half.get_num_new_matched_tokens(second, 0) == (None, False), "another request's take has ended"
    gone.status = RequestStatus.FINISHED_ABORTED
    half.request_finished_all_groups(gone, ([],))
    half.update_connector_output(results_of({"0_a"}))
    assert half.get_num_new_matched_tokens(second, 64) == (0, False), "vLLM has the others of the prompt's blocks"
    half.update_state_after_alloc(second, blocks_of([1, 2, 5]), 0)
    assert [take.request for take in half.build_connector_meta(output_of({})).takes] == ["0_a"]
    assert (half.taking, half.samples) == ({}, set())


@pytest.mark.parametrize("has", [True, False])
def test_draft_layers_on_one_side_are_refused_at_the_start(has: bool) -> None:
    config = config_of({"draft": not has})
    config.speculative_config = SimpleNamespace(uses_draft_kv_cache=lambda: has)
    with pytest.raises(ValueError, match="set draft on all of them, or on none"):
        FerryConnector(config, KVConnectorRole.SCHEDULER, caches_of())
    config.kv_transfer_config.kv_connector_extra_config["draft"] = has
    FerryConnector(config, KVConnectorRole.SCHEDULER, caches_of())


def test_a_take_has_the_blocks_behind_the_cached_prefix() -> None:
    half, request = scheduler(), request_of("a", 70, **DECODE)
    assert half.get_num_new_matched_tokens(request, 32) == (38, True)
    half.update_state_after_alloc(request, blocks_of([1, 2, 3, 4]), 38)
    (take,) = half.build_connector_meta(output_of({})).takes
    assert (take.id, take.producers, take.blocks) == (ID, [b"\x00\xff"], [(BLOCK, [2, 3])])
    assert (take.skip, take.tokens) == (32, 70)
    # A load that failed is not tried again.
    assert half.get_num_new_matched_tokens(request, 0) == (0, False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ferry_id": "00"},
        {"ferry_id": None},
        {"ferry_id": "xy" * 16},
        {"ferry_producers": []},
        {"ferry_producers": ["zz"]},
        {"ferry_producers": 7},
        {"ferry_producers": [None]},
    ],
)
def test_parameters_that_make_no_sense_are_computed_here(wrong: dict[str, Any]) -> None:
    half, request = scheduler(), request_of("a", 70, **{**DECODE, **wrong})
    assert half.get_num_new_matched_tokens(request, 0) == (0, False)
    half.update_state_after_alloc(request, blocks_of([1, 2, 3]), 0)
    assert half.build_connector_meta(output_of({})).takes == []


def test_a_request_without_parameters_is_left_alone() -> None:
    half, request = scheduler(), request_of("a", 70)
    assert half.get_num_new_matched_tokens(request, 0) == (0, False)
    half.update_state_after_alloc(request, blocks_of([1, 2, 3]), 0)
    request.status = RequestStatus.FINISHED_STOPPED
    assert half.request_finished_all_groups(request, ([1, 2, 3],)) == (False, None)


def test_what_is_not_supported_is_refused_by_name() -> None:
    local = ChunkedLocalAttentionSpec(**SHAPE, attention_chunk_size=64)
    with pytest.raises(ValueError, match="model.layers.0.attn has a ChunkedLocalAttentionSpec"):
        scheduler(caches_of(local))
    config = config_of()
    config.parallel_config.pipeline_parallel_size = 2
    with pytest.raises(ValueError, match="pipeline_parallel_size must be 1"):
        FerryConnector(config, KVConnectorRole.SCHEDULER, caches_of())
    with pytest.raises(TypeError, match="layerwize"):
        scheduler(layerwize=True)
    with pytest.raises(ValueError, match="mode 'pusch' is none of"):
        scheduler(mode="pusch")


def test_a_tensor_of_another_shape_is_refused() -> None:
    caches = caches_of(layers=1)
    (name,) = caches.kv_cache_groups[0].layer_names
    good = torch.zeros(BLOCKS, HEADS, BLOCK, 2 * ELEMENTS)
    describe(config_of(), caches, {name: good}, 0, Options())
    for tensor in (good.reshape(BLOCKS, BLOCK, HEADS, -1), good[..., ::2], good[..., :ELEMENTS], good[0]):
        with pytest.raises(ValueError, match=f"layer {name} has a tensor of"):
            describe(config_of(), caches, {name: tensor}, 0, Options())


def parts(caches: Any, tensors: Any, ranks: int = 1) -> list[kv.Layer]:
    return [
        part
        for number, specs in enumerate(specs_of(config_of(), caches, False))
        for name, spec in specs.items()
        for part in parts_of(config_of(ranks=ranks), spec, name, tensors[name], number)
    ]


def test_ranks_share_heads_and_latents_do_not() -> None:
    caches = caches_of(FullAttentionSpec(**{**SHAPE, "num_kv_heads": 1}), layers=1)
    (name,) = caches.kv_cache_groups[0].layer_names
    half = torch.zeros(BLOCKS, 1, BLOCK, 2 * ELEMENTS)
    for rank in range(2):
        places, layout = describe(config_of(ranks=2), caches, {name: half}, rank, Options())
        assert (places, layout.rank, layout.ranks) == ({name: (0, 2)}, rank, 2)
    for ranks in (2, 4):
        assert [layer.heads for layer in parts(caches, {name: half}, ranks)] == [2, 2]
    latent = caches_of(MLAAttentionSpec(**{**SHAPE, "num_kv_heads": 1}), layers=1)
    (layer,) = parts(latent, {name: torch.zeros(BLOCKS, 1, BLOCK, 24)}, 2)
    assert (layer.heads, layer.pairs, layer.elements) == (1, 1, 24)


@pytest.mark.parametrize("block", [32, 64])
def test_vllms_kernel_puts_keys_and_values_where_the_layout_says(block: int) -> None:
    spec = FullAttentionSpec(**{**SHAPE, "block_size": block, "head_size": 64})
    caches = caches_of(spec, layers=1)
    (name,) = caches.kv_cache_groups[0].layer_names
    cache = torch.zeros(BLOCKS, HEADS, block, 2 * 64)
    tokens = torch.arange(5 * HEADS * 64, dtype=torch.float32).reshape(5, HEADS, 64) + 1
    halves = cache.view(BLOCKS, HEADS, 2 * block, -1).chunk(2, dim=2)
    slots = torch.tensor([0, 1, block - 1, 3 * block + 2, 7 * block + 9])
    isa = cpu_attn._get_attn_isa(torch.float32, block, 64)
    _custom_ops.cpu_attn_reshape_and_cache(tokens, -tokens, *halves, slots, isa)
    flat = cache.flatten()
    for part, sign in zip(parts(caches, {name: cache}), (1, -1), strict=True):
        by = [stride // 4 for stride in part.strides]
        start = (part.address - cache.data_ptr()) // 4
        for number, slot in enumerate(slots.tolist()):
            for head in range(HEADS):
                at = start + slot // block * by[0] + head * by[2] + slot % block * by[3]
                found = flat[at : at + 63 * by[4] + 1 : by[4]]
                assert torch.equal(found, sign * tokens[number, head])


def test_layers_are_in_the_order_of_computation() -> None:
    caches = caches_of([FullAttentionSpec(**SHAPE), SlidingWindowSpec(**SHAPE, sliding_window=40)], 6, groups=2)
    names = [name for group in caches.kv_cache_groups for name in group.layer_names]
    tensors = {name: torch.zeros(BLOCKS, HEADS, BLOCK, 2 * ELEMENTS) for name in names}
    places, _ = describe(config_of(), caches, tensors, 0, Options())
    assert places == {f"model.layers.{number}.attn": (2 * number, 2 * number + 2) for number in range(12)}


def test_a_layer_that_reads_anothers_cache_is_handed_over_once() -> None:
    caches = caches_of(layers=3)
    first, second, third = caches.kv_cache_groups[0].layer_names
    one, other = (torch.zeros(BLOCKS, HEADS, BLOCK, 2 * ELEMENTS) for _ in range(2))
    places, _ = describe(config_of(), caches, {first: one, second: other, third: one}, 0, Options())
    assert places == {first: (0, 2), second: (2, 4)}


def test_the_key_tells_models_apart() -> None:
    config = config_of()
    assert key_of(config, "") == {**key_of(config, "tiny")}
    assert key_of(config, "other")["model"] == "other"
    config.model_config.hf_text_config.rope_scaling = {"factor": "8" * 300}
    assert len(key_of(config, "")["rope"]) == 64


def test_settings_of_ranks_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FERRY_LEASE_MS", raising=False)
    options = Options(settings={"listen_address": "0.0.0.0:7000", "advertise_address": "node1:0"})
    wanted = {"listen_address": "0.0.0.0:7003", "advertise_address": "node1:0", "lease_ms": LEASE_MS}
    assert options.engine(parallel_of(8), 3) == wanted
    assert options.engine(parallel_of(2, index=1), 1) == wanted, "the data parallel ranks of one host"
    assert options.engine(parallel_of(2, index=9, local=1), 1) == wanted, "of several hosts"
    assert Options(settings={"lease_ms": 9}).engine(parallel_of(1), 0) == {"lease_ms": 9}
    monkeypatch.setenv("FERRY_LEASE_MS", "2000")
    assert Options().engine(parallel_of(1), 0) == {}


def test_counts_are_in_the_metrics() -> None:
    registry = CollectorRegistry()

    def of(kind: Any) -> Any:
        return lambda *arguments: kind(*arguments, registry=registry)

    kinds = {kind: of(kind) for kind in (Counter, Gauge, Histogram)}
    metrics = PromMetrics(config_of(), kinds, ["engine"], {0: ["0"]})
    metrics.observe({"take RECEIVED": 2, "tokens taken": 9})
    labels = {"engine": "0", "side": "take", "end": "RECEIVED"}
    assert registry.get_sample_value("vllm:ferry_handoffs_total", labels) == 2
    assert registry.get_sample_value("vllm:ferry_tokens_total", {"engine": "0"}) == 9


def test_a_group_of_several_specs_is_read_by_layer() -> None:
    caches = caches_of(layers=2)
    group = caches.kv_cache_groups[0]
    each = {name: FullAttentionSpec(**SHAPE) for name in group.layer_names}
    uniform = type("Uniform", (), {"kv_cache_specs": each, "block_size": BLOCK})()
    caches = replace(caches, kv_cache_groups=[replace(group, kv_cache_spec=uniform)])
    tensors = {name: torch.zeros(BLOCKS, HEADS, BLOCK, 2 * ELEMENTS) for name in each}
    assert list(describe(config_of(), caches, tensors, 0, Options())[0]) == group.layer_names
