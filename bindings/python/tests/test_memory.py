"""Buffers of every kind, the life of registered memory, and what is refused."""

from __future__ import annotations

import array
import gc
import mmap
import os
import sys
from typing import Any

import pytest
from conftest import LENGTH, Pair, interrupted, positions

import ferry


@pytest.mark.parametrize(
    "make",
    [
        bytearray,
        lambda n: memoryview(bytearray(n)),
        lambda n: array.array("B", bytes(n)),
        lambda n: mmap.mmap(-1, n),
    ],
    ids=["bytearray", "memoryview", "array", "mmap"],
)
def test_writable_buffers_are_sent_and_filled(pair: Pair, make: Any) -> None:
    buffer = make(4096)
    whole = memoryview(buffer).cast("B")
    whole[:] = positions(4096, 1)
    region = pair.source.register(buffer)
    assert region.length == 4096
    request = [(region.address, pair.inbox.address, 4096, pair.inbox.handle)]
    pair.peer.write(request)
    assert bytes(pair.remote.view[:4096]) == positions(4096, 1)
    pair.remote.view[:4096] = positions(4096, 2)
    pair.peer.read(request)
    assert bytes(whole) == positions(4096, 2)
    region.unregister()
    whole.release()


def test_bytes_can_be_sent_but_not_offered_for_writing(pair: Pair) -> None:
    data = positions(4096, 3)
    with pair.source.register(data) as region:
        pair.peer.write([(region.address, pair.inbox.address, 4096, pair.inbox.handle)])
        assert bytes(pair.remote.view[:4096]) == data
    with pytest.raises(ferry.InvalidError, match="buffer: .*(not writable|read-only)"):
        pair.source.register(data, access=ferry.Access.REMOTE_WRITE)


def test_peers_see_access_and_name(pair: Pair) -> None:
    pair.target.register(bytearray(64), access=ferry.Access.REMOTE_READ, name="shown")
    pair.peer.probe(10)
    shown = pair.peer.region("shown")
    assert (shown.length, shown.access) == (64, ferry.Access.REMOTE_READ)
    with pytest.raises(ferry.Error) as refused:
        pair.peer.write([(pair.local.address, shown.address, 64, shown.handle)])
    assert refused.value.status == ferry.Status.ACCESS
    with pytest.raises(KeyError, match="absent"):
        pair.peer.region("absent")


def test_a_registered_buffer_stays_where_it_is(pair: Pair) -> None:
    buffer = bytearray(4096)
    region = pair.source.register(buffer)
    with pytest.raises(BufferError):
        buffer.extend(b"x")
    region.close()
    buffer.extend(b"x")
    region.close()
    assert "closed" in repr(region)


def test_a_buffer_that_only_the_engine_holds_is_kept(pair: Pair) -> None:
    pair.target.register(bytearray(positions(1 << 20, 4)), name="kept")
    gc.collect()
    pair.peer.probe(10)
    kept = pair.peer.region("kept")
    pair.peer.read([(pair.local.address, kept.address, LENGTH, kept.handle)])
    assert bytes(pair.local.view) == positions(1 << 20, 4)[:LENGTH]


def test_a_dropped_engine_is_gone_and_lets_go() -> None:
    buffer = bytearray(64)
    threads = len(os.listdir("/proc/self/task"))
    engine = ferry.Engine()
    engine.register(buffer)
    assert len(os.listdir("/proc/self/task")) > threads
    del engine
    gc.collect()
    assert len(os.listdir("/proc/self/task")) == threads
    buffer.extend(b"x")


def test_a_failed_registration_lets_go(pair: Pair) -> None:
    fine, empty = bytearray(64), bytearray(0)
    with pytest.raises(ferry.InvalidError) as caught:
        pair.source.register_many([fine, empty])
    assert caught.value.request_index == 1
    fine.extend(b"x")
    with pytest.raises(ferry.InvalidError, match=r"buffers\[1\] has no buffer protocol: str"):
        pair.source.register_many([fine, "text"])  # type: ignore[list-item]
    fine.extend(b"x")


def test_an_interrupted_registration_holds_what_peers_can_reach(pair: Pair) -> None:
    buffers = [bytearray(64), bytearray(64)]
    with interrupted("ferry_region_register_batch"):
        pair.source.register_many(buffers)
    assert pair.source.stats().regions == 3
    for buffer in buffers:
        with pytest.raises(BufferError):
            buffer.extend(b"x")


