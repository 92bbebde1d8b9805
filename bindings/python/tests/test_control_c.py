"""Control-C ends every call that waits, soon after it was pressed, and leaves the caller what it had."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from test_interrupts import Stopped, stopped_peer

import ferry
from ferry.pool import Pool

LEASE_MS = 500
Call = Callable[[], object]


def control_c(wait: Call) -> None:
    """Presses control-C while this thread is in `wait`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    pressed: list[float] = []

    def press() -> None:
        pressed.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    presses = threading.Timer(0.15, press)
    try:
        with pytest.raises(KeyboardInterrupt):
            presses.start()
            wait()
            presses.cancel()
        assert pressed, "the call has ended by itself"
        # A transfer to a silent peer is final, and its memory free, after the lease.
        assert time.monotonic() - pressed[0] < LEASE_MS / 1000 + 0.5
    finally:
        presses.cancel()
        presses.join()
        signal.signal(signal.SIGINT, before)


class Stand:
    """A peer that is stopped, and what a call needs that waits for it."""

    def __init__(self, it: Stopped, ends: ExitStack) -> None:
        self.engine, self.peer, self.request, self.address = it.engine, it.peer, it.request, it.address
        self.ends = ends
        self.transfer: ferry.Transfer | None = None

    def other(self) -> ferry.Engine:
        return self.ends.enter_context(ferry.Engine(transports="tcp"))

    def submit(self, local: int | None = None) -> ferry.Transfer:
        request = (local or self.request[0], *self.request[1:])
        self.transfer = self.peer.submit_write([request], deadline=60)
        return self.transfer

    def busy(self, end: Call) -> Call:
        self.submit()
        return end

    def region(self) -> ferry.Region:
        region = self.engine.register(bytearray(4096))
        self.submit(region.address)
        return region

    def memory(self) -> ferry.Memory:
        memory = self.engine.alloc(4096)
        self.submit(memory.address)
        return memory

    def queue(self) -> ferry.Queue:
        return self.ends.enter_context(self.engine.queue(notifications=True))

    def directory(self, url: str = "static:") -> ferry.Directory:
        return self.ends.enter_context(ferry.Directory(self.other(), url, wait=False))

    def etcd(self) -> str:
        """A server that says nothing."""
        listens = self.ends.enter_context(socket.create_server(("127.0.0.1", 0)))
        return f"etcd:http://127.0.0.1:{listens.getsockname()[1]}"

    def leaving(self) -> ferry.Directory:
        """A directory with a name that etcd has still to withdraw."""
        directory = self.directory(self.etcd())
        with pytest.raises(ferry.UnreachableError):
            directory.register("a", timeout=0.1)
        return directory


WAITS: dict[str, Callable[[Stand], Call]] = {
    "Engine.connect": lambda it: lambda: it.other().connect(it.address, 60),
    "Engine.wait_any": lambda it: lambda: it.engine.wait_any([it.submit()]),
    "Engine.wait_all": lambda it: lambda: it.engine.wait_all([it.submit()]),
    "Engine.close": lambda it: it.busy(it.engine.close),
    "Peer.probe": lambda it: it.peer.probe,
    "Peer.notify": lambda it: lambda: it.peer.notify(b"lost", 60),
    "Peer.write": lambda it: lambda: it.peer.write([it.request], deadline=60),
    "Peer.read": lambda it: lambda: it.peer.read([it.request], deadline=60),
    "Peer.write of several": lambda it: lambda: it.peer.write([it.request] * 2, deadline=60),
    "Peer.close": lambda it: it.busy(it.peer.close),
    "Transfer.wait": lambda it: it.submit().wait,
    "Region.close": lambda it: it.region().close,
    "Memory.close": lambda it: it.memory().close,
    "Queue.wait": lambda it: it.queue().wait,
    "Directory.connect": lambda it: lambda d=it.directory(): d.connect(it.address, 60),  # type: ignore[misc]
    "Directory": lambda it: lambda: ferry.Directory(it.other(), it.etcd(), timeout=60),
    "Pool": lambda it: lambda: Pool(it.other(), directory=it.etcd(), directory_timeout_ms=60_000),
    "Directory.register": lambda it: lambda d=it.directory(it.etcd()): d.register("a"),  # type: ignore[misc]
    "Directory.unregister": lambda it: lambda d=it.leaving(): d.unregister("a"),  # type: ignore[misc]
}


