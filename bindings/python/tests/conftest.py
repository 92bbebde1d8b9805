"""Engines in this process, connected over loopback, and data that encodes its position."""

from __future__ import annotations

import math
import signal
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

import ferry
from ferry._abi import library

LENGTH = 1 << 16


def positions(length: int, seed: int) -> bytes:
    """Returns data of which every 8 bytes encode their position and `seed`."""
    return b"".join(struct.pack("<II", place, seed) for place in range(length // 8))


class Pair(NamedTuple):
    """Two engines, registered memory in each, and the first engine's view of the second's region."""

    source: ferry.Engine
    target: ferry.Engine
    peer: ferry.Peer
    local: ferry.Memory
    remote: ferry.Memory
    inbox: ferry.RemoteRegion

    def request(self, length: int = LENGTH, offset: int = 0) -> tuple[int, int, int, int]:
        return (self.local.address + offset, self.inbox.address + offset, length, self.inbox.handle)


@contextmanager
def connected(length: int = LENGTH, **settings: int) -> Iterator[Pair]:
    with ferry.Engine(**settings) as source, ferry.Engine() as target:
        local = source.alloc(length)
        remote = target.alloc(length, name="inbox")
        peer = source.connect(target.address, timeout=10)
        yield Pair(source, target, peer, local, remote, peer.region("inbox"))


@pytest.fixture
def pair() -> Iterator[Pair]:
    with connected() as made:
        yield made


@pytest.fixture
def silent() -> Iterator[Pair]:
    """A pair whose target does not drain its notifications: one beyond the bound waits for ever."""
    with connected(lease_ms=500, drain_ms=50) as made:
        yield made


def stuck(silent: Pair) -> ferry.Transfer:
    """Returns a transfer that is not final, because of its notification."""
    for _ in range(5000):
        transfer = silent.peer.submit_write([silent.request(64)], notify=b"x", deadline=math.inf)
        try:
            transfer.wait(0.5)
        except ferry.PendingError:
            return transfer
    raise AssertionError("the peer takes any number of notifications")


# ROUNDS requests of LONG bytes each are far more than can be moved during a test.
LONG = 4 << 20
ROUNDS = 1 << 14


class Long(NamedTuple):
    peer: ferry.Peer
    requests: ferry.Requests
    source: ferry.Engine

    def cancelled(self) -> int:
        """Returns how many transfers were cancelled; they are counted before they are final."""
        return self.source.stats().transfers_cancelled


@pytest.fixture
def long() -> Iterator[Long]:
    """A peer, and requests that keep a transfer in progress until it is cancelled."""
    with connected(LONG) as made:
        yield Long(made.peer, ferry.Requests([made.request(LONG)] * ROUNDS), made.source)


class Enough(Exception):
    pass


class Shown(list[tuple[int, int]]):
    """Records a transfer's progress; raises Enough after three different values."""

    def __call__(self, confirmed: int, total: int) -> None:
        self.append((confirmed, total))
        if len(set(self)) == 3:
            raise Enough

    def check(self) -> None:
        assert self == sorted(self) and len(set(self)) == 3
        assert {total for _, total in self} == {LONG * ROUNDS} and self[-1][0] < LONG * ROUNDS


class Rang(Exception):
    """Raised by the handler of a signal."""


@contextmanager
def ringing(seconds: float) -> Iterator[None]:
    """Sends a signal after some seconds; its handler must raise Rang in the block."""

    def ring(*_: object) -> None:
        raise Rang

    before = signal.signal(signal.SIGALRM, ring)
    try:
        with pytest.raises(Rang):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def interrupted(function: str) -> Iterator[None]:
    """Interrupts the block right after a call of this function of the library has succeeded."""
    real = getattr(library, function)

    def interrupt(*arguments: Any) -> int:
        status: int = real(*arguments)
        if status == ferry.Status.OK:
            raise KeyboardInterrupt
        return status

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(library, function, interrupt)
        yield
