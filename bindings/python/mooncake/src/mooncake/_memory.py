"""The memory of one engine: registered by callers by address, or allocated for them. While the engine has
transfers with itself (_own.py), all of it is registered a second time."""

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
        # The second registration, in the engine that is this engine's peer for transfers with itself.
        self._mirror: ferry.Engine | None = None
        self._mirrored: dict[int, ferry.Region] = {}
        self._settle: Callable[[], None] = lambda: None

    def mirror_in(self, engine: ferry.Engine, settle: Callable[[], None]) -> None:
        """Registers all memory in another engine of this process too, now and from now on; `settle` waits
        until peers of that engine know its memory."""
        with self._lock:
            self._mirror, self._settle = engine, settle
            self._reflect([(address, held.length) for address, held in self._all.items()])

    def mirror_no_more(self) -> None:
        """Forgets the other engine, which is closed: its registrations are over."""
        with self._lock:
            self._mirror = None
            self._mirrored.clear()

    def register(self, addresses: Sequence[int], lengths: Sequence[int], location: str) -> int:
        """Registers all of them or none."""
        kind, device = stated(location)
        if len(addresses) != len(lengths) or not all(addresses) or not all(lengths):
            return FAILED
        if not len(addresses):
            return OK
        regions = self._engine.register_many(list(map(at, addresses, lengths)), kind=kind, device=device)
        try:
            with self._lock:
                self._reflect(list(zip(addresses, lengths)))
                self._all.update((it.address, Held(it, length)) for it, length in zip(regions, lengths))
        except ferry.Error:
            for region in regions:
                region.unregister()
            raise
        return OK

    def unregister(self, addresses: Sequence[int]) -> int:
        """Unregisters all that are known; fails if some are unknown."""
        known = [self._end(address, ferry.Region, ferry.Region.unregister) for address in addresses]
        return OK if all(known) else NOT_REGISTERED

    def allocate(self, length: int) -> int:
        memory = self._engine.alloc(length)
        try:
            with self._lock:
                self._reflect([(memory.address, length)])
                self._all[memory.address] = Held(memory, length)
        except ferry.Error:
            memory.free()
            raise
        return memory.address

    def free(self, address: int) -> int:
        return OK if self._end(address, ferry.Memory, ferry.Memory.free) else NOT_REGISTERED

    def _reflect(self, places: list[tuple[int, int]]) -> None:
        if self._mirror is not None and places:
            regions = self._mirror.register_many([at(*place) for place in places])
            self._mirrored.update((region.address, region) for region in regions)
            self._settle()

    def _end(self, address: int, kind: type[Kind], end: Callable[[Kind], None]) -> bool:
        """Ends memory of this kind, after nothing of the engine's own transfers can reach it as a target.
        Memory that cannot be ended stays known. False if the memory is unknown."""
        with self._lock:
            held = self._all.get(address)
            if held is None or not isinstance(held.it, kind):
                return False
            del self._all[address]
            mirrored = self._mirrored.pop(address, None)
        try:
            if mirrored is not None:
                mirrored.unregister()
                mirrored = None
            end(held.it)
        except ferry.Error:
            with self._lock:
                self._all[address] = held
                if mirrored is not None:
                    self._mirrored[address] = mirrored
            raise
        return True
