"""Registered memory: regions of the caller's buffers, and memory that ferry allocates."""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from contextlib import suppress
from ctypes import addressof, c_size_t, c_ubyte, c_uint64, c_void_p, sizeof
from fcntl import F_GETFL, fcntl
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from ._abi import CRegionOptions, library
from ._buffers import Pin, host_buffer
from ._devices import Held, held
from ._errors import ClosedError, Error, StaleError, call, encoded, invalid, member, unsigned
from ._results import Access, MemoryKind
from ._waits import in_turns

if TYPE_CHECKING:
    from ._engine import Engine

_BOTH = Access.REMOTE_READ | Access.REMOTE_WRITE


class HasFileno(Protocol):
    """An object with a descriptor, such as an open file."""

    def fileno(self) -> int: ...


class Region:
    """A registered buffer, array or range of a file. Peers use `handle` as remote_region."""

    __slots__ = ("_engine", "handle", "address", "length")

    def __init__(self, engine: Engine, handle: int, address: int, length: int) -> None:
        self._engine = engine
        self.handle: int = handle
        self.address: int = address
        self.length: int = length

    def close(self, timeout: float | None = None) -> None:
        """Unregisters the region: afterwards nothing can reach the memory through ferry. Does nothing for a
        region that is closed, or whose engine is.

        BusyError while the region is in use. With a timeout of 0 nothing has changed; with a longer timeout
        the region is closed for new work; call again.
        """
        what = self._engine._pointer, self.handle
        with suppress(ClosedError):
            # STALE: the region was unregistered before, and its pin may be left by a signal's handler.
            with suppress(StaleError):
                in_turns(timeout, lambda turn: call(library.ferry_region_unregister, *what, turn))
            pin = self._engine._pins.pop(self.handle, None)
            if pin is not None:
                pin.release()

    unregister = close

    def __enter__(self) -> Region:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        closed = "" if self.handle in self._engine._pins else ", closed"
        return f"<ferry.Region {self.length} bytes at {self.address:#x}{closed}>"


def region_options(
    access: int | str, name: str | None, kind: int | str = MemoryKind.AUTO, device: int | None = None
) -> CRegionOptions:
    kind = member(MemoryKind, kind, "kind")
    if device is not None and kind == MemoryKind.AUTO:
        raise invalid(f"device: {device} is stated without its kind")
    if device is not None and not 0 <= device < 2**31:
        raise invalid(f"device must be at least 0 and below 2**31, not {device}")
    return CRegionOptions(
        struct_size=sizeof(CRegionOptions),
        access=member(Access, access, "access"),
        kind=kind,
        device=device or 0,
        name=None if name is None else encoded(name, "name"),
    )


def place(source: Any, name: str, writable: bool) -> Pin | Held:
    """Pins an object's bytes and returns the pin."""
    return held(source, name, writable) or Pin(host_buffer(source, name), name, writable=writable)


def register(
    engine: Engine,
    buffers: Sequence[Any],
    access: int | str | None,
    name: str | None,
    kind: int | str = MemoryKind.AUTO,
    device: int | None = None,
) -> list[Region]:
    """Registers buffers and passes their pins to the engine. The default access is all that they allow."""
    if access is not None:
        access = member(Access, access, "access")
    pins: list[Pin | Held] = []
    handles: Any = ()
    try:
        for index, buffer in enumerate(buffers):
            label = "buffer" if len(buffers) == 1 else f"buffers[{index}]"
            pins.append(place(buffer, label, access is not None and bool(access & Access.REMOTE_WRITE)))
        if access is None:
            access = Access.REMOTE_READ if any(pin.readonly for pin in pins) else _BOTH
        addresses = (c_void_p * len(pins))(*(pin.address for pin in pins))
        lengths = (c_size_t * len(pins))(*(pin.length for pin in pins))
        handles = (c_uint64 * len(pins))()
        options = region_options(access, name, kind, device)
        call(
            library.ferry_region_register_batch,
            engine._pointer,
            addressof(addresses),
            addressof(lengths),
            len(pins),
            addressof(options),
            addressof(handles),
        )
    except BaseException:
        if any(handles):
            # A signal handler has raised after the call had succeeded: peers can reach the memory.
            engine._pins.update(zip(handles, pins))
        else:
            for pin in pins:
                pin.release()
        raise
    engine._pins.update(zip(handles, pins))
    return [Region(engine, handle, pin.address, pin.length) for handle, pin in zip(handles, pins)]


