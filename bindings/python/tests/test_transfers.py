"""WRITE, READ, options, results, and the states of a transfer."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LENGTH, LONG, ROUNDS, Enough, Long, Pair, Shown, interrupted, positions, stuck

import ferry


def test_write_and_read_move_every_byte(pair: Pair) -> None:
    pair.local.view[:] = positions(LENGTH, 1)
    result = pair.peer.write([pair.request()])
    assert bytes(pair.remote.view) == positions(LENGTH, 1)
    assert (result.state, result.status, result.bytes_confirmed) == (
        ferry.State.DONE,
        ferry.Status.OK,
        LENGTH,
    )
    assert result.fence == ferry.Fence.CONFIRMED

    pair.remote.view[:] = positions(LENGTH, 2)
    pair.peer.read(ferry.Requests([pair.request()]))
    assert bytes(pair.local.view) == positions(LENGTH, 2)


def test_an_engine_is_its_own_peer() -> None:
    with ferry.Engine(listen_address="", transports="tcp") as engine:
        memory = engine.alloc(2 * LENGTH, name="own")
        own = engine.own_peer()
        assert own == engine.own_peer() and engine.peers() == []
        memory.view[:LENGTH] = positions(LENGTH, 4)
        result = own.write([(memory.address, memory.address + LENGTH, LENGTH)])
        assert bytes(memory.view[LENGTH:]) == positions(LENGTH, 4)
        assert result.transport == ferry.Transport.LOCAL
        queue = engine.queue(notifications=True)
        own.notify(b"to myself")
        event = queue.wait(timeout=60)
        assert event is not None and (event.peer, event.data) == (own, b"to myself")
        with pytest.raises(ferry.InvalidError, match="engine itself"):
            own.close()


def test_requests_without_a_region_and_in_pieces(pair: Pair) -> None:
    pair.local.view[:] = positions(LENGTH, 3)
    pieces = [
        (pair.local.address + place, pair.inbox.address + place, 4096) for place in range(0, LENGTH, 8192)
    ]
    result = pair.peer.write(pieces)
    assert result.requests_in == len(pieces)
    wanted = positions(LENGTH, 3)
    for place in range(0, LENGTH, 8192):
        assert bytes(pair.remote.view[place : place + 4096]) == wanted[place : place + 4096]
        assert bytes(pair.remote.view[place + 4096 : place + 8192]) == bytes(4096)


def test_a_transfer_that_is_submitted(pair: Pair) -> None:
    transfer = pair.peer.submit_write([pair.request()], user_data=77, deadline=10)
    result = transfer.wait(10)
    assert result.user_data == 77
    assert transfer.wait(0).bytes_confirmed == LENGTH
    polled = transfer.poll()
    assert polled is not None and polled.state == ferry.State.DONE
    assert [row.status for row in transfer.results()] == [ferry.Status.OK]


def test_wait_any_tells_which(pair: Pair) -> None:
    transfers = [pair.peer.submit_write([pair.request(8, 8 * place)]) for place in range(4)]
    for transfer in transfers[1:]:
        transfer.wait(10)
    assert pair.source.wait_any(transfers[2:], 10) == 0


def test_dropped_transfers_are_forgotten(silent: Pair) -> None:
    source, peer, request = silent.source, silent.peer, silent.request(64)
    stuck(silent)  # and dropped
    assert source.stats().transfers == 1
    with silent.target.queue(notifications=True) as queue:
        while peer.info().transfers_active > 0:
            queue.drain()
    # The next submission releases it.
    peer.submit_write([request]).wait()
    assert source.stats().transfers == 0


def test_options_reach_the_library(pair: Pair) -> None:
    near = [pair.request(64, 0), pair.request(64, 64)]
    assert pair.peer.write(near, coalesce=False).slices_out == 2
    assert pair.peer.write(near, ordered=True, checksum=True, acked_only=True, priority=3).slices_out == 1
    assert pair.peer.write(near, transports=[ferry.Transport.TCP]).transport == ferry.Transport.TCP
    with pytest.raises(ferry.Error) as caught:
        pair.peer.write(near, transports=[ferry.Transport.CUDA])
    assert caught.value.status == ferry.Status.UNAVAILABLE
    assert pair.peer.write([pair.request()], deadline=math.inf).state == ferry.State.DONE
    with pytest.raises(TypeError, match="sooner"):
        pair.peer.write(near, sooner=True)  # type: ignore[call-arg]


def test_threads_share_an_engine(pair: Pair) -> None:
    """Each thread writes and reads back its own part, again and again."""
    part = LENGTH // 8
    wrong: list[int] = []

    def work(place: int) -> None:
        mine = slice(place * part, (place + 1) * part)
        for turn in range(200):
            data = positions(part, 1000 * place + turn)
            pair.local.view[mine] = data
            pair.peer.write([pair.request(part, place * part)])
            if bytes(pair.remote.view[mine]) != data:
                wrong.append(place)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and pair.source.stats().transfers_done == 1600


@pytest.mark.parametrize("via", [ferry.Transport.TCP, ferry.Transport.LOCAL])
def test_progress_shows_how_far_a_transfer_is(long: Long, via: ferry.Transport) -> None:
    peer, requests, _ = long
    seen = [0]
    with peer.submit_write(requests, coalesce=False, transports=[via]) as transfer:
        while len(seen) < 4:
            confirmed, total = transfer.progress()
            assert seen[-1] <= confirmed < total == LONG * ROUNDS
            if confirmed > seen[-1]:
                seen.append(confirmed)
        transfer.cancel()
        with pytest.raises(ferry.CancelledError) as caught:
            transfer.wait()
        assert caught.value.result is not None
        assert transfer.progress() == (caught.value.result.bytes_confirmed, LONG * ROUNDS)
        assert transfer.progress().bytes_confirmed >= seen[-1]


def test_waiting_calls_show_progress_and_what_that_raises_cancels(long: Long) -> None:
    peer, requests, _ = long
    for turn, move in enumerate((peer.write, peer.read)):
        shown = Shown()
        with pytest.raises(Enough):
            move(requests, coalesce=False, progress=shown)
        shown.check()
        assert long.cancelled() == turn + 1
    shown = Shown()
    with pytest.raises(Enough):
        with peer.submit_write(requests, coalesce=False) as transfer:
            transfer.wait(progress=shown)
    shown.check()


def test_progress_ends_with_all(pair: Pair) -> None:
    shown: list[tuple[int, int]] = []
    pair.peer.write([pair.request()], progress=lambda *at: shown.append(at))
    assert shown[-1] == (LENGTH, LENGTH)
    pair.peer.write([pair.request(64), pair.request(64, 64)], progress=lambda *at: shown.append(at))
    assert shown[-1] == (128, 128)
    transfer = pair.peer.submit_write([pair.request()])
    transfer.wait()
    assert transfer.progress() == (LENGTH, LENGTH)


def test_pending_cancel_and_deadline(silent: Pair) -> None:
    source, peer, request = silent.source, silent.peer, silent.request(64)
    transfer = stuck(silent)

    assert transfer.poll() is None
    with pytest.raises(ferry.PendingError) as pending:
        transfer.results()
    assert pending.value.status == ferry.Status.PENDING
    with pytest.raises(TimeoutError):
        source.wait_any([transfer], 0)

    with pytest.raises(ferry.TimeoutError) as late:
        peer.write([request], notify=b"y", deadline=0.05)
    assert late.value.result is not None and late.value.result.state == ferry.State.TIMED_OUT
    assert isinstance(late.value, TimeoutError)

    with transfer:
        pass  # The end of the block cancels it.
    result = transfer.poll()
    assert result is not None and result.state == ferry.State.CANCELLED
    with pytest.raises(ferry.CancelledError):
        transfer.wait()


def test_a_wait_lets_other_threads_run(silent: Pair) -> None:
    """One thread sends a notification for which the peer has no room, while this thread goes on."""
    blocker = stuck(silent)
    ended: list[ferry.Error] = []

    def notify() -> None:
        try:
            silent.peer.notify(b"x", deadline=3.0)
        except ferry.Error as error:
            ended.append(error)

    thread = threading.Thread(target=notify)
    started = time.monotonic()
    thread.start()
    while time.monotonic() < started + 0.3:
        pass
    assert not ended and time.monotonic() < started + 2.5
    thread.join()
    assert ended[0].status == ferry.Status.TIMEOUT
    blocker.cancel()


def test_control_c_ends_a_wait_and_its_transfer(silent: Pair) -> None:
    source, peer, request = silent.source, silent.peer, silent.request(64)
    blocker = stuck(silent)
    main = threading.main_thread().ident
    assert main is not None
    waits: list[Callable[[], object]] = [
        lambda: blocker.wait(60),
        lambda: source.wait_any([blocker], 60),
        lambda: source.wait_all([blocker], 60),
        lambda: source.queue(peers=True).wait(60),
        lambda: peer.write([request, request], notify=b"x", deadline=60),
    ]
    for wait in waits:
        timer = threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT))
        started = time.monotonic()
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            wait()
        assert time.monotonic() - started < 10
    # The one that `write` had begun is final; the one that was only waited for is not.
    assert peer.info().transfers_active == 1 and blocker.poll() is None
    blocker.cancel()


def test_an_interrupted_submit_leaves_no_transfer(silent: Pair) -> None:
    """The transfer that has begun is final when the exception arrives: nobody has its handle."""
    source, peer, request = silent.source, silent.peer, silent.request(64)
    blocker = stuck(silent)
    submits: list[Callable[[], object]] = [
        lambda: peer.submit_write([request], notify=b"x", deadline=math.inf),
        lambda: peer.write([request, request], notify=b"x", deadline=math.inf),
    ]
    for turn, submit in enumerate(submits):
        with interrupted("ferry_transfer_submit"):
            submit()
        assert peer.info().transfers_active == 1 and blocker.poll() is None
        assert source.stats().transfers_cancelled == turn + 1
    blocker.cancel()


def test_notifications_come_behind_their_data(pair: Pair) -> None:
    with pair.target.queue(notifications=True) as queue:
        pair.local.view[:8] = b"12345678"
        assert (
            pair.peer.write([pair.request(8)], notify=b"with data").notification
            == ferry.NotificationState.DELIVERED
        )
        pair.peer.notify(bytearray(b"alone"), deadline=10)
        pair.peer.write([pair.request(8)], notify=b"")
        events = queue.drain()
        assert [event.data for event in events] == [b"with data", b"alone", b""]
        assert all(event.kind == ferry.EventKind.NOTIFICATION for event in events)
        assert bytes(pair.remote.view[:8]) == b"12345678"
        assert events[0].peer in pair.target.peers()


def test_a_channel_has_a_queue_of_its_own(pair: Pair) -> None:
    peer, target = pair.peer, pair.target
    with (
        target.queue(notifications=True) as application,
        target.queue(notifications=True, channel=15) as library,
        target.queue(notifications=True, transfers=True, channel=1) as other,
    ):
        with pytest.raises(ferry.BusyError, match="channel 15"):
            target.queue(notifications=True, channel=15)
        peer.submit_write([], notify=b"alone", channel=15).wait(10)
        result = peer.write([pair.request(8)], notify=b"with data", channel=15)
        assert result.notification == ferry.NotificationState.DELIVERED
        assert peer.write(ferry.Requests([]), notify=b"one", channel=1).requests_in == 0
        peer.write([], notify=b"zero", channel=False)
        peer.notify(b"plain")
        for queue, found in {
            library: [(b"alone", 15), (b"with data", 15)],
            other: [(b"one", 1)],
            application: [(b"zero", 0), (b"plain", 0)],
        }.items():
            assert [(event.data, event.channel) for event in queue.drain()] == found


@pytest.mark.parametrize("wrong", [16, -1, 2**32, 2**64])
def test_a_channel_that_does_not_exist_is_refused(pair: Pair, wrong: int) -> None:
    for use in (
        lambda: pair.peer.write([pair.request(8)], notify=b"x", channel=wrong),
        lambda: pair.peer.submit_write([], notify=b"x", channel=wrong),
        lambda: pair.target.queue(notifications=True, channel=wrong),
    ):
        with pytest.raises(ValueError, match=f"channel must be 0 to 15, not {wrong}"):
            use()


def test_a_channel_is_a_number_and_has_a_notification(pair: Pair) -> None:
    for wrong in ("1", 1.0, None):
        with pytest.raises(ferry.InvalidError, match="channel must be 0 to 15, not"):
            pair.peer.write([], notify=b"x", channel=wrong)  # type: ignore[arg-type]
        with pytest.raises(ferry.InvalidError, match="channel must be 0 to 15, not"):
            pair.target.queue(notifications=True, channel=wrong)  # type: ignore[arg-type]
    with pytest.raises(ferry.InvalidError, match=r"options\.channel \(without notify\)"):
        pair.peer.write([pair.request(8)], channel=1)
    with pytest.raises(ferry.InvalidError, match="requests"):
        pair.peer.write([])
    with pytest.raises(ferry.InvalidError, match="requests"):
        pair.peer.read([], notify=b"x")


def test_blocks(pair: Pair) -> None:
    block = 256
    pair.local.view[:] = positions(LENGTH, 5)
    blocks = ferry.Blocks(
        local_base=[pair.local.address],
        remote_base=[pair.inbox.address],
        local_stride=[block],
        remote_stride=[block],
        block_bytes=[block],
        remote_region=[pair.inbox.handle],
        local_blocks=[5, 6, 7, 12, 13],
        remote_blocks=[2, 3, 4, 8, 9],
    )
    result = pair.peer.submit_write_blocks(blocks).wait(10)
    assert (result.requests_in, result.slices_out) == (5, 2)
    wanted = positions(LENGTH, 5)
    for here, there in zip([5, 6, 7, 12, 13], [2, 3, 4, 8, 9]):
        assert (
            bytes(pair.remote.view[there * block : (there + 1) * block])
            == wanted[here * block : (here + 1) * block]
        )
    assert bytes(pair.remote.view[5 * block : 8 * block]) == bytes(3 * block)

    pair.local.view[:] = bytes(LENGTH)
    pair.peer.submit_read_blocks(blocks).wait(10)
    assert bytes(pair.local.view[5 * block : 8 * block]) == wanted[5 * block : 8 * block]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_notifications_are_given_back(pair: Pair) -> None:
    with pair.target.queue(notifications=True) as queue:
        taken = 0
        for turn in range(6000):
            pair.peer.notify(bytes(16384))
            taken += sum(len(event.data) for event in queue.drain())
            if turn == 1000:
                before = resident_bytes()
        assert taken == 6000 * 16384
    # They were 80 MB.
    assert resident_bytes() - before < 30_000_000


def test_requests_of_a_region(pair: Pair) -> None:
    whole = (pair.local.address, pair.inbox.address, LENGTH, pair.inbox.handle)
    assert pair.inbox.request(pair.local) == whole
    part = pair.inbox.request(pair.local, offset=4096, local_offset=64, length=128)
    assert part == (whole[0] + 64, whole[1] + 4096, 128, whole[3])
    assert pair.inbox.request(pair.local, local_offset=64)[2] == LENGTH - 64
    pair.local.view[:] = positions(LENGTH, 8)
    pair.peer.write([part])
    assert pair.remote.view[4096 : 4096 + 128] == pair.local.view[64:192]
    # The region itself in place of its handle, in one request and in several.
    for count in (1, 2):
        pair.peer.write([(*whole[:3], pair.inbox)] * count)
    assert pair.remote.view == pair.local.view
    # A region that was registered anew is another one: a request of the old one does not touch it.
    pair.remote.close()
    with pytest.raises(ferry.StaleError):
        pair.peer.write([pair.inbox.request(pair.local)])
