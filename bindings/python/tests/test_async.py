"""Transfers, connects and queues in an event loop, through the queue's descriptor."""

from __future__ import annotations

import asyncio
import errno
import math
import time
from collections.abc import Coroutine
from typing import Any

import pytest
from conftest import LENGTH, Enough, Long, Pair, Shown, positions, stuck

import ferry


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, 60))


def test_write_and_read(pair: Pair) -> None:
    async def main() -> None:
        pair.local.view[:] = positions(LENGTH, 1)
        pieces = [pair.request(4096, place) for place in range(0, LENGTH, 4096)]
        results = await asyncio.gather(*(pair.peer.write_async([piece]) for piece in pieces))
        assert all(result.state == ferry.State.DONE for result in results)
        assert bytes(pair.remote.view) == positions(LENGTH, 1)
        pair.remote.view[:] = positions(LENGTH, 2)
        await pair.peer.read_async(pieces)
        assert bytes(pair.local.view) == positions(LENGTH, 2)

    run(main())
    run(main())  # Another loop.


def test_many_loops_leave_nothing(pair: Pair) -> None:
    async def main() -> None:
        await pair.peer.write_async([pair.request(64)])

    # More than an engine may have queues.
    for _ in range(4200):
        asyncio.run(main())


def test_connect(pair: Pair) -> None:
    async def main() -> None:
        assert await pair.source.connect_async(pair.target.address, 10) == pair.peer
        with pytest.raises(ferry.UnreachableError, match="127.0.0.1:1") as refused:
            await pair.source.connect_async("127.0.0.1:1", 5)
        with pytest.raises(ferry.UnreachableError) as expected:
            pair.source.connect("127.0.0.1:1", 5)
        assert refused.value.os_error == errno.ECONNREFUSED
        assert str(refused.value) == str(expected.value)

    run(main())


def test_the_loop_goes_on_while_a_transfer_does_not(silent: Pair) -> None:
    peer, request = silent.peer, silent.request(64)
    blocker = stuck(silent)

    async def main() -> None:
        task = asyncio.create_task(peer.write_async([request], notify=b"x", deadline=math.inf))
        ticks = 0
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            await asyncio.sleep(0)
            ticks += 1
        assert ticks > 100 and not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Both are final by then, or the memory would not be the caller's.
        assert peer.info().transfers_active == 1
        with pytest.raises(ferry.TimeoutError):
            await peer.write_async([request], notify=b"x", deadline=0.05)

    run(main())
    blocker.cancel()
    with pytest.raises(ferry.CancelledError):
        blocker.wait(10)


def test_a_cancelled_task_ends_when_the_memory_is_free() -> None:
    """However often the task is cancelled: a large WRITE over TCP does not stop at once."""
    with ferry.Engine(transports="tcp") as source, ferry.Engine() as target:
        length = 64 << 20
        local, _inbox = source.alloc(length), target.alloc(length, name="inbox")
        peer = source.connect(target.address)
        inbox = peer.region("inbox")

        active_at_end = []

        async def work() -> None:
            try:
                await peer.write_async([(local.address, inbox.address, length, inbox.handle)])
            finally:
                active_at_end.append(peer.info().transfers_active)

        async def main() -> None:
            # On a busy machine the transfer may end before it is cancelled.
            while source.stats().transfers_cancelled < 5:
                sent = source.stats().send_calls
                task = asyncio.create_task(work())
                while source.stats().send_calls < sent + 10 and not task.done():
                    await asyncio.sleep(0)
                while not task.done():
                    task.cancel()
                    await asyncio.sleep(0)
                assert active_at_end.pop() == 0

        run(main())


def test_progress_is_shown_and_what_it_raises_cancels(long: Long) -> None:
    peer, requests, _ = long

    async def main() -> None:
        shown = Shown()
        with pytest.raises(Enough):
            await peer.write_async(requests, coalesce=False, progress=shown)
        shown.check()
        assert long.cancelled() == 1
        moving = asyncio.Event()
        task = asyncio.create_task(
            peer.read_async(requests, coalesce=False, progress=lambda *_: moving.set())
        )
        await moving.wait()
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)
        assert task.cancelled() and long.cancelled() == 2

    run(main())


def test_progress_ends_with_all(pair: Pair) -> None:
    async def main() -> None:
        shown: list[tuple[int, int]] = []
        await pair.peer.write_async([pair.request()], progress=lambda *at: shown.append(at))
        assert shown[-1] == (LENGTH, LENGTH)

    run(main())


def test_a_queue_of_one_s_own(pair: Pair) -> None:
    async def main() -> None:
        with pair.source.queue(transfers=True) as queue:
            first = pair.peer.submit_write([pair.request(64)], queue=queue, user_data=1)
            second = pair.peer.submit_write([pair.request(64)], queue=queue, user_data=2)
            assert (await second.wait_async()).user_data == 2
            event = await queue.next()
            assert (event.kind, event.transfer, event.user_data) == (
                ferry.EventKind.TRANSFER,
                first.handle,
                1,
            )
            assert (event.status, event.peer) == (ferry.Status.OK, pair.peer)
            assert queue.drain() == []
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(queue.next(), 0.05)
            third = pair.peer.submit_write([pair.request(64)], queue=queue)
            assert (await queue.next()).transfer == third.handle

    run(main())


def test_notifications_are_iterated(pair: Pair) -> None:
    async def main() -> None:
        with pair.target.queue(notifications=True) as queue:

            async def send() -> None:
                for number in range(200):
                    await pair.peer.write_async([pair.request(64)], notify=b"%d" % number)

            task = asyncio.create_task(send())
            found = []
            async for event in queue:
                found.append(int(event.data))
                if len(found) == 200:
                    break
            assert found == list(range(200))
            await task

    run(main())


