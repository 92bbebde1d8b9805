"""A signal ends a wait for a peer even if the peer is silent, and the interrupted objects stay usable."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from conftest import ringing

import ferry

CHILD = """
import sys, ferry
engine = ferry.Engine(transports="tcp")
memory = engine.alloc(4096, name="inbox")
with engine.queue(notifications=True) as queue:
    print(engine.address, flush=True)
    while True:
        print(queue.wait().data.decode(), flush=True)
"""


class Stopped(NamedTuple):
    """A peer in a process that is stopped."""

    engine: ferry.Engine
    peer: ferry.Peer
    request: tuple[int, int, int, int]
    address: str
    child: subprocess.Popen[str]

    def goes_on(self) -> None:
        os.kill(self.child.pid, signal.SIGCONT)

    def hears(self, last: str) -> list[str]:
        """Returns what the peer's application hears until `last`."""
        assert self.child.stdout is not None
        heard = [self.child.stdout.readline().strip()]
        while heard[-1] != last:
            heard.append(self.child.stdout.readline().strip())
        return heard


@contextmanager
def stopped_peer(lease_ms: int = 500) -> Iterator[Stopped]:
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            address = child.stdout.readline().strip()
            with ferry.Engine(transports="tcp", lease_ms=lease_ms, drain_ms=50) as engine:
                peer = engine.connect(address, 10)
                inbox = peer.region("inbox")
                memory = engine.alloc(4096)
                os.kill(child.pid, signal.SIGSTOP)
                os.waitpid(child.pid, os.WUNTRACED)
                request = (memory.address, inbox.address, 4096, inbox.handle)
                try:
                    yield Stopped(engine, peer, request, address, child)
                finally:
                    os.kill(child.pid, signal.SIGCONT)
        finally:
            child.kill()


def is_interrupted(wait: Callable[[], object], within: float = 1.0) -> None:
    begun = time.monotonic()
    with ringing(0.2):
        wait()
    assert 0.2 <= time.monotonic() - begun < 0.2 + within


def test_a_signal_ends_a_notification_that_is_then_not_sent_twice() -> None:
    with stopped_peer() as it:
        is_interrupted(lambda: it.peer.notify(b"interrupted", 60))
        it.goes_on()
        it.peer.notify(b"after", 60)
        assert it.hears("after") in (["after"], ["interrupted", "after"])


def test_a_signal_ends_a_transfer_when_its_memory_is_free() -> None:
    with stopped_peer() as it:
        for move in (it.peer.write, it.peer.read):
            is_interrupted(lambda move=move: move([it.request], deadline=60))  # type: ignore[misc]
            assert it.peer.info().transfers_active == 0
        it.goes_on()
        assert it.peer.write([it.request], deadline=60).bytes_confirmed == 4096


def test_a_signal_ends_a_probe_and_a_connect_that_go_on_apart() -> None:
    with stopped_peer() as it, ferry.Engine(transports="tcp") as other:
        is_interrupted(lambda: it.peer.probe(60))
        is_interrupted(lambda: other.connect(it.address, 60))
        it.goes_on()
        assert it.peer.probe(60) > 0
        other.connect(it.address, 60).probe(60)


def test_a_signal_ends_the_end_of_what_is_in_use() -> None:
    with stopped_peer(lease_ms=2500) as it:
        buffer = bytearray(4096)
        region = it.engine.register(buffer)
        transfer = it.peer.submit_write([(region.address, *it.request[1:])], deadline=60)
        with pytest.raises(ferry.BusyError):
            region.unregister(0)
        for end in (region.unregister, it.peer.close, it.engine.close):
            is_interrupted(end)
            with pytest.raises(BufferError):
                # The library may still read the buffer, so the buffer stays in its place.
                buffer.append(0)
        assert transfer.poll() is None
        it.goes_on()
        it.engine.close(10)


def test_a_handler_that_does_not_raise_ends_nothing() -> None:
    with stopped_peer() as it:
        rung: list[int] = []
        before = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(ferry.TimeoutError):
                it.peer.probe(0.3)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert rung == [1]
