"""Waiting for several transfers and for events on a thread, and the layers and regions that programs move."""

from __future__ import annotations

import math
import re
import threading
from array import array
from typing import Any

import pytest
from conftest import LENGTH, Pair, interrupted, positions, ringing, stuck

import ferry


def test_wait_all_raises_for_the_first_that_is_not_done(silent: Pair) -> None:
    transfers = [silent.peer.submit_write([silent.request(64, 64 * place)]) for place in range(4)]
    silent.source.wait_all(transfers, 10)
    assert all(transfer.poll() for transfer in transfers)
    transfers.append(stuck(silent))
    with pytest.raises(ferry.PendingError, match=r"transfers\[4\]"):
        silent.source.wait_all(transfers, 0.01)
    transfers[4].cancel()
    with pytest.raises(ferry.CancelledError) as caught:
        silent.source.wait_all(transfers, 10)
    assert caught.value.result is not None and caught.value.result.state == ferry.State.CANCELLED
    with pytest.raises(ferry.InvalidError, match="the list is empty"):
        silent.source.wait_all([])


def test_layers_of_equal_shape(pair: Pair) -> None:
    block, layer = 512, 8 * 512
    pair.local.view[:] = positions(LENGTH, 5)
    cache = ferry.UniformBlocks(pair.local, pair.inbox, layer_bytes=layer, block_bytes=block)
    pushes = [pair.peer.submit_write_blocks(cache.blocks(number, 8)) for number in range(4)]
    pair.source.wait_all(pushes, 10)
    assert pair.remote.view[: 4 * layer] == pair.local.view[: 4 * layer]
    assert not any(pair.remote.view[4 * layer :])
    pair.local.view[:] = positions(LENGTH, 6)
    pairs = array("i", [1, 2, 7]), array("i", [0, 3, 5])
    result = pair.peer.submit_write_blocks(cache.blocks(range(2, 4), *pairs)).wait(10)
    assert result.requests_in == 6
    expected = bytearray(positions(LENGTH, 5)[: 4 * layer])
    for number in (2, 3):
        for source, target in zip(*pairs, strict=True):
            at, to = number * layer + source * block, number * layer + target * block
            expected[to : to + block] = pair.local.view[at : at + block]
    assert pair.remote.view[: 4 * layer] == expected

    wrong: list[tuple[tuple[Any, ...], str]] = [
        ((range(0, 4, 2), 1), "layers"),
        ((range(3, 3), 1), "layers is empty"),
        ((0, 0), "is empty"),
        ((0, -1), "no number of blocks"),
        ((0, 2**64 + 1), "no number of blocks"),
        ((2**64, 1), "layers"),
        ((0, [1, 2], [1]), "2 ids of 8 bytes, 1 of 8"),
        ((0, [1]), "1 ids of 8 bytes, 0 of 8"),
        ((0, 1, [1]), "a list of ids in local"),
    ]
    for arguments, message in wrong:
        with pytest.raises(ferry.InvalidError, match=re.escape(message)):
            pair.peer.submit_write_blocks(cache.blocks(*arguments))
    with pytest.raises(ferry.InvalidError, match="local_layer_stride: -1"):
        ferry.UniformBlocks(pair.local, pair.inbox, layer_bytes=-1, block_bytes=8).blocks(0, 1)


def test_the_newest_region_of_a_name(pair: Pair) -> None:
    with pair.target.alloc(64, name="cache") as first, pair.target.alloc(64, name="cache") as second:
        with ferry.Engine() as late:
            found = late.connect(pair.target.address, timeout=10).region("cache")
            assert (found.handle, found.address) == (second.handle, second.address)
            assert first.handle != second.handle
    with pytest.raises(KeyError):
        pair.peer.region("no such")
    with pytest.raises(ferry.InvalidError, match="zero byte"):
        pair.peer.region("inbox\0")


def test_a_thread_waits_for_events(pair: Pair) -> None:
    with pair.target.queue(notifications=True) as queue:
        with pytest.raises(ferry.PendingError):
            queue.wait(0)
        with pytest.raises(TimeoutError):
            queue.wait(0.01)

        def notify() -> None:
            for word in range(3):
                pair.peer.notify(bytes([word]))

        later = threading.Thread(target=notify)
        later.start()
        assert [queue.wait(10).data for _ in range(3)] == [b"\0", b"\1", b"\2"]
        later.join()
        ends: list[ferry.Error] = []

        def wait() -> None:
            try:
                queue.wait()
            except ferry.Error as error:
                ends.append(error)

        last = threading.Thread(target=wait)
        last.start()
        pair.target.close()
        last.join()
        assert [error.status for error in ends] == [ferry.Status.CLOSED]


def test_a_signal_costs_no_event(pair: Pair) -> None:
    """The signal comes while the library waits. Its handler raises when the library has taken the event."""
    with pair.target.queue(notifications=True) as queue:
        later = threading.Timer(0.05, pair.peer.notify, (b"later",))
        later.start()
        with ringing(0.02):
            queue.wait(math.inf)
        assert queue.wait(5).data == b"later"
        later.join()
        for word in (b"first", b"second"):
            pair.peer.notify(word)
        with interrupted("ferry_queue_drain"):
            queue.drain()
        pair.peer.notify(b"third")
        assert [event.data for event in queue.drain()] == [b"first", b"second", b"third"]
