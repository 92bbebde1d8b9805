"""Transfers by layer, with kernels queued on a device. The device is CUDA, with a stand-in for the driver's library
(tests/standin) whose streams can be held up. The cache itself is in host memory, and no kernel runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ferry
import pytest
import torch
from conftest import BLOCK, LAYERS, Rank, blocks_of, caches_of, config_of, output_of, request_of, until
from ferry import kv
from test_handoffs import PREFILL, SOURCE, TARGET, TOKENS, by_layer, same
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.request import RequestStatus
from vllm.v1.worker import kv_connector_model_runner_mixin as runner

from ferry_vllm import FerryConnector, connector, worker

sys.path.append(str(Path(__file__).resolve().parents[2] / "python" / "tests"))
from standin import CUDA, Program, Stream  # noqa: E402

# Where the driver's own library is loaded, a program cannot be linked with a stand-in of the same name.
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")

PARTS = 2 * LAYERS  # Layers of ferry: keys and values.


def platform(name: str) -> Any:
    return SimpleNamespace(is_cpu=lambda: name == "cpu", is_cuda=lambda: name == "cuda")


class Device:
    """The device of two ranks, and the stream that is torch's current one."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.made: list[Stream] = []
        self.stream = self.held_up()

    def held_up(self) -> Stream:
        """Makes a stream current whose work waits for `go`."""
        self.stream = self.program.stream()
        self.stream.block()
        self.made.append(self.stream)
        return self.stream


@pytest.fixture(scope="module")
def program() -> Iterator[Program]:
    made = Program(CUDA)
    yield made
    assert made.close() == 0


