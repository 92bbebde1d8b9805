"""The halves of FerryConnector without vLLM's engines: schedulers with made-up requests, workers with tensors."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import RequestStatus

from ferry_vllm import FerryConnector, worker
from ferry_vllm.messages import Step

BLOCK, HEADS, ELEMENTS, LAYERS, BLOCKS = 32, 2, 8, 3, 16


def config_of(extra: dict[str, Any] | None = None, ranks: int = 1) -> Any:
    """The parts of a VllmConfig that the connector reads."""
    return SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra or {}, is_kv_producer=True),
        parallel_config=parallel_of(ranks),
        model_config=SimpleNamespace(
            model="tiny",
            revision=None,
            dtype="float32",
            hf_text_config=SimpleNamespace(rope_theta=1e4),
            get_total_num_kv_heads=lambda: HEADS,
        ),
        cache_config=SimpleNamespace(cache_dtype="auto"),
    )


def parallel_of(ranks: int, index: int = 0, local: int | None = None) -> Any:
    """Tensor parallel ranks of a data parallel rank, by its number among all and on its host."""
    names = {"data_parallel_index": index, "data_parallel_rank_local": local}
    return SimpleNamespace(tensor_parallel_size=ranks, use_ubatching=False, **names)


def caches_of(spec: Any = None, layers: int = LAYERS, groups: int = 1) -> KVCacheConfig:
    spec = spec or FullAttentionSpec(block_size=BLOCK, num_kv_heads=HEADS, head_size=ELEMENTS, dtype=torch.float32)
    names = [[f"model.layers.{group + layer * groups}.attn" for layer in range(layers)] for group in range(groups)]
    specs = spec if isinstance(spec, list) else [spec] * groups
    return KVCacheConfig(
        num_blocks=BLOCKS,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(layers, each) for layers, each in zip(names, specs, strict=True)],
    )


def request_of(name: str, tokens: int, **params: Any) -> Any:
    return SimpleNamespace(
        request_id=name,
        num_prompt_tokens=tokens,
        num_computed_tokens=0,
        kv_transfer_params=params or None,
        status=RequestStatus.RUNNING,
    )


def output_of(scheduled: dict[str, int], blocks: dict[str, Any] | None = None, preempted: Any = ()) -> Any:
    """The parts of a SchedulerOutput that the connector reads."""
    state = SimpleNamespace(get_block_ids=lambda name: (blocks or {})[name])
    return SimpleNamespace(
        num_scheduled_tokens=scheduled, preempted_req_ids=set(preempted), kv_connector_block_state=state
    )


def results_of(received: set[str]) -> Any:
    """The parts of a KVConnectorOutput that the connector reads."""
    return SimpleNamespace(finished_recving=received, finished_sending=set())


class Rank:
    """A scheduler's half and a worker's, with a cache whose elements are all different."""

    def __init__(
        self, extra: Any = None, first: float = 0.0, rank: int = 0, ranks: int = 1, caches: KVCacheConfig | None = None
    ) -> None:
        heads = HEADS // ranks
        spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=heads, head_size=ELEMENTS, dtype=torch.float32)
        caches = caches or caches_of(spec)
        # A busy machine may keep a process waiting for a second; no test here is about silence.
        extra = {"silence_ms": 20_000} | (extra or {})
        self.scheduler = FerryConnector(config_of(extra, ranks), KVConnectorRole.SCHEDULER, caches)
        self.worker = FerryConnector(config_of(extra, ranks), KVConnectorRole.WORKER, caches)
        names = [name for group in caches.kv_cache_groups for name in group.layer_names]
        shape = (len(names), BLOCKS, heads, BLOCK, 2 * ELEMENTS)
        count = len(names) * BLOCKS * heads * BLOCK * 2 * ELEMENTS
        self.memory = (torch.arange(count, dtype=torch.float32) + first).reshape(shape)
        worker.get_tensor_model_parallel_rank = lambda: rank
        self.worker.register_kv_caches({name: self.memory[layer] for layer, name in enumerate(names)})
        self.names = names
        self.scheduler.set_xfer_handshake_metadata_pp_aware({(0, 0): self.worker.get_handshake_metadata()})
        # The worker's report: (requests that were sent, that were received, that failed, lost blocks).
        self.sent: list[str] = []
        self.received: list[str] = []
        self.failed: set[str] = set()
        self.lost: set[int] = set()
        # Requests that vLLM has finished since the last step.
        self.finished: set[str] = set()

    def step(self, output: Any = None) -> None:
        """One step of vLLM, in the order of its calls."""
        self.begin(self.scheduler.build_connector_meta(output or output_of({})))
        self.end()

    def begin(self, step: Step, layers: int = LAYERS) -> None:
        """A step until some layers are computed."""
        self.worker.handle_preemptions(step)
        self.worker.bind_connector_metadata(step)
        self.compute(self.names[:layers])

    def compute(self, names: list[str]) -> None:
        for name in names:
            self.worker.save_kv_layer(name, None, None)

    def end(self) -> None:
        self.worker.start_load_kv(None)
        self.worker.wait_for_save()
        finished, self.finished = self.finished, set()
        results = self.worker.get_transfer_results(finished)
        lost = self.worker.get_block_ids_with_load_errors()
        assert not lost or results.finished_recving, "lost blocks are told with their request"
        self.lost |= lost
        assert results.failed_recving <= results.finished_recving
        self.failed |= results.failed_recving
        self.sent += results.finished_sending
        self.received += results.finished_recving
        self.scheduler.update_connector_output(results)
        self.worker.clear_connector_metadata()

    def chunk(self, request: Any, tokens: int, blocks: list[int]) -> None:
        """Computes the next tokens of a prompt, which then has these blocks."""
        self.begin(self.chunk_step(request, tokens, blocks))
        self.end()

    def chunk_step(self, request: Any, tokens: int, blocks: list[int]) -> Step:
        output = output_of({request.request_id: tokens}, {request.request_id: (blocks,)})
        step = self.scheduler.build_connector_meta(output)
        request.num_computed_tokens += tokens
        return step

    def finish(self, request: Any, *blocks: list[int], status: Any = RequestStatus.FINISHED_LENGTH_CAPPED) -> Any:
        """Ends a request, which has these blocks of each group."""
        request.status = status
        self.finished.add(request.request_id)
        return self.scheduler.request_finished_all_groups(request, blocks)

    def take(self, request: Any, blocks: list[int], computed: int = 0) -> None:
        count, is_async = self.scheduler.get_num_new_matched_tokens(request, computed)
        assert is_async == (count > 0)
        self.scheduler.update_state_after_alloc(request, blocks_of(blocks), count)


def blocks_of(ids: list[int]) -> Any:
    return SimpleNamespace(get_block_ids=lambda: (ids,))


def until(condition: Callable[[], bool], *ranks: Any, seconds: float = 10.0) -> None:
    """Steps the ranks until the condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not in time"
        for rank in ranks:
            rank.step()
        time.sleep(0.001)


class Instance:
    """Tensor parallel ranks with one scheduler, which tells each the same."""

    def __init__(self, ranks: int, first: float) -> None:
        self.ranks = [Rank(None, first + 1e5 * rank, rank, ranks) for rank in range(ranks)]
        self.scheduler = self.ranks[0].scheduler
        # In no particular order, as workers answer.
        told = {(0, rank): self.ranks[rank].worker.get_handshake_metadata() for rank in reversed(range(ranks))}
        self.scheduler.set_xfer_handshake_metadata_pp_aware(told)

    def step(self) -> None:
        step = pickle.dumps(self.scheduler.build_connector_meta(output_of({})))
        for rank in self.ranks:
            rank.finished |= self.ranks[0].finished
        for rank in self.ranks:
            rank.begin(pickle.loads(step))
            rank.end()


@pytest.fixture
def pair() -> Iterator[tuple[Rank, Rank]]:
    producer, consumer = Rank(first=1.0), Rank(first=-1e6)
    yield producer, consumer
    consumer.worker.shutdown()
    producer.worker.shutdown()
