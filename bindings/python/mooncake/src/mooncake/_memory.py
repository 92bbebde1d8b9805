"""The memory of one engine: registered by callers by address, or allocated for them."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence

import ferry

OK = 0
FAILED = -1
NOT_REGISTERED = -3
OVERLAP = -7

# What Mooncake calls the devices that ferry has memory of.
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


class Registered:
    """Regions and managed buffers by address. Any thread may use it; results are codes."""

    def __init__(self, engine: ferry.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._regions: dict[int, ferry.Region] = {}
        self._managed: dict[int, ferry.Memory] = {}

    def register(self, addresses: Sequence[int], lengths: Sequence[int], location: str) -> int:
        """Registers all of them or none."""
        kind, device = stated(location)
        if len(addresses) != len(lengths) or not all(addresses) or not all(lengths):
            return FAILED
        # ctypes arrays without an owner: the memory is the caller's, who unregisters it before freeing it.
        # Nothing here touches the memory, so it may be device memory.
        buffers = [(ctypes.c_char * length).from_address(at) for at, length in zip(addresses, lengths)]
        if not buffers:
            return OK
        regions = self._engine.register_many(buffers, kind=kind, device=device)
        with self._lock:
            self._regions.update((region.address, region) for region in regions)
        return OK

    def unregister(self, addresses: Sequence[int]) -> int:
        """Unregisters all that are known; fails if some are unknown."""
        with self._lock:
            regions = [self._regions.pop(address, None) for address in addresses]
        for region in regions:
            if region is not None:
                region.unregister()
        return NOT_REGISTERED if None in regions else OK

    def allocate(self, length: int) -> int:
        memory = self._engine.alloc(length)
        with self._lock:
            self._managed[memory.address] = memory
        return memory.address

    def free(self, address: int) -> int:
        with self._lock:
            memory = self._managed.pop(address, None)
        if memory is None:
            return NOT_REGISTERED
        memory.free()
        return OK
