"""Events of a cache: by poll, wait, a descriptor and in event loops; and all ways in which handoffs end."""

from __future__ import annotations

import asyncio
import gc
import math
import pickle
import re
import select
import threading
import time
import weakref
from collections.abc import Iterator
from typing import NamedTuple

import pytest

np = pytest.importorskip("numpy")

from conftest import interrupted, ringing  # noqa: E402
from kv_workers import LAYERS, Rank  # noqa: E402

import ferry  # noqa: E402
from ferry import kv  # noqa: E402
from ferry._abi import library  # noqa: E402
from ferry.kv._abi import CCacheEvent  # noqa: E402

SOURCE_IDS, TARGET_IDS = [5, 0, 3], [1, 6, 4]
TOKENS = 40


class Two(NamedTuple):
    producer: Rank
    consumer: Rank
    peers: list[ferry.Peer]

    def take(self, id: bytes, **options: object) -> None:
        self.consumer.cache.take(id, self.peers, TARGET_IDS, TOKENS, **options)  # type: ignore[arg-type]


@pytest.fixture
def two() -> Iterator[Two]:
    with Rank() as producer, Rank() as consumer:
        yield Two(producer, consumer, [consumer.engine.connect(producer.engine.address, 10)])


def test_ids_are_drawn_and_travel_as_text() -> None:
    drawn = {kv.new_id() for _ in range(100)}
    assert len(drawn) == 100 and {len(id) for id in drawn} == {16}
    for id in drawn:
        assert str(id) == f"{id}" == id.hex() and len(str(id)) == 32
        for same in (kv.Id.parse(str(id)), kv.Id.parse(str(id).upper()), pickle.loads(pickle.dumps(id))):
            assert type(same) is kv.Id and same == id == bytes(id)
        # Whoever reads a log must not be able to take the offer.
        assert repr(id) == f"<ferry.kv.Id {str(id)[:8]}...>"
    for wrong in ("", "0" * 31, "0" * 33, "g" * 32, "0" * 31 + "\0"):
        with pytest.raises(ferry.InvalidError):
            kv.Id.parse(wrong)
    for size in (0, 15, 17):
        with pytest.raises(ferry.InvalidError, match="id must be 16 bytes"):
            kv.Id(bytes(size))


def test_events_in_a_loop(two: Two) -> None:
    two.take(id := kv.new_id(), layers=True)

    async def main() -> list[kv.Event]:
        two.producer.offer(id, SOURCE_IDS, TOKENS)
        found = []
        async for event in two.consumer.cache:
            found.append(event)
            if event.terminal:
                return found
        raise AssertionError("the events ended")

    *layers, last = asyncio.run(asyncio.wait_for(main(), 20))
    assert {event.kind for event in layers} <= {kv.LAYERS} and last.kind is kv.RECEIVED
    assert type(last.id) is kv.Id and last.id == id
    assert repr(last) == f"<ferry.kv.Event RECEIVED, id {id!r}, valid_tokens {TOKENS}>"
    assert select.select([two.consumer.cache.fd], [], [], 0)[0] == []


def test_poll_and_wait(two: Two) -> None:
    cache = two.consumer.cache
    assert cache.poll() is None
    assert cache.wait(0) is None
    began = time.monotonic()
    assert cache.wait(0.25) is None
    assert 0.25 <= time.monotonic() - began < 10
    with pytest.raises(ferry.InvalidError, match="timeout"):
        cache.wait(-1)
    id = kv.new_id()
    two.take(id)
    two.producer.offer(id, SOURCE_IDS, TOKENS)
    event = cache.wait()
    assert event.kind is kv.RECEIVED
    while (sent := two.producer.cache.poll()) is None:
        time.sleep(0.01)
    assert sent.kind is kv.SENT and sent.id == id


def test_waiting_leaves_the_interpreter_to_others(two: Two) -> None:
    """Another thread runs while one waits, and a signal ends the wait."""
    found: list[kv.Event | None] = []
    thread = threading.Thread(target=lambda: found.append(two.producer.cache.wait(20)))
    thread.start()
    id = kv.new_id()
    two.producer.cache.offer(id, SOURCE_IDS)
    two.producer.cache.cancel_offer(id)
    thread.join(20)
    (event,) = found
    assert event is not None and event.kind is kv.CANCELLED

    with ringing(0.1):
        two.producer.cache.wait(math.inf)


