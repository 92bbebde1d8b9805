"""The promises of `mooncake.engine` to its callers, checked on the installed package.

    python conformance.py [NAME...]

Prints a line for each case: ok, or the answer that came instead. With Mooncake's own wheel installed instead
of ferry-mooncake, it shows where the two differ.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from mooncake import engine as module

MIB = 1 << 20


class Side:
    """An engine with a registered buffer."""

    def __init__(self, length: int = MIB) -> None:
        self.engine = module.TransferEngine()
        assert self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        self.buffer = (ctypes.c_ubyte * length)()
        self.address = ctypes.addressof(self.buffer)
        assert self.engine.register_memory(self.address, length) == 0
        self.session = f"127.0.0.1:{self.engine.get_rpc_port()}"


class Pair:
    def __init__(self) -> None:
        self.a, self.b = Side(), Side()

    def fill(self, side: Side, seed: int) -> None:
        pattern = bytes((i * seed + 1) & 255 for i in range(256)) * (MIB // 256)
        ctypes.memmove(side.address, pattern, MIB)

    def same(self, at: int = 0, length: int = MIB) -> bool:
        return bytes(self.a.buffer)[at : at + length] == bytes(self.b.buffer)[at : at + length]


def is_failure(code: Any) -> None:
    assert isinstance(code, int) and code < 0, f"{code!r} is no failure"


def equal(found: Any, wanted: Any) -> None:
    assert found == wanted, f"{found!r}, not {wanted!r}"


def sync_write(pair: Pair) -> None:
    pair.fill(pair.a, 3)
    equal(pair.a.engine.transfer_sync_write(pair.b.session, pair.a.address, pair.b.address, MIB), 0)
    assert pair.same()


def sync_read(pair: Pair) -> None:
    pair.fill(pair.b, 5)
    equal(pair.a.engine.transfer_sync_read(pair.b.session, pair.a.address, pair.b.address, MIB), 0)
    assert pair.same()


def batches(pair: Pair) -> None:
    pair.fill(pair.a, 7)
    offsets = list(range(0, MIB, 4096))
    ours, theirs = [pair.a.address + at for at in offsets], [pair.b.address + at for at in offsets]
    lengths = [4096] * len(offsets)
    equal(pair.a.engine.batch_transfer_sync_write(pair.b.session, ours, theirs, lengths), 0)
    assert pair.same()
    pair.fill(pair.b, 9)
    equal(pair.a.engine.batch_transfer_sync_read(pair.b.session, ours, theirs, lengths), 0)
    assert pair.same()


def tuples(pair: Pair) -> None:
    pair.fill(pair.a, 11)
    code = pair.a.engine.batch_transfer_sync_write(
        pair.b.session, (pair.a.address,), (pair.b.address,), (MIB,)
    )
    equal(code, 0)
    assert pair.same()


def numpy_arrays(pair: Pair) -> None:
    import numpy

    pair.fill(pair.a, 13)
    offsets = numpy.arange(0, MIB, 65536, dtype=numpy.uint64)
    lengths = numpy.full(len(offsets), 65536, dtype=numpy.uint64)
    ours, theirs = offsets + numpy.uint64(pair.a.address), offsets + numpy.uint64(pair.b.address)
    equal(pair.a.engine.batch_transfer_sync_write(pair.b.session, ours, theirs, lengths), 0)
    assert pair.same()
    code = pair.a.engine.transfer_sync_write(pair.b.session, ours[0], theirs[0], lengths[0])
    equal(code, 0)


def empty_lists(pair: Pair) -> None:
    equal(pair.a.engine.batch_transfer_sync_write(pair.b.session, [], [], []), 0)


def lists_of_different_lengths(pair: Pair) -> None:
    is_failure(
        pair.a.engine.batch_transfer_sync_write(pair.b.session, [pair.a.address], [pair.b.address], [])
    )


def wrong_types(pair: Pair) -> None:
    for wrong in (1.5, "7", None):
        try:
            pair.a.engine.transfer_sync_write(pair.b.session, wrong, pair.b.address, 8)
        except TypeError:
            continue
        raise AssertionError(f"{wrong!r} was taken for an address")


def outside_of_what_is_registered(pair: Pair) -> None:
    is_failure(pair.a.engine.transfer_sync_write(pair.b.session, pair.a.address, pair.b.address + MIB, 4096))
    sync_write(pair)


def nobody_there(pair: Pair) -> None:
    is_failure(pair.a.engine.transfer_sync_write("127.0.0.1:1", pair.a.address, pair.b.address, 8))


def overlap(pair: Pair) -> None:
    equal(pair.a.engine.register_memory(pair.a.address + 4096, 4096), -7)


def no_bytes(pair: Pair) -> None:
    spare = (ctypes.c_ubyte * 64)()
    equal(pair.a.engine.register_memory(ctypes.addressof(spare), 0), -1)


def unregister(pair: Pair) -> None:
    spare = (ctypes.c_ubyte * 8192)()
    address = ctypes.addressof(spare)
    equal(pair.a.engine.register_memory(address, 8192), 0)
    equal(pair.a.engine.unregister_memory(address), 0)
    equal(pair.a.engine.unregister_memory(address), -3)
    spares = [(ctypes.c_ubyte * 8192)() for _ in range(3)]
    addresses = [ctypes.addressof(one) for one in spares]
    equal(pair.a.engine.batch_register_memory(addresses, [8192] * 3), 0)
    equal(pair.a.engine.batch_unregister_memory(addresses), 0)


def probe(pair: Pair) -> None:
    equal(pair.a.engine.send_probe(pair.b.session), 0)
    is_failure(pair.a.engine.send_probe("127.0.0.1:1"))


def started_batches(pair: Pair) -> None:
    pair.fill(pair.a, 15)
    number = pair.a.engine.batch_transfer_async_write(
        pair.b.session, [pair.a.address], [pair.b.address], [MIB]
    )
    assert number != 0
    end = time.monotonic() + 20
    while (code := pair.a.engine.transfer_check_status(number)) == 0:
        assert time.monotonic() < end, "it is never done"
    equal(code, 1)
    assert pair.same()
    pair.fill(pair.b, 17)
    numbers = [
        pair.a.engine.batch_transfer_async_read(
            pair.b.session, [pair.a.address + at], [pair.b.address + at], [4096]
        )
        for at in range(0, MIB, 4096)
    ]
    equal(pair.a.engine.get_batch_transfer_status(numbers), 0)
    assert pair.same()


def a_bad_batch_fails_as_a_whole(pair: Pair) -> None:
    number = pair.a.engine.batch_transfer_async_write(
        pair.b.session,
        [pair.a.address] * 32,
        [pair.b.address + at * 4096 for at in range(31)] + [8],
        [4096] * 32,
    )
    if number:
        equal(pair.a.engine.get_batch_transfer_status([number]), -1)


def managed_buffers(pair: Pair) -> None:
    engine = pair.a.engine
    address = engine.allocate_managed_buffer(65536)
    assert address
    equal(engine.write_bytes_to_buffer(address, b"moved" * 100, 500), 0)
    equal(engine.transfer_sync_write(pair.b.session, address, pair.b.address, 500), 0)
    assert bytes(pair.b.buffer)[:500] == b"moved" * 100
    equal(bytes(engine.read_bytes_from_buffer(address, 500)), b"moved" * 100)
    equal(engine.free_managed_buffer(address, 65536), 0)


def first_buffer(pair: Pair) -> None:
    far = module.TransferEngine()
    equal(far.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
    memory = (ctypes.c_ubyte * 12288)()
    pieces = [ctypes.addressof(memory) + at for at in (4096, 0, 8192)]
    for piece in pieces:
        equal(far.register_memory(piece, 4096), 0)
    equal(pair.a.engine.get_first_buffer_address(f"127.0.0.1:{far.get_rpc_port()}"), pieces[0])


def opcodes_and_notices(pair: Pair) -> None:
    pair.fill(pair.a, 19)
    notice = module.TransferNotify("layer", "17")
    code = pair.a.engine.transfer_sync(
        pair.b.session, pair.a.address, pair.b.address, MIB, module.TransferOpcode.Write, notice
    )
    equal(code, 0)
    assert pair.same()
    end = time.monotonic() + 10
    found: list[Any] = []
    while not found and time.monotonic() < end:
        found = pair.b.engine.get_notifies()
    equal([(one.name, one.msg) for one in found], [("layer", "17")])
    pair.fill(pair.b, 21)
    code = pair.a.engine.batch_transfer_sync(
        pair.b.session, [pair.a.address], [pair.b.address], [MIB], module.TransferOpcode.Read
    )
    equal(code, 0)
    assert pair.same()


def many_threads(pair: Pair) -> None:
    pair.fill(pair.a, 23)
    share, codes = MIB // 8, []

    def move(at: int) -> None:
        for _ in range(20):
            codes.append(
                pair.a.engine.transfer_sync_write(
                    pair.b.session, pair.a.address + at, pair.b.address + at, share
                )
            )

    threads = [threading.Thread(target=move, args=(at,)) for at in range(0, MIB, share)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    equal(codes, [0] * 160)
    assert pair.same()


def waiting_releases_the_gil(pair: Pair) -> None:
    ticks, over = [0], threading.Event()

    def tick() -> None:
        while not over.wait(0.001):
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    before = ticks[0]
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        pair.a.engine.batch_transfer_sync_write(
            pair.b.session, [pair.a.address] * 64, [pair.b.address] * 64, [MIB] * 64
        )
    moved = ticks[0] - before
    over.set()
    thread.join()
    assert moved >= 3, f"another thread ran {moved} times in 0.3 s"


def a_peer_that_comes_back(pair: Pair) -> None:
    gone = Side(4096)
    session = gone.session
    equal(pair.a.engine.transfer_sync_write(session, pair.a.address, gone.address, 4096), 0)
    del gone
    is_failure(pair.a.engine.transfer_sync_write(session, pair.a.address, pair.b.address, 4096))
    again = Side(4096)
    pair.fill(pair.a, 25)
    equal(pair.a.engine.transfer_sync_write(again.session, pair.a.address, again.address, 4096), 0)
    assert bytes(again.buffer) == bytes(pair.a.buffer)[:4096]


def names_and_support(pair: Pair) -> None:
    assert isinstance(module.SUPPORT_CUDA, bool)
    assert pair.a.engine.get_rpc_port() > 0
    assert pair.a.engine.get_local_topology()


CASES: list[Callable[[Pair], None]] = [
    sync_write,
    sync_read,
    batches,
    tuples,
    numpy_arrays,
    empty_lists,
    lists_of_different_lengths,
    wrong_types,
    outside_of_what_is_registered,
    nobody_there,
    overlap,
    no_bytes,
    unregister,
    probe,
    started_batches,
    a_bad_batch_fails_as_a_whole,
    managed_buffers,
    first_buffer,
    opcodes_and_notices,
    many_threads,
    waiting_releases_the_gil,
    a_peer_that_comes_back,
    names_and_support,
]


def main() -> int:
    wanted = set(sys.argv[1:])
    failed = 0
    for case in CASES:
        if wanted and case.__name__ not in wanted:
            continue
        try:
            case(Pair())
            print(f"{case.__name__} ... ok", flush=True)
        except Exception as error:
            failed += 1
            print(f"{case.__name__} ... {type(error).__name__}: {error}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
