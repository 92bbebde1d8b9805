"""Processes that inherit a cache by fork."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from kv_workers import Rank  # noqa: E402
from test_fork import each_is_refused, in_child  # noqa: E402

import ferry  # noqa: E402
from ferry import kv  # noqa: E402

SOURCE_IDS, TARGET_IDS, TOKENS = [5, 0, 3], [1, 6, 4], 40


def hand_over(producer: Rank, consumer: Rank) -> None:
    id = kv.new_id()
    peers = [consumer.engine.connect(producer.engine.address, 10)]
    consumer.cache.take(id, peers, TARGET_IDS, TOKENS)
    producer.offer(id, SOURCE_IDS, TOKENS)
    assert (consumer.end(id).kind, producer.end(id).kind) == (kv.RECEIVED, kv.SENT)
    consumer.tensors.check(TARGET_IDS, range(TOKENS))


def test_every_call_of_a_cache_in_a_child_is_refused() -> None:
    with Rank() as producer, Rank() as consumer:
        peers = [consumer.engine.connect(producer.engine.address, 10)]
        id = kv.new_id()
        producer.cache.offer(id, [7])
        cache = producer.cache
        calls: list[Callable[[], Any]] = [
            lambda: cache.offer(kv.new_id(), [1]),
            lambda: cache.extend(id, [1]),
            lambda: cache.ready(id, 8),
            lambda: cache.ready_after(id, 8, 7),
            lambda: cache.seal(id, 8),
            lambda: cache.retract(id, 0, 10),
            lambda: cache.retract_window(id, 0, 0, 10),
            lambda: cache.cancel_offer(id),
            lambda: cache.reclaim(1),
            lambda: consumer.cache.take(kv.new_id(), peers, [1], 8),
            lambda: cache.cancel_take(id),
            lambda: cache.poll(),
            lambda: cache.wait(10),
            lambda: cache.fileno(),
            lambda: cache.state(id),
            lambda: cache.unfenced_blocks,
            lambda: cache.stats(),
            lambda: cache.ended_failed(ferry.Status.STALE),
            lambda: cache.metrics(),
            lambda: cache.timeline.start(),
            lambda: cache.timeline.mark(id, 0, 1, 2),
            lambda: cache.timeline.read(),
            lambda: cache.timeline.stop(),
            lambda: kv.Cache(producer.engine, producer.tensors.layout, producer.memory),
        ]

        def child() -> None:
            each_is_refused(calls)
            cache.close(10)
            assert repr(cache) == "<ferry.kv.Cache CLOSED>"
            # Layouts and plans need no engine.
            layout = producer.tensors.layout
            assert kv.Layout.load(layout.export()).export() == layout.export()
            assert "0 -> 0" in kv.Plan(layout, layout).explain()

        in_child(child)
        assert cache.state(id).kind is kv.StateKind.OFFERED
        cache.cancel_offer(id)
        assert producer.end(id).kind is kv.CANCELLED
        hand_over(producer, consumer)


def test_a_child_that_drops_a_cache_disturbs_nobody() -> None:
    producer, consumer = Rank(), Rank()
    id = kv.new_id()
    producer.cache.offer(id, [7])
    process = os.fork()
    if process == 0:
        status = 1
        try:
            producer.cache.close()
            del producer, consumer
            gc.collect()
            alive = [thing for thing in gc.get_objects() if isinstance(thing, (kv.Cache, ferry.Engine))]
            status = 2 if alive else 0
        finally:
            os._exit(status)
    _, how = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(how) == 0
    assert producer.cache.state(id).kind is kv.StateKind.OFFERED
    producer.cache.cancel_offer(id)
    assert producer.end(id).kind is kv.CANCELLED
    hand_over(producer, consumer)
    for rank in (producer, consumer):
        rank.cache.close(10)
        rank.engine.close(10)


def test_a_child_has_caches_of_its_own() -> None:
    with Rank() as consumer:
        id = kv.new_id()
        read, write = os.pipe()

        def child() -> None:
            with Rank() as producer:
                os.write(write, producer.engine.address.encode())
                producer.offer(id, SOURCE_IDS, TOKENS)
                assert producer.end(id).kind is kv.SENT

        def take() -> None:
            peers = [consumer.engine.connect(os.read(read, 300).decode(), 10)]
            consumer.cache.take(id, peers, TARGET_IDS, TOKENS)
            assert consumer.end(id).kind is kv.RECEIVED

        thread = threading.Thread(target=take)
        thread.start()
        in_child(child)
        thread.join(20)
        consumer.tensors.check(TARGET_IDS, range(TOKENS))
        os.close(read)
        os.close(write)