def test_an_interrupted_close_can_be_called_again(pair: Pair) -> None:
    buffer = bytearray(64)
    region, memory = pair.source.register(buffer), pair.source.alloc(64)
    for end in (region.close, memory.close):
        with interrupted("ferry_region_unregister"):
            end()
        end()
    buffer.extend(b"x")
    assert not is_mapped(memory.address)


def test_many_regions_at_once(pair: Pair) -> None:
    regions = pair.source.register_many([bytearray(64) for _ in range(10)])
    assert len({region.handle for region in regions}) == 10
    assert pair.source.stats().regions == 11


def is_mapped(address: int) -> bool:
    for line in open("/proc/self/maps"):
        first, end = (int(word, 16) for word in line.split()[0].split("-"))
        if first <= address < end:
            return True
    return False


@pytest.mark.parametrize("transports", ["local", "tcp"])
def test_memory_is_unmapped_with_its_last_view(transports: str) -> None:
    with ferry.Engine(transports=transports) as source, ferry.Engine(transports=transports) as target:
        there = target.alloc(4096, name="inbox")
        peer = source.connect(target.address, timeout=10)
        inbox, here = peer.region("inbox"), source.alloc(4096)
        part, address = there.view[8:16], there.address
        with there:
            part[:] = b"12345678"
        assert (target.stats().regions, there.handle) == (0, 0)
        with pytest.raises(ferry.StaleError):
            # No peer reaches it any more.
            peer.write([inbox.request(here)])
        assert bytes(part) == b"12345678" and is_mapped(address)
        copy = part[2:]
        del part
        gc.collect()
        assert bytes(copy) == b"345678" and is_mapped(address)
        del copy
        gc.collect()
        assert not is_mapped(address)
        with pytest.raises(ferry.InvalidError, match="the memory is closed"):
            there.view
        there.close()
        assert "closed" in repr(there)


def test_memory_without_views_is_unmapped_at_once(pair: Pair) -> None:
    memory = pair.source.alloc(4096)
    memory.view[:4] = b"here"
    memory.close()
    assert not is_mapped(memory.address)


def test_a_view_outlives_its_closed_engine_and_memory() -> None:
    numpy = pytest.importorskip("numpy")
    engine = ferry.Engine()
    with engine.alloc(4096) as memory:
        array = numpy.frombuffer(memory.view, "u1")
        engine.close()
    array[:4] = 7
    del engine, memory
    gc.collect()
    assert array[:5].tolist() == [7, 7, 7, 7, 0]


def test_a_view_outlives_its_engine() -> None:
    engine = ferry.Engine()
    view = engine.alloc(4096).view
    view[:4] = b"here"
    engine.close()
    del engine
    gc.collect()
    assert bytes(view[:4]) == b"here"


def test_with_frees_and_does_not_hide_an_error(pair: Pair) -> None:
    with pair.source.alloc(4096) as memory:
        assert len(memory) == 4096
    assert memory.handle == 0
    with pytest.raises(ZeroDivisionError):
        with pair.source.alloc(4096) as memory:
            held = memory.view[1:]
            1 / 0
    assert len(held) == 4095
    for length in (0, -1):
        with pytest.raises(ferry.InvalidError, match="length"):
            pair.source.alloc(length)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="classes are buffers from Python 3.12 on")
def test_memory_is_a_buffer_itself(pair: Pair) -> None:
    memory: Any = pair.local
    view = memoryview(memory)
    view[:8] = positions(8, 4)
    assert bytes(memory)[:8] == positions(8, 4) and len(view) == LENGTH
    pair.local.close()
    assert bytes(view)[:8] == positions(8, 4)
    with pytest.raises(ferry.InvalidError, match="the memory is closed"):
        memoryview(memory)


class WithoutBuffer:
    """A host array of a library with DLPack and no buffer protocol."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def test_host_memory_by_dlpack(pair: Pair) -> None:
    numpy = pytest.importorskip("numpy")
    array = numpy.arange(512, dtype="u8")
    region = pair.source.register(WithoutBuffer(array))
    assert region.address == array.ctypes.data
    pair.peer.write([(region.address, pair.inbox.address, 4096, pair.inbox.handle)])
    assert bytes(pair.remote.view[:4096]) == array.tobytes()
