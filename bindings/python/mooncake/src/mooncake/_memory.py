"""The memory of one engine: registered by callers by address, or allocated for them."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import ferry

OK = 0
FAILED = -1
NOT_REGISTERED = -3
OVERLAP = -7

Kind = TypeVar("Kind", ferry.Region, ferry.Memory)

# Mooncake's names of the devices that ferry supports.
DEVICES = {"cuda": ferry.MemoryKind.CUDA, "npu": ferry.MemoryKind.ASCEND}


def stated(location: str) -> tuple[ferry.MemoryKind, int | None]:
    """Returns the device that "cuda:0" or "npu:0" names; for other words ferry detects the location."""
    name, _, number = location.partition(":")
    if name not in DEVICES:
        return ferry.MemoryKind.AUTO, None
    if not (number.isascii() and number.isdigit()) or int(number) >= 2**31:
        message = f"location {location!r} names no device: {name}:0 is the first"
        raise ferry.InvalidError(ferry.Status.INVALID, message)
    return DEVICES[name], int(number)


class Held(NamedTuple):
    """Registered memory: a region of the caller's, or memory that ferry allocated."""

    it: ferry.Region | ferry.Memory
    length: int


def at(address: int, length: int) -> ctypes.Array[ctypes.c_char]:
    """Returns a ctypes array without an owner: the memory is the caller's, who unregisters it before freeing
    it. Nothing here touches the memory, so it may be device memory."""
    return (ctypes.c_char * length).from_address(address)


class Registered:
    """Regions and managed buffers by address. Any thread may use it; results are codes."""

    def __init__(self, engine: ferry.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        # In the order of registration, which peers can ask for.
        self._all: dict[int, Held] = {}

    def register(self, addresses: Sequence[int], lengths: Sequence[int], location: str) -> int:
        """Registers all of them or none."""
        kind, device = stated(location)
        if len(addresses) != len(lengths) or not all(addresses) or not all(lengths):
            return FAILED
        if not len(addresses):
            return OK
        regions = self._engine.register_many(list(map(at, addresses, lengths)), kind=kind, device=device)
        with self._lock:
            self._all.update((it.address, Held(it, length)) for it, length in zip(regions, lengths))
        return OK

    def unregister(self, addresses: Sequence[int]) -> int:
        """Unregisters all that are known; fails if some are unknown."""
        known = [self._end(address, ferry.Region, ferry.Region.unregister) for address in addresses]
        return OK if all(known) else NOT_REGISTERED

    def allocate(self, length: int) -> int:
        memory = self._engine.alloc(length)
        with self._lock:
            self._all[memory.address] = Held(memory, length)
        return memory.address

    def free(self, address: int) -> int:
        return OK if self._end(address, ferry.Memory, ferry.Memory.free) else NOT_REGISTERED

    def _end(self, address: int, kind: type[Kind], end: Callable[[Kind], None]) -> bool:
        """Ends memory of this kind. Memory that cannot be ended stays known. False if it is unknown."""
        with self._lock:
            held = self._all.get(address)
            if held is None or not isinstance(held.it, kind):
                return False
            del self._all[address]
        try:
            end(held.it)
        except ferry.Error:
            with self._lock:
                self._all[address] = held
            raise
        return True