def test_a_signal_costs_no_event(two: Two) -> None:
    """The signal comes while the library waits. Its handler raises when the library has taken the event."""
    cache = two.producer.cache
    cache.offer(id := kv.new_id(), SOURCE_IDS)
    later = threading.Timer(0.05, cache.cancel_offer, (id,))
    later.start()
    with ringing(0.02):
        cache.wait(math.inf)
    event = cache.wait(5)
    assert event is not None and event.id == id
    later.join()


def test_an_event_that_is_kept_comes_first_and_wakes(two: Two) -> None:
    cache = two.producer.cache

    def abort() -> bytes:
        cache.offer(id := kv.new_id(), SOURCE_IDS)
        cache.cancel_offer(id)
        assert select.select([cache], [], [], 20)[0] == [cache]
        return id

    first = abort()
    with interrupted("ferry_kv_wait"):
        cache.wait(20)
    second = abort()
    assert [event.id for event in (cache.poll(), cache.poll()) if event] == [first, second]
    assert cache.poll() is None

    async def main() -> None:
        task = asyncio.create_task(cache.event())
        await asyncio.sleep(0.01)
        assert not task.done()
        third = abort()
        with interrupted("ferry_kv_poll"):
            cache.poll()
        # Taken before the loop looked: the descriptor is not readable.
        assert select.select([cache], [], [], 0) == ([], [], [])
        assert (await task).id == third

    run(main())


def test_the_descriptor(two: Two) -> None:
    cache = two.producer.cache
    assert cache.poll() is None
    assert select.select([cache], [], [], 0) == ([], [], [])
    ids = [kv.new_id() for _ in range(3)]
    for id in ids:
        cache.offer(id, SOURCE_IDS)
        cache.cancel_offer(id)
    assert select.select([cache], [], [], 20)[0] == [cache]
    found: list[bytes] = []
    while len(found) < 3:
        select.select([cache], [], [], 20)
        while (event := cache.poll()) is not None:
            found.append(event.id)
    assert found == ids
    assert select.select([cache], [], [], 0) == ([], [], [])
    cache.close(10)
    assert select.select([cache], [], [], 0)[0] == [cache]


def run(main: object) -> None:
    asyncio.run(asyncio.wait_for(main, 60))  # type: ignore[arg-type]


def test_asyncio(two: Two) -> None:
    """Both sides in one loop, layer by layer; the loop goes on meanwhile. Then again, in another loop."""

    async def produce(id: bytes) -> kv.Event:
        two.producer.cache.offer(id, SOURCE_IDS)
        for layer in range(LAYERS):
            await asyncio.sleep(0.01)
            two.producer.tensors.fill(layer, SOURCE_IDS, range(TOKENS))
            two.producer.cache.ready(id, TOKENS, layer)
        two.producer.cache.seal(id, TOKENS)
        return await two.producer.cache.event()

    async def consume(id: bytes) -> kv.Event:
        two.take(id, layers=True)
        layers = []
        while not (event := await two.consumer.cache.event()).terminal:
            layers.append(event.layers)
        assert layers == sorted(set(layers)) and layers[-1] == LAYERS
        two.consumer.tensors.check(TARGET_IDS, range(TOKENS))
        return event

    async def main() -> None:
        id = kv.new_id()
        sent, received = await asyncio.gather(produce(id), consume(id))
        assert (sent.kind, received.kind, sent.id, received.id) == (kv.SENT, kv.RECEIVED, id, id)

    run(main())
    run(main())


def test_several_coroutines_and_threads_share_the_events(two: Two) -> None:
    cache = two.producer.cache
    ids = [kv.new_id() for _ in range(30)]

    async def main() -> None:
        waiting = [asyncio.create_task(cache.event()) for _ in range(30)]
        cancelled = asyncio.create_task(cache.event())
        await asyncio.sleep(0)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

        def produce() -> None:
            for id in ids:
                cache.offer(id, SOURCE_IDS)
                cache.cancel_offer(id)

        await asyncio.to_thread(produce)
        found = [event.id for event in await asyncio.gather(*waiting)]
        assert sorted(found) == sorted(ids)
        assert not cache._waiters._waiting

    run(main())


