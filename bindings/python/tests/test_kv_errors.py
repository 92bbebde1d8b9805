"""Bad arguments of a cache: each is refused as the package's error, by name, and changes nothing."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from kv_workers import BLOCKS, Rank, Tensors  # noqa: E402

import ferry  # noqa: E402
from ferry import kv  # noqa: E402

ID = kv.new_id()


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[Rank, list[ferry.Peer]]]:
    with Rank() as producer, Rank() as consumer:
        yield consumer, [consumer.engine.connect(producer.engine.address, 10)]


def test_open() -> None:
    with Rank() as rank, ferry.Engine() as other:
        engine, layout, memory = rank.engine, rank.tensors.layout, rank.memory
        with pytest.raises(ferry.BusyError, match="channel 1"):
            kv.Cache(engine, layout, memory)
        with pytest.raises(ferry.InvalidError, match=r"memory\[0\] is no registered memory of the engine"):
            kv.Cache(other, layout, memory)
        with pytest.raises(ferry.InvalidError, match=r"memory\[1\]"):
            kv.Cache(engine, layout, [memory, bytes(8)])  # type: ignore[list-item]
        with pytest.raises(ferry.InvalidError, match="silence_ms"):
            kv.Cache(engine, layout, memory, silence_ms=-1)
        rank.cache.close(10)
        with pytest.raises(ferry.InvalidError, match="memory"):
            kv.Cache(engine, layout, [])
        small = engine.alloc(4096)
        with pytest.raises(ferry.InvalidError, match="layers.0"):
            kv.Cache(engine, layout, [small])
        freed = engine.register(bytearray(4096))
        freed.unregister()
        with pytest.raises(ferry.Error) as caught:
            kv.Cache(engine, layout, [memory, freed])
        assert caught.value.status in (ferry.Status.STALE, ferry.Status.NOT_REGISTERED)
        # A second cache after the first, over two regions.
        buffer = bytearray(Tensors.size(16))
        region = engine.register(buffer)
        tensors = Tensors(buffer)
        with kv.Cache(engine, tensors.layout, [small, region], silence_ms=500) as again:
            again.offer(kv.new_id(), [1, 2])
            assert repr(again) == "<ferry.kv.Cache of rank 0 of 1, 1 offers, 0 takes>"
            with pytest.raises(TypeError, match="cannot be pickled"):
                pickle.dumps(again)
        assert repr(again) == "<ferry.kv.Cache of rank 0 of 1, 0 offers, 0 takes, closed>"
        with pytest.raises(ferry.ClosedError, match="the cache is closed"):
            again.offer(kv.new_id(), [1, 2])
        layout.close()
        with pytest.raises(ferry.ClosedError, match="the layout is closed"):
            kv.Cache(engine, layout, memory)
        engine.close()
        with pytest.raises(ferry.ClosedError):
            kv.Cache(engine, tensors.layout, memory)


BAD_BLOCKS: list[tuple[Any, str]] = [
    ([BLOCKS], f"block.* {BLOCKS}"),
    ([1, 1], "twice"),
    ([-1], "blocks"),
    ([2**32], f"blocks: {2**32} is no id of a block"),
    (np.array([-1], np.int64), "blocks: -1 is no id of a block"),
    ([1.5], "blocks"),
    ("abc", "blocks"),
    (7, "blocks must be block ids, not 7"),
    (None, "blocks must be block ids, not None"),
    ([[1], [2]], "group"),
    (kv.BlockList([1], first_token=8), "first_token|first token"),
    (kv.BlockList([1], first_token=-1), "blocks.first_token must be 0 to"),
    (np.array([[1, 2]], np.float32), "one-dimensional, contiguous"),
]


@pytest.mark.parametrize(("blocks", "names"), BAD_BLOCKS)
def test_blocks(two: tuple[Rank, list[ferry.Peer]], blocks: Any, names: str) -> None:
    rank, peers = two
    id = kv.new_id()
    with pytest.raises(ferry.InvalidError, match=names):
        rank.cache.offer(id, blocks)
    with pytest.raises(ferry.InvalidError, match=names):
        rank.cache.take(id, peers, blocks, 1)
    assert rank.cache.state(id).kind is kv.StateKind.UNKNOWN
    if not isinstance(blocks, kv.BlockList):
        rank.cache.offer(id, [])
        with pytest.raises(ferry.InvalidError, match=names):
            rank.cache.extend(id, blocks)
        rank.cache.cancel_offer(id)
        assert rank.end(id).kind is kv.CANCELLED


Call = Callable[[kv.Cache, list[ferry.Peer]], Any]

BAD_CALLS: list[tuple[Call, str]] = [
    (lambda cache, peers: cache.offer(b"short", [1]), "id must be 16 bytes, not b'short'"),
    (lambda cache, peers: cache.offer("x" * 16, [1]), "id must be 16 bytes"),  # type: ignore[arg-type]
    (lambda cache, peers: cache.offer(16, [1]), "id must be 16 bytes"),  # type: ignore[arg-type]
    (lambda cache, peers: cache.offer(ID, [1], takers=0), "takers must be at least 1"),
    (lambda cache, peers: cache.offer(ID, [1], takers=65), "takers"),
    (lambda cache, peers: cache.offer(ID, [1], takers=2**32 + 1), "takers must be 0 to"),
    (lambda cache, peers: cache.offer(ID, [1], only=[]), "only names no peer"),
    (lambda cache, peers: cache.offer(ID, [1], only=[7]), r"only\[0\] is no peer"),  # type: ignore[list-item]
    (lambda cache, peers: cache.offer(ID, [1], lease=0), "lease must be above 0"),
    (lambda cache, peers: cache.offer(ID, [1], lease=math.inf), "lease must be above 0"),
    (lambda cache, peers: cache.offer(ID, [1], lease=math.nan), "lease must be above 0"),
    (lambda cache, peers: cache.take(ID[:8], peers, [1], 1), "id must be 16 bytes"),
    (lambda cache, peers: cache.take(ID, [], [1], 1), "producer"),
    (lambda cache, peers: cache.take(ID, [None], [1], 1), r"producers\[0\]"),  # type: ignore[list-item]
    (lambda cache, peers: cache.take(ID, peers, [1], 17), "block"),
    (lambda cache, peers: cache.take(ID, peers, [1], -1), "tokens must be 0 to"),
    (lambda cache, peers: cache.take(ID, peers, [1], 2**64), "tokens must be 0 to"),
    (lambda cache, peers: cache.take(ID, peers, [1], 8, skip_tokens=9), "skip"),
    (lambda cache, peers: cache.take(ID, peers, [1], 8, skip_tokens=-9), "skip_tokens"),
    (lambda cache, peers: cache.take(ID, peers, [1], 8, mode=3), "mode: one of AUTO, PULL, PUSH .*not 3"),
    (lambda cache, peers: cache.take(ID, peers, [1], 8, mode=-1), "mode: one of AUTO, PULL, PUSH .*not -1"),
    (lambda cache, peers: cache.take(ID, peers, [1], 8, taker=-1), "taker must be 0 to"),
    (lambda cache, peers: cache.take(ID, peers, [1], 8, taker=1.0), "taker must be an integer"),  # type: ignore[arg-type]
    (lambda cache, peers: cache.take(ID, peers, [1], 8, deadline=-1), "deadline"),
    (lambda cache, peers: cache.take(ID, peers, [1], 8, deadline=math.nan), "deadline"),
    (lambda cache, peers: cache.extend(ID, [1]), "id"),
    (lambda cache, peers: cache.ready(ID, 8), "id"),
    (lambda cache, peers: cache.ready(ID, -8), "tokens must be 0 to"),
    (lambda cache, peers: cache.ready(ID, 8, (1,)), "layers must be None"),  # type: ignore[arg-type]
    (lambda cache, peers: cache.ready(ID, 8, -1), "layers must be 0 to"),
    (lambda cache, peers: cache.ready(ID, 8, (0, 2**32)), r"layers\[1\]"),
    (lambda cache, peers: cache.seal(ID, 8), "id"),
    (lambda cache, peers: cache.seal(ID, 2**64), "tokens must be 0 to"),
    (lambda cache, peers: cache.cancel_offer(ID), "id"),
    (lambda cache, peers: cache.cancel_take(ID), "id"),
    (lambda cache, peers: cache.reclaim(-1), "blocks must be 0 to"),
    (lambda cache, peers: cache.state(b""), "id must be 16 bytes"),
    (lambda cache, peers: cache.close(-1), "timeout"),
]


@pytest.mark.parametrize("at", range(len(BAD_CALLS)))
def test_calls(two: tuple[Rank, list[ferry.Peer]], at: int) -> None:
    rank, peers = two
    use, names = BAD_CALLS[at]
    with pytest.raises(ferry.InvalidError, match=names):
        use(rank.cache, peers)
    assert rank.cache.state(ID).kind is kv.StateKind.UNKNOWN
    assert rank.cache.poll() is None


def test_layers_in_order_and_as_far_as_the_blocks(two: tuple[Rank, list[ferry.Peer]]) -> None:
    cache = two[0].cache
    id = kv.new_id()
    cache.offer(id, [1, 2])
    with pytest.raises(ferry.InvalidError, match="block"):
        cache.ready(id, 33)
    with pytest.raises(ferry.InvalidError, match="layer"):
        cache.ready(id, 32, 1)
    cache.ready(id, 32, 0)
    with pytest.raises(ferry.InvalidError, match="layer"):
        cache.ready(id, 32, 0)
    with pytest.raises(ferry.InvalidError, match="layer"):
        cache.ready(id, 32, (1, 4))
    with pytest.raises(ferry.InvalidError, match="token"):
        cache.seal(id, 31)
    cache.ready(id, 32, (1, 3))
    cache.seal(id, 32)
    with pytest.raises(ferry.InvalidError, match="sealed"):
        cache.seal(id, 32)
    with pytest.raises(ferry.InvalidError, match="sealed"):
        cache.extend(id, [3])
    cache.cancel_offer(id)
    assert two[0].end(id).kind is kv.CANCELLED


def test_peers_of_another_engine_and_lost_ones() -> None:
    with Rank() as producer, Rank() as consumer, ferry.Engine() as other:
        elsewhere = other.connect(producer.engine.address, 10)
        with pytest.raises(ferry.InvalidError, match=r"producers\[0\] is no peer of the cache's engine"):
            consumer.cache.take(kv.new_id(), [elsewhere], [1], 1)
        lost = consumer.engine.connect(producer.engine.address, 10)
        lost.close(10)
        id = kv.new_id()
        consumer.cache.take(id, [lost], [1], 1)
        event = consumer.end(id)
        assert event.kind is kv.PEER_LOST and event.status != ferry.Status.OK, event


def test_ids_may_be_bytearrays(two: tuple[Rank, list[ferry.Peer]]) -> None:
    id = kv.new_id()
    two[0].cache.offer(bytearray(id), [1])  # type: ignore[arg-type]
    two[0].cache.cancel_offer(id)
    assert two[0].end(id).id == id
