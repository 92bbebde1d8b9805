"""Layers that are ready after a device's work, against a stand-in for the device's library: the producer's
cache is in memory of the device, and a stream of the device computes it."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

np = pytest.importorskip("numpy")

from kv_workers import LAYERS, Rank, Tensors  # noqa: E402
from standin import ASCEND, CUDA, Library, Program, Stream  # noqa: E402
from test_devices import Has, Protocol, by_name, raw  # noqa: E402

import ferry  # noqa: E402
from ferry import kv  # noqa: E402

SOURCE_IDS, TARGET_IDS, TOKENS = [5, 0, 3], [1, 6, 4], 40
SIZE = Tensors.size(16)
LAYER = SIZE // LAYERS


class Prefill(Rank):
    """A rank whose cache is in memory of device 0, with a stream for each layer. The streams are held up."""

    def __init__(self, program: Program) -> None:
        self.program = program
        settings: dict[str, Any] = program.library.settings()
        # The other library may be loaded: other tests have opened its stand-in.
        settings["ascend" if program.library is CUDA else "cuda"] = False
        self.engine = ferry.Engine(**settings)
        self.address = program.alloc(SIZE)
        # The result that the device is to compute, in host memory.
        self.tensors = Tensors(bytearray(SIZE), address=self.address)
        region = self.engine.register(raw(self.address, SIZE))
        self.cache = kv.Cache(self.engine, self.tensors.layout, region, silence_ms=20_000)
        self.cache.timeline.start()
        self.streams = [program.stream(LAYER) for _ in range(LAYERS)]
        for layer, stream in enumerate(self.streams):
            self.tensors.fill(layer, SOURCE_IDS, range(TOKENS))
            stream.block()
            values = self.tensors.layers[layer].tobytes()
            stream.write(self.address + layer * LAYER, values)

    def __exit__(self, *_: object) -> None:
        for stream in self.streams:
            stream.go()
        super().__exit__()
        self.program.free(self.address)

    def __enter__(self) -> Prefill:
        return self

    def ready(self) -> list[tuple[int, int, int]]:
        """What has become ready so far: the first layer, the one after the last, and the number of tokens."""
        entries = [entry for entry in self.cache.timeline.read() if entry.kind is kv.EntryKind.READY]
        return [(entry.first_layer, entry.end_layer, entry.end_token) for entry in entries]


class Ends(NamedTuple):
    producer: Prefill
    consumer: Rank

    def begin(self) -> bytes:
        """Offers and takes a sequence of which nothing is ready."""
        id = kv.new_id()
        self.producer.cache.offer(id, SOURCE_IDS)
        peers = [self.consumer.engine.connect(self.producer.engine.address, 10)]
        self.consumer.cache.take(id, peers, TARGET_IDS, TOKENS, layers=True)
        return id

    def still(self, layers: int) -> None:
        """Checks that nothing happens for a while, and that the consumer has these layers and no others."""
        assert self.producer.cache.wait(0.1) is None and self.consumer.cache.wait(0) is None
        self.consumer.tensors.check(TARGET_IDS, range(TOKENS), layers)

    def come(self, layers: int) -> None:
        """Waits until the consumer has been told of this many layers."""
        told = 0
        while told < layers:
            event = self.consumer.cache.wait(20)
            assert event is not None and event.kind is kv.LAYERS, event
            told = event.layers
        assert told == layers

    def whole(self, id: bytes) -> None:
        event = self.consumer.end(id)
        assert (event.kind, event.valid_tokens) == (kv.RECEIVED, TOKENS)
        assert self.producer.end(id).kind is kv.SENT
        self.consumer.tensors.check(TARGET_IDS, range(TOKENS))


@pytest.fixture(scope="module", params=[CUDA, ASCEND], ids=by_name)
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    """Checks at the end that all objects have been freed, ferry's included."""
    made = Program(request.param)
    yield made
    gc.collect()
    assert made.close() == 0


@pytest.fixture
def ends(program: Program) -> Iterator[Ends]:
    settings: dict[str, Any] = program.library.settings()
    with Prefill(program) as producer, Rank(settings=settings) as consumer:
        yield Ends(producer, consumer)


of_cuda = pytest.mark.parametrize("program", [CUDA], indirect=True, ids=by_name)

POINTS: dict[str, Callable[[Library, Stream], Any]] = {
    "stream": lambda library, stream: (library.stream, stream.handle),
    "stream of torch": lambda library, stream: Has(f"{library.word}_stream", stream.handle),
}
POINTS_OF_CUDA: dict[str, Callable[[Library, Stream], Any]] = {
    "number": lambda _, stream: stream.record(),
    "event": lambda library, stream: (library.event, stream.record()),
    "event of torch": lambda _, stream: Has("cuda_event", stream.record()),
    "__cuda_stream__": lambda _, stream: Protocol(stream.handle),
}