def test_a_loop_watches_only_while_a_coroutine_waits(two: Two) -> None:
    cache = two.producer.cache
    failures: list[dict[str, object]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: failures.append(context))
        for is_cancelled in (False, True):
            task = asyncio.create_task(cache.event())
            await asyncio.sleep(0.01)
            cache.offer(id := kv.new_id(), SOURCE_IDS)
            cache.cancel_offer(id)
            select.select([cache], [], [], 20)
            await asyncio.sleep(0)
            # The loop has found the descriptor readable, and looks at it after this.
            if is_cancelled:
                task.cancel()
            (ended,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(ended, asyncio.CancelledError if is_cancelled else kv.Event)
            assert not loop.remove_reader(cache.fileno())
        # A coroutine that is cancelled takes no event with it.
        assert (await cache.event()).id == id

    run(main())
    assert failures == []


def test_closing_wakes_who_waits(two: Two) -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(two.producer.cache.event()) for _ in range(2)]
        tasks += [asyncio.create_task(two.consumer.cache.event())]
        await asyncio.sleep(0.01)
        await asyncio.to_thread(two.producer.cache.close, 10)
        await asyncio.to_thread(two.consumer.engine.close, 10)
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(ended, ferry.ClosedError)

    run(main())


def test_a_thread_that_waits_learns_of_the_close(two: Two) -> None:
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            two.consumer.cache.wait(30)
        except ferry.ClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    two.consumer.cache.close(10)
    thread.join(20)
    assert not thread.is_alive() and len(raised) == 1


def test_abort(two: Two) -> None:
    id = kv.new_id()
    two.take(id)
    two.producer.cache.offer(id, SOURCE_IDS)
    two.producer.cache.cancel_offer(id)
    aborted = two.producer.end(id)
    assert (aborted.kind, aborted.status) == (kv.CANCELLED, ferry.Status.CANCELLED)
    assert (aborted.peer, aborted.rank) == (None, None)
    failed = two.consumer.end(id)
    assert failed.kind is kv.FAILED and failed.status != ferry.Status.OK and failed.message
    assert (failed.peer, failed.rank) == (two.peers[0], 0)
    with pytest.raises(ferry.StaleError):
        two.producer.cache.cancel_offer(id)
    with pytest.raises(ferry.StaleError):
        two.producer.cache.ready(id, 16)
    with pytest.raises(ferry.InvalidError, match="id"):
        two.producer.cache.offer(id, SOURCE_IDS)


def test_cancel_a_take_without_an_offer(two: Two) -> None:
    id = kv.new_id()
    two.take(id)
    state = two.consumer.cache.state(id)
    assert (state.kind, state.valid_tokens, state.event) == (kv.StateKind.TAKING, 0, None)
    two.consumer.cache.cancel_take(id)
    event = two.consumer.end(id)
    assert (event.kind, event.status) == (kv.CANCELLED, ferry.Status.CANCELLED)
    assert two.consumer.cache.state(id).event is kv.CANCELLED
    with pytest.raises(ferry.StaleError):
        two.consumer.cache.cancel_take(id)
    assert two.consumer.cache.state(kv.new_id()).kind is kv.StateKind.UNKNOWN


def test_a_lease_ends(two: Two) -> None:
    id = kv.new_id()
    two.producer.offer(id, SOURCE_IDS, TOKENS, lease=0.05)
    assert two.producer.cache.state(id).sealed
    event = two.producer.end(id)
    assert (event.kind, event.status) == (kv.EXPIRED, ferry.Status.TIMEOUT)


def test_a_deadline_ends(two: Two) -> None:
    for deadline in (0, 0.05):
        id = kv.new_id()
        two.take(id, deadline=deadline)
        event = two.consumer.end(id)
        assert (event.kind, event.status) == (kv.FAILED, ferry.Status.TIMEOUT)


def test_reclaim(two: Two) -> None:
    cache = two.producer.cache
    ids = [kv.new_id() for _ in range(3)]
    for at, id in enumerate(ids):
        two.producer.offer(id, [2 * at, 2 * at + 1], 32, lease=30 - at)
    assert cache.reclaim(3) == 4
    for id in (ids[2], ids[1]):
        event = two.producer.end(id)
        assert (event.kind, event.status) == (kv.EXPIRED, ferry.Status.LIMIT)
    assert cache.state(ids[0]).kind is kv.StateKind.OFFERED
    assert cache.unfenced_blocks == 0


