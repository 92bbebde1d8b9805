"""Engines in this process, connected over loopback, and data that says where it belongs."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import pytest

import ferry

LENGTH = 1 << 16


def positions(length: int, seed: int) -> bytes:
    """Every 8 bytes encode where they belong, and of what."""
    return b"".join(struct.pack("<II", place, seed) for place in range(length // 8))


class Pair(NamedTuple):
    """One engine with a peer, registered memory of each, and what the first knows of the second's."""

    source: ferry.Engine
    target: ferry.Engine
    peer: ferry.Peer
    local: ferry.Memory
    remote: ferry.Memory
    inbox: ferry.RemoteRegion

    def request(self, length: int = LENGTH, offset: int = 0) -> tuple[int, int, int, int]:
        return (self.local.address + offset, self.inbox.address + offset, length, self.inbox.handle)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ferry.Engine() as source, ferry.Engine() as target:
        local = source.alloc(LENGTH)
        remote = target.alloc(LENGTH, name="inbox")
        peer = source.connect(target.address, timeout=10)
        yield Pair(source, target, peer, local, remote, peer.region("inbox"))