def test_a_notification_of_a_channel_is_awaited(pair: Pair) -> None:
    async def main() -> None:
        with pair.target.queue(notifications=True, channel=2) as queue:
            await pair.peer.write_async([], notify=b"two", channel=2)
            event = await queue.next()
            assert (event.data, event.channel, event.peer) == (b"two", 2, pair.target.peers()[0])

    run(main())


def test_a_transfer_without_a_queue_cannot_be_awaited(pair: Pair) -> None:
    async def main() -> None:
        with pytest.raises(ferry.InvalidError, match="without a queue"):
            await pair.peer.submit_write([pair.request(64)]).wait_async()

    run(main())


def test_closing_the_engine_ends_the_waits(pair: Pair) -> None:
    async def main() -> None:
        queue = pair.target.queue(notifications=True)
        task = asyncio.create_task(queue.next())
        await asyncio.sleep(0)
        await asyncio.get_running_loop().run_in_executor(None, pair.target.close)
        with pytest.raises(ferry.ClosedError):
            await task

    run(main())


def test_destroying_a_queue_ends_the_waits() -> None:
    async def main() -> None:
        with ferry.Engine() as target:
            queue = target.queue(notifications=True)
            task = asyncio.create_task(queue.next())
            await asyncio.sleep(0)
            queue.close()
            with pytest.raises(ferry.StaleError):
                await task

    run(main())


def test_a_queue_that_cannot_be_destroyed_yet_goes_on(silent: Pair) -> None:
    source, peer, request = silent.source, silent.peer, silent.request(64)
    blocker = stuck(silent)

    async def main() -> None:
        queue = source.queue(transfers=True)
        transfer = peer.submit_write([request], notify=b"x", deadline=math.inf, queue=queue)
        task = asyncio.create_task(transfer.wait_async())
        await asyncio.sleep(0)
        with pytest.raises(ferry.BusyError):
            queue.close()
        transfer.cancel()
        with pytest.raises(ferry.CancelledError):
            await task
        queue.close()

    run(main())
    blocker.cancel()


def test_a_final_transfer_can_be_awaited_again(pair: Pair) -> None:
    async def main() -> None:
        with pair.source.queue(transfers=True) as queue:
            transfer = pair.peer.submit_write([pair.request(64)], queue=queue)
            for _ in range(3):
                assert (await asyncio.wait_for(transfer.wait_async(), 5)).state == ferry.State.DONE
            assert queue.drain() == []

    run(main())


def test_a_transfer_is_awaited_whose_event_another_has_taken(pair: Pair) -> None:
    async def main() -> None:
        with pair.source.queue(transfers=True) as queue:
            transfer = pair.peer.submit_write([pair.request(64)], queue=queue)
            assert (await asyncio.wait_for(queue.next(), 5)).transfer == transfer.handle
            assert (await asyncio.wait_for(transfer.wait_async(), 5)).state == ferry.State.DONE

    run(main())


def test_several_tasks_await_one_transfer(silent: Pair) -> None:
    """Together they take its one event, also if the first of them is cancelled."""
    request = silent.request(64)
    blocker = stuck(silent)

    async def main() -> None:
        with silent.source.queue(transfers=True) as queue:
            for is_cancelled in (False, True):
                transfer = silent.peer.submit_write([request], notify=b"x", deadline=math.inf, queue=queue)
                tasks = [asyncio.create_task(transfer.wait_async()) for _ in range(3)]
                await asyncio.sleep(0)
                if is_cancelled:
                    tasks[0].cancel()
                transfer.cancel()
                ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
                first = asyncio.CancelledError if is_cancelled else ferry.CancelledError
                assert isinstance(ended[0], first)
                assert all(isinstance(end, ferry.CancelledError) for end in ended[1:])
                assert queue.drain() == []

    run(main())
    blocker.cancel()


def test_tasks_gather_one_transfer(pair: Pair) -> None:
    async def main() -> None:
        with pair.source.queue(transfers=True) as queue:
            for _ in range(200):
                transfer = pair.peer.submit_write([pair.request(64)], queue=queue)
                await asyncio.wait_for(asyncio.gather(transfer.wait_async(), transfer.wait_async()), 5)
            assert queue.drain() == []

    run(main())


def test_a_wait_that_is_cancelled_with_its_event_gives_it_back(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancellation comes with the event, as from an asyncio.wait_for whose time is over just then."""

    async def main() -> None:
        with pair.source.queue(transfers=True) as queue:
            transfer = pair.peer.submit_write([pair.request(64)], queue=queue)
            task = asyncio.create_task(transfer.wait_async())
            deliver = queue._deliver

            def deliver_and_cancel(future: Any, event: ferry.Event) -> None:
                deliver(future, event)
                task.cancel()

            monkeypatch.setattr(queue, "_deliver", deliver_and_cancel)
            following = asyncio.create_task(queue.next())
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await asyncio.wait_for(following, 5)).transfer == transfer.handle
            assert (await asyncio.wait_for(transfer.wait_async(), 5)).state == ferry.State.DONE

    run(main())


def test_one_wait_that_is_cancelled_costs_no_event(pair: Pair) -> None:
    async def main() -> None:
        with pair.source.queue(transfers=True) as queue:
            for _ in range(200):
                transfer = pair.peer.submit_write([pair.request(64)], queue=queue)
                task = asyncio.create_task(transfer.wait_async())
                await asyncio.sleep(0)
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    await transfer.wait_async()
            assert queue.drain() == []

    run(main())