def test_close_with_open_offers_and_takes(two: Two) -> None:
    ids = [kv.new_id() for _ in range(3)]
    two.producer.cache.offer(ids[0], SOURCE_IDS)
    two.producer.offer(ids[1], [7, 8], 32)
    two.consumer.cache.take(ids[2], two.peers, TARGET_IDS, TOKENS)
    two.consumer.cache.close(10)
    two.producer.cache.close(10)
    two.producer.cache.close()
    ended = [two.producer.cache.wait(0), two.producer.cache.poll(), two.consumer.cache.poll()]
    assert sorted(event.id for event in ended if event) == sorted(ids)
    for event in ended:
        assert event is not None and (event.kind, event.status) == (kv.CANCELLED, ferry.Status.CLOSED)
    for use in (
        lambda: two.producer.cache.poll(),
        lambda: two.producer.cache.wait(1),
        lambda: two.producer.cache.offer(kv.new_id(), [1]),
        lambda: two.producer.cache.extend(ids[0], [1]),
        lambda: two.producer.cache.ready(ids[0], 1),
        lambda: two.producer.cache.seal(ids[0], 1),
        lambda: two.producer.cache.cancel_offer(ids[0]),
        lambda: two.producer.cache.reclaim(1),
        lambda: two.consumer.cache.take(kv.new_id(), two.peers, [1], 1),
        lambda: two.consumer.cache.cancel_take(ids[2]),
    ):
        with pytest.raises(ferry.ClosedError):
            use()
    assert two.producer.cache.state(ids[0]).event is kv.CANCELLED


def test_events_are_released(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each once, and only when its list and its text have been read."""
    release = library.ferry_kv_event_release
    released: list[tuple[int, int]] = []

    def watched(address: int) -> None:
        found = CCacheEvent.from_address(address)
        released.append((found.untrusted_count, found.message_length))
        release(address)
        assert found.untrusted is None and found.message is None

    monkeypatch.setattr(library, "ferry_kv_event_release", watched)
    two.take(id := kv.new_id(), layers=True)
    two.producer.cache.offer(id, SOURCE_IDS)
    two.producer.cache.ready(id, TOKENS, 0)
    event = two.consumer.cache.wait(20)
    assert event is not None and event.kind is kv.LAYERS
    two.producer.cache.cancel_offer(id)
    event = two.consumer.end(id)
    assert sorted(event.untrusted) == sorted((0, block) for block in TARGET_IDS)
    assert released == [(0, 0), (len(TARGET_IDS), len(event.message))] and event.message


def test_numbers(two: Two) -> None:
    """What is under way, what has moved, and how handoffs have ended."""
    sent, received = two.producer.cache, two.consumer.cache
    assert set(sent.stats()) == {0}
    two.take(id := kv.new_id())
    assert received.stats().takes == 1
    two.producer.offer(id, SOURCE_IDS, TOKENS)
    two.consumer.end(id)
    two.producer.end(id)
    moved = LAYERS * two.consumer.tensors.codes(0, range(TOKENS)).nbytes
    assert (sent.stats().bytes_sent, received.stats().bytes_received) == (moved, moved)
    assert (sent.stats().ended_sent, received.stats().ended_received) == (1, 1)
    assert received.stats().takes == 0
    two.take(id := kv.new_id(), deadline=0)
    two.consumer.end(id)
    assert received.stats().ended_failed == received.ended_failed(ferry.Status.TIMEOUT) == 1
    assert received.ended_failed(ferry.Status.STALE) == 0
    assert re.search(r"^ferry_kv_takes 0$", received.metrics(), re.MULTILINE), received.metrics()
    for wrong in (1, ferry.Status.STALE - 2**32):
        with pytest.raises(ferry.InvalidError, match="status"):
            received.ended_failed(wrong)
    received.close(10)
    assert received.stats().ended_received == 1 and "ferry_kv_" in received.metrics()


def test_the_cache_keeps_what_it_needs_and_no_longer() -> None:
    """The engine, the memory and the layout are dropped first; the cache goes on, and leaves nothing."""
    rank, consumer = Rank(), Rank()
    cache, tensors, engine = rank.cache, rank.tensors, weakref.ref(rank.engine)
    peers = [consumer.engine.connect(rank.engine.address, 10)]
    del rank
    tensors.layout.close()
    gc.collect()
    id = kv.new_id()
    consumer.cache.take(id, peers, TARGET_IDS, TOKENS)
    cache.offer(id, np.array(SOURCE_IDS, np.uint32))
    for layer in range(LAYERS):
        tensors.fill(layer, SOURCE_IDS, range(TOKENS))
    cache.ready(id, TOKENS)
    cache.seal(id, TOKENS)
    assert consumer.end(id).kind is kv.RECEIVED
    consumer.tensors.check(TARGET_IDS, range(TOKENS))
    assert engine() is not None
    # An offer is open; nobody closes the cache.
    cache.offer(kv.new_id(), SOURCE_IDS)
    del cache, tensors, layer
    gc.collect()
    assert engine() is None
    consumer.cache.close(10)
    consumer.engine.close(10)