@pytest.fixture
def device(program: Program, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    made = Device(program)
    for module in (connector, worker):
        monkeypatch.setattr(module, "current_platform", platform("cuda"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=made.stream.handle))
    yield made
    for stream in made.made:
        stream.go()


@pytest.fixture
def ranks(device: Device) -> Iterator[tuple[Rank, Rank]]:
    extra = {"settings": CUDA.settings()}
    producer, consumer = Rank(extra, first=1.0), Rank(extra, first=-1e6)
    yield producer, consumer
    consumer.worker.shutdown()
    producer.worker.shutdown()


def still(consumer: Rank, before: torch.Tensor) -> None:
    """Nothing of these tensors is written for a while."""
    end = time.monotonic() + 0.15
    while time.monotonic() < end:
        consumer.step()
        assert torch.equal(consumer.memory[-len(before) :], before)


def test_a_layer_moves_when_the_device_has_computed_it(device: Device, ranks: tuple[Rank, Rank]) -> None:
    producer, consumer = ranks
    first, _ = by_layer(producer, consumer)
    right, before = producer.memory.clone(), consumer.memory.clone()
    # Until the device computes them, the blocks have other contents.
    producer.memory[:, SOURCE] = -7.0
    early, late = device.stream, device.held_up()
    device.stream = early
    producer.begin(producer.chunk_step(first, TOKENS, SOURCE), layers=1)
    device.stream = late
    producer.compute(producer.names[1:])
    producer.end()
    still(consumer, before)
    producer.memory[0] = right[0]
    early.go()
    until(lambda: consumer.memory[0, TARGET[0], 0, 0, 0] == right[0, SOURCE[0], 0, 0, 0], consumer)
    still(consumer, before[1:])
    producer.memory[:] = right
    late.go()
    until(lambda: consumer.received == ["a"], consumer)
    assert same(producer, consumer) and consumer.lost == set()
    producer.finish(first, SOURCE)
    until(lambda: producer.sent == ["a"], producer)


def test_a_cached_prefix_waits_for_the_device_and_a_whole_prompt_does_not(
    device: Device, ranks: tuple[Rank, Rank]
) -> None:
    producer, consumer = ranks
    first, _ = by_layer(producer, consumer)
    first.num_computed_tokens = BLOCK
    before = consumer.memory.clone()
    prefix = device.stream
    step = producer.chunk_step(first, TOKENS - BLOCK, SOURCE)
    producer.begin(step, layers=0)
    device.held_up()
    producer.compute(producer.names)
    producer.end()
    still(consumer, before)
    # The blocks of the prefix move alone.
    prefix.go()
    last = consumer.memory[-1, TARGET[0], -1, -1]
    until(lambda: torch.equal(last, producer.memory[-1, SOURCE[0], -1, -1]), consumer)
    others = [block for block in range(16) if block != TARGET[0]]
    assert torch.equal(consumer.memory[:, others], before[:, others])
    _, params = producer.finish(request_of("whole", TOKENS, **PREFILL), [3, 1, 6])
    consumer.take(request_of("b", TOKENS, **params), [11, 12, 13])
    until(lambda: consumer.received == ["b"] and producer.sent == ["whole"], consumer, producer)
    device.stream.go()
    until(lambda: consumer.received == ["b", "a"], consumer)
    assert same(producer, consumer)


def test_work_of_the_device_that_fails_costs_the_handoff(device: Device, ranks: tuple[Rank, Rank]) -> None:
    producer, consumer = ranks
    first, _ = by_layer(producer, consumer)
    producer.chunk(first, TOKENS, SOURCE)
    device.program.set("FERRY_STANDIN_FAULT", "cuEventQuery:*:700")
    try:
        until(lambda: consumer.received == ["a"], consumer, producer)
    finally:
        device.program.set("FERRY_STANDIN_FAULT", "")
    assert consumer.lost == set(TARGET)
    assert producer.finish(first, SOURCE)[0]
    until(lambda: producer.sent == ["a"], producer)


@pytest.mark.parametrize("has_room", [True, False])
def test_layers_for_which_too_many_wait_come_at_the_end_or_the_consumer_computes(
    device: Device, ranks: tuple[Rank, Rank], has_room: bool
) -> None:
    producer, consumer = ranks
    first, _ = by_layer(producer, consumer)
    cache, others = producer.worker.cache, []
    held_up = SimpleNamespace(cuda_stream=device.stream.handle)
    with pytest.raises(ferry.CallerError, match="LIMIT"):
        while True:
            others.append(kv.new_id())
            cache.offer(others[-1], [0])
            for layer in range(PARTS):
                cache.ready_after(others[-1], 1, held_up, layer)
    stream = device.held_up()
    stream.go()
    producer.begin(producer.chunk_step(first, TOKENS, SOURCE))
    # Ends of offers that the worker does not know.
    producer.worker.offers |= dict.fromkeys(others, "other")
    for other in others if has_room else ():
        cache.cancel_offer(other)
    producer.end()
    until(lambda: consumer.received == ["a"], consumer)
    if has_room:
        assert same(producer, consumer) and consumer.lost == set()
    else:
        assert consumer.lost == set(TARGET)


def test_a_step_of_one_cuda_graph_names_no_layer(device: Device, ranks: tuple[Rank, Rank]) -> None:
    producer, consumer = ranks
    first, _ = by_layer(producer, consumer)
    before = consumer.memory.clone()
    producer.begin(producer.chunk_step(first, TOKENS, SOURCE), layers=0)
    producer.end()
    still(consumer, before)
    device.stream.go()
    until(lambda: consumer.received == ["a"], consumer)
    assert same(producer, consumer)


def test_layers_in_another_order_wait_for_those_before_them(pair: tuple[Rank, Rank]) -> None:
    producer, consumer = pair
    first, _ = by_layer(producer, consumer)
    before = consumer.memory.clone()
    producer.begin(producer.chunk_step(first, TOKENS, SOURCE), layers=0)
    producer.compute(producer.names[:0:-1])
    still(consumer, before)
    producer.end()
    until(lambda: consumer.received == ["a"], consumer)
    assert same(producer, consumer)


def test_a_step_that_fails_tells_no_layer(pair: tuple[Rank, Rank], monkeypatch: pytest.MonkeyPatch) -> None:
    producer, consumer = pair
    first, _ = by_layer(producer, consumer)
    before = consumer.memory.clone()
    output = SimpleNamespace(
        kv_connector_metadata=producer.chunk_step(first, TOKENS, SOURCE),
        has_sync_kv_loads=False,
        finished_req_ids=set(),
    )
    monkeypatch.setattr(runner, "get_kv_transfer_group", lambda: producer.worker)
    monkeypatch.setattr(runner, "get_forward_context", lambda: None)
    with pytest.raises(RuntimeError, match="in the second layer"):
        with runner.KVConnectorModelRunnerMixin._get_kv_connector_output(output):
            producer.compute(producer.names[:1])
            raise RuntimeError("in the second layer")
    until(lambda: consumer.received == ["a"], consumer)
    assert torch.equal(consumer.memory[1:], before[1:])
    assert consumer.lost == set(TARGET)


@pytest.mark.parametrize(
    ("name", "halves", "by_layers"),
    [("cpu", False, True), ("cuda", False, True), ("cuda", True, False), ("rocm", False, False)],
)
def test_by_layer_on_known_devices_alone(
    name: str, halves: bool, by_layers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector, "current_platform", platform(name))
    config = config_of()
    config.parallel_config.use_ubatching = halves
    half = FerryConnector(config, KVConnectorRole.SCHEDULER, caches_of())
    half.producers = ["aa"]
    request = request_of("a", TOKENS, **PREFILL, ferry_id=kv.new_id().hex())
    half.update_state_after_alloc(request, blocks_of(SOURCE), 0)
    step = half.build_connector_meta(output_of({"a": TOKENS}, {"a": (SOURCE,)}))
    assert [offer.request for offer in step.offers] == (["a"] if by_layers else [])
    request.status = RequestStatus.FINISHED_STOPPED
    assert half.request_finished_all_groups(request, (SOURCE,))[0]