def comes_behind(ends: Ends, point: Callable[[Library, Stream], Any]) -> None:
    """Checks that each layer comes when its stream has computed it and those before it have come."""
    producer, id = ends.producer, ends.begin()
    for layer, stream in enumerate(producer.streams):
        producer.cache.ready_after(id, TOKENS, point(producer.program.library, stream), layer)
    producer.cache.seal(id, TOKENS)
    ends.still(0)
    producer.streams[1].go()
    producer.streams[1].wait()
    ends.still(0)
    assert producer.ready() == []
    producer.streams[0].go()
    ends.come(2)
    ends.still(2)
    assert producer.ready() == [(0, 1, TOKENS), (1, 2, TOKENS)]
    producer.streams[2].go()
    ends.come(LAYERS)
    ends.whole(id)


@pytest.mark.parametrize("point", POINTS)
def test_layers_come_behind_the_work_of_streams(ends: Ends, point: str) -> None:
    comes_behind(ends, POINTS[point])


@of_cuda
@pytest.mark.parametrize("point", POINTS_OF_CUDA)
def test_layers_come_behind_events_of_cuda(ends: Ends, point: str) -> None:
    comes_behind(ends, POINTS_OF_CUDA[point])


@of_cuda
def test_an_event_may_be_recorded_anew_and_all_layers_be_ready_behind_it(ends: Ends) -> None:
    producer, id = ends.producer, ends.begin()
    first, second, _ = producer.streams
    event = first.record()
    # The tokens of the first block, in all layers, wait for the first stream alone.
    producer.cache.ready_after(id, 16, event)
    cuda = producer.program.functions
    assert cuda.cuEventRecord(ctypes.c_void_p(event), ctypes.c_void_p(second.handle)) == 0
    producer.cache.ready_after(id, TOKENS, Has("cuda_event", event), (0, 2))
    producer.cache.ready(id, TOKENS, 2)
    producer.cache.seal(id, TOKENS)
    ends.still(0)
    first.go()
    while not producer.ready():
        assert producer.cache.wait(0.01) is None
    assert producer.ready() == [(0, LAYERS, 16)]
    producer.streams[2].go()
    producer.streams[2].wait()
    second.go()
    ends.come(LAYERS)
    assert producer.ready()[1:] == [(0, 2, TOKENS), (2, LAYERS, TOKENS)]
    assert ends.consumer.end(id).kind is kv.RECEIVED and producer.end(id).kind is kv.SENT


@of_cuda
def test_work_that_fails_fails_the_offer(ends: Ends) -> None:
    producer, id = ends.producer, ends.begin()
    producer.cache.ready_after(id, TOKENS, producer.streams[0].record())
    producer.cache.seal(id, TOKENS)
    ends.still(0)
    producer.program.set("FERRY_STANDIN_FAULT", "cuEventQuery:*:700")
    try:
        event = producer.end(id)
    finally:
        producer.program.set("FERRY_STANDIN_FAULT", "")
    assert event.kind is kv.FAILED and event.status is not ferry.Status.OK
    assert event.message.startswith("the work before an event of the producer's device failed: ")
    taken = ends.consumer.end(id)
    assert (taken.kind, taken.valid_tokens) == (kv.FAILED, 0)
    producer.streams[0].go()
    ends.still(0)


@of_cuda
def test_an_offer_that_ends_waits_for_no_event(ends: Ends) -> None:
    producer, id = ends.producer, ends.begin()
    producer.cache.ready_after(id, TOKENS, producer.streams[0].record())
    producer.cache.cancel_offer(id)
    assert producer.end(id).kind is kv.CANCELLED
    assert ends.consumer.end(id).kind is kv.FAILED


@of_cuda
def test_events_and_layers_that_are_none_are_named(ends: Ends) -> None:
    producer, id = ends.producer, ends.begin()
    event = producer.streams[0].record()

    def refused(event: object, tokens: int = TOKENS, layers: Any = None) -> str:
        with pytest.raises(ferry.InvalidError) as caught:
            producer.cache.ready_after(id, tokens, event, layers)
        return str(caught.value)

    assert "event must be an event or a stream " in refused("7")
    assert "event: -1 is no handle" in refused(-1)
    assert "event: 5 is no StartAfter" in refused((5, event))
    assert "event is 0" in refused(0)
    assert "event.cuda_event is 0: the event has not been recorded" in refused(Has("cuda_event", 0))
    assert "layers: 0 to 4 is no range of the 3 layers" in refused(event, layers=(0, 4))
    assert "tokens must be 0 to 2**64 - 1" in refused(event, tokens=2**64)
    with pytest.raises(ferry.EngineError, match="switched off") as caught:
        producer.cache.ready_after(id, TOKENS, Has("npu_stream", event))
    assert caught.value.status == ferry.Status.UNAVAILABLE
    for stream in producer.streams:
        stream.go()
        stream.wait()
    producer.cache.ready_after(id, TOKENS, event)
    producer.cache.seal(id, TOKENS)
    ends.come(LAYERS)
    ends.whole(id)


@pytest.mark.parametrize("program", [ASCEND], indirect=True, ids=by_name)
def test_an_event_of_ascend_is_refused_for_its_stream(ends: Ends) -> None:
    id, event = ends.begin(), ends.producer.streams[0].record()
    with pytest.raises(ferry.UnsupportedError, match="stream"):
        ends.producer.cache.ready_after(id, TOKENS, Has("npu_event", event))