class NoPin:
    """Stands for the pin of a region that borrows no memory of this process."""

    def release(self) -> None:
        pass


def register_file(
    engine: Engine,
    file: int | HasFileno,
    offset: int,
    length: int,
    access: int | str | None,
    name: str | None,
) -> Region:
    fd = file if isinstance(file, int) else file.fileno()
    if access is None:
        mode = fcntl(fd, F_GETFL) & os.O_ACCMODE
        access = {os.O_RDONLY: Access.REMOTE_READ, os.O_WRONLY: Access.REMOTE_WRITE}.get(mode, _BOTH)
    options = region_options(access, name)
    address, handle = c_uint64(), c_uint64()
    what = unsigned(fd, "file", 31), unsigned(offset, "offset", 63), unsigned(length, "length", 63)
    out = addressof(address), addressof(handle)
    call(library.ferry_region_register_file, engine._pointer, *what, addressof(options), *out)
    engine._pins[handle.value] = NoPin()
    return Region(engine, handle.value, address.value, length)


class Memory:
    """Memory that ferry allocated. `view` has its bytes; numpy.frombuffer(view) makes an array of them.

    A `with` block closes the memory at its end.
    """

    __slots__ = ("_engine", "_mapped", "handle", "address", "length")

    def __init__(self, engine: Engine, handle: int, address: int, length: int) -> None:
        self._engine = engine
        self.handle: int = handle
        """What peers name in requests; 0 when the memory is closed."""
        self.address: int = address
        self.length: int = length
        # Every view refers to it.
        mapped: Any = (c_ubyte * length).from_address(address)
        mapped._engine = engine
        self._mapped: Any = mapped

    @property
    def view(self) -> memoryview:
        """The bytes. They stay mapped while the view, or an object made from it, lives, whatever is
        closed."""
        mapped = self._mapped
        if mapped is None:
            raise invalid("the memory is closed")
        return memoryview(mapped).cast("B")

    def __buffer__(self, flags: int) -> memoryview:
        """Returns `view`. From Python 3.12 on, memoryview, bytes and numpy take the Memory itself."""
        return self.view

    def close(self, timeout: float | None = None) -> None:
        """Unregisters the memory: afterwards nothing can reach it through ferry. It is unmapped now, or, if
        views or arrays made from `view` live, with the last of them. BusyError as in `Region.close`. Does
        nothing for closed memory."""
        what = self._engine._pointer, self.handle
        # A closed engine unmaps its memory when the last view is gone.
        with suppress(ClosedError, StaleError):
            if self.handle != 0:
                in_turns(timeout, lambda turn: call(library.ferry_region_unregister, *what, turn))
        mapped, self._mapped, self.handle = self._mapped, None, 0
        if mapped is not None:
            weakref.finalize(mapped, _unmap, self._engine, what[1]).atexit = False

    free = close

    def __enter__(self) -> Memory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        closed = ", closed" if self.handle == 0 else ""
        return f"<ferry.Memory {self.length} bytes at {self.address:#x}{closed}>"


def _unmap(engine: Engine, handle: int) -> None:
    with suppress(Error):
        call(library.ferry_memory_free, engine._pointer, handle, 0)


def allocate(engine: Engine, length: int, access: int | str | None, name: str | None) -> Memory:
    options = region_options(_BOTH if access is None else access, name)
    address = c_void_p()
    handle = c_uint64()
    length = unsigned(length, "length", 63)
    out = addressof(address), addressof(handle)
    try:
        call(library.ferry_memory_alloc, engine._pointer, length, addressof(options), *out)
        return Memory(engine, handle.value, address.value or 0, length)
    except BaseException:
        # A signal's handler may raise behind the call, which takes long for much memory.
        if handle.value:
            _unmap(engine, handle.value)
        raise