@pytest.mark.parametrize("name", WAITS)
def test_a_call_ends(name: str) -> None:
    # A transfer that waits for the lease must not end by it.
    lease_ms = 5 * LEASE_MS if "close" in name else LEASE_MS
    threads = len(os.listdir("/proc/self/task"))
    with stopped_peer(lease_ms) as it, ExitStack() as ends:
        stand = Stand(it, ends)
        control_c(WAITS[name](stand))
        if name in ("Peer.write", "Peer.read", "Peer.write of several"):
            # It was cancelled and is final: the memory is the caller's.
            assert it.peer.info().transfers_active == 0
        elif stand.transfer is not None and name != "Engine.close":
            # It is the caller's, and goes on.
            assert stand.transfer.poll() is None or name == "Peer.close"
        it.goes_on()
        it.engine.close()
    # A call that went on without its caller ends with its engine.
    until = time.monotonic() + 20
    while len(os.listdir("/proc/self/task")) > threads:
        assert time.monotonic() < until, "the call goes on after its engine was closed"
        time.sleep(0.01)


def test_a_transfer_whose_close_was_interrupted_is_cancelled() -> None:
    with stopped_peer(5 * LEASE_MS) as it:
        transfer = it.peer.submit_write([it.request], deadline=60)
        control_c(transfer.close)
        assert transfer.poll() is None
        it.goes_on()
        transfer.close()
        result = transfer.poll()
        assert result is not None and result.state in (ferry.State.CANCELLED, ferry.State.DONE)


CONSUMER = """
import sys
from kv_workers import Rank
from ferry import kv
with Rank(kind=kv.WINDOW, window_tokens=16) as consumer:
    peers = [consumer.engine.connect(sys.argv[1], 10)]
    consumer.cache.take(kv.Id.parse(sys.argv[2]), peers, kv.BlockList([4], first_token=16), 32)
    consumer.end(kv.Id.parse(sys.argv[2]))
"""


def test_calls_of_a_cache_end() -> None:
    pytest.importorskip("numpy")
    from kv_workers import Rank

    from ferry import kv

    with Rank(kind=kv.WINDOW, window_tokens=16) as producer:
        cache, id = producer.cache, kv.new_id()
        cache.offer(id, [5, 0, 3])
        cache.ready(id, 32, 0)
        command = [sys.executable, "-c", CONSUMER, producer.engine.address, str(id)]
        taker = subprocess.Popen(command, cwd=Path(__file__).parent)
        try:
            while cache.state(id).takers == 0:
                time.sleep(0.01)
            taker.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, taker.pid, os.WSTOPPED)
            control_c(cache.wait)
            control_c(lambda: cache.retract_window(id, 0, 32))
            control_c(lambda: cache.retract(id, 16))
            # The tokens are taken back all the same: the offer refuses others until the call succeeds.
            with pytest.raises(ferry.BusyError):
                cache.ready(id, 48)
            control_c(cache.close)
            assert cache.state(id).kind is kv.StateKind.ENDING
        finally:
            taker.kill()
            taker.communicate()


def test_a_constructor_that_is_interrupted_keeps_nothing() -> None:
    from conftest import interrupted

    threads = len(os.listdir("/proc/self/task"))
    with interrupted("ferry_engine_open"):
        ferry.Engine()
    gc.collect()
    assert len(os.listdir("/proc/self/task")) == threads


def test_what_a_call_writes_to_outlives_its_caller() -> None:
    from ferry._waits import apart

    class Kept:
        pass

    is_over, was_alive = threading.Event(), threading.Event()

    def answers(_error: int) -> int:
        assert is_over.wait(10)
        if alive() is not None:
            was_alive.set()
        ended.set()
        return 0

    kept, ended = Kept(), threading.Event()
    alive = weakref.ref(kept)
    waits = [kept]
    del kept
    control_c(lambda: apart(waits.pop(), answers))
    gc.collect()
    is_over.set()
    assert ended.wait(10) and was_alive.is_set()


def test_memory_whose_allocation_is_interrupted_is_freed() -> None:
    from conftest import interrupted

    with ferry.Engine() as engine:
        with interrupted("ferry_memory_alloc"):
            engine.alloc(4096, name="inbox")
        assert engine.stats().regions == 0


def test_a_cache_whose_constructor_is_interrupted_leaves_its_engine() -> None:
    pytest.importorskip("numpy")
    from conftest import interrupted
    from kv_workers import Rank

    from ferry import kv

    with Rank() as rank:
        rank.cache.close(10)
        with interrupted("ferry_kv_cache_open"):
            kv.Cache(rank.engine, rank.tensors.layout, rank.memory)
        until = time.monotonic() + 10
        while time.monotonic() < until:
            gc.collect()
            try:
                # An engine has one cache at a time.
                kv.Cache(rank.engine, rank.tensors.layout, rank.memory).close(10)
                return
            except ferry.BusyError:
                time.sleep(0.01)
        pytest.fail("the cache of nobody is still open")
