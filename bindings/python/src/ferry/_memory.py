"""Registered memory: regions of the caller's buffers, and memory that ferry allocates."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import suppress
from ctypes import addressof, c_size_t, c_ubyte, c_uint64, c_void_p, sizeof
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ._abi import CRegionOptions, library
from ._buffers import Pin, host_buffer
from ._devices import Held, held
from ._errors import ClosedError, Error, StaleError, call, invalid
from ._results import Access, MemoryKind
from ._waits import in_turns

if TYPE_CHECKING:
    from ._engine import Engine

_BOTH = Access.REMOTE_READ | Access.REMOTE_WRITE


class Region:
    """A registered buffer or array. Peers use `handle` as remote_region."""

    __slots__ = ("_engine", "handle", "address", "length")

    def __init__(self, engine: Engine, handle: int, address: int, length: int) -> None:
        self._engine = engine
        self.handle = handle
        self.address = address
        self.length = length

    def unregister(self, timeout: float | None = None) -> None:
        """Unregisters the region; afterwards nothing can reach the memory through ferry.

        BusyError while the region is in use. With a timeout of 0 nothing has changed; with a longer timeout
        the region is closed for new work; call again.
        """
        what = self._engine._pointer, self.handle
        in_turns(timeout, lambda turn: call(library.ferry_region_unregister, *what, turn))
        pin = self._engine._pins.pop(self.handle, None)
        if pin is not None:
            pin.release()

    def __enter__(self) -> Region:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A closed engine has no regions, and the block may have unregistered this one.
        with suppress(ClosedError, StaleError):
            self.unregister()

    def __repr__(self) -> str:
        return f"<ferry.Region {self.length} bytes at {self.address:#x}>"


def region_options(
    access: int, name: str | None, kind: int = MemoryKind.AUTO, device: int | None = None
) -> CRegionOptions:
    if kind not in tuple(MemoryKind):
        raise invalid(f"kind: {kind!r} is no MemoryKind")
    if device is not None and kind == MemoryKind.AUTO:
        raise invalid(f"device: {device} is stated without its kind")
    if device is not None and not 0 <= device < 2**31:
        raise invalid(f"device must be at least 0 and below 2**31, not {device}")
    return CRegionOptions(
        struct_size=sizeof(CRegionOptions),
        access=access,
        kind=kind,
        device=device or 0,
        name=None if name is None else name.encode(),
    )


def place(source: Any, name: str, writable: bool) -> Pin | Held:
    """Pins an object's bytes and returns the pin."""
    return held(source, name, writable) or Pin(host_buffer(source, name), name, writable=writable)


def register(
    engine: Engine,
    buffers: Sequence[Any],
    access: int | None,
    name: str | None,
    kind: int = MemoryKind.AUTO,
    device: int | None = None,
) -> list[Region]:
    """Registers buffers and passes their pins to the engine. The default access is all that they allow."""
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


class Memory:
    """Memory that ferry allocated. `view` has its bytes; numpy.frombuffer(view) makes an array of them."""

    __slots__ = ("_engine", "_mapped", "_view", "handle", "address", "length")

    def __init__(self, engine: Engine, handle: int, address: int, length: int) -> None:
        self._engine = engine
        self._mapped: weakref.ref[Any] | None = None
        self._view: memoryview | None = None
        self.handle = handle
        self.address = address
        self.length = length

    @property
    def view(self) -> memoryview:
        """The bytes. The engine's memory stays mapped while the view, or an object made from it, lives."""
        if self.handle == 0:
            raise invalid("the memory has been freed")
        if self._view is None:
            mapped = (c_ubyte * self.length).from_address(self.address)
            mapped._engine = self._engine  # type: ignore[attr-defined]
            self._mapped = weakref.ref(mapped)
            self._view = memoryview(mapped).cast("B")
        return self._view

    def __buffer__(self, flags: int) -> memoryview:
        """Returns `view`. From Python 3.12 on, memoryview, bytes and numpy take the Memory itself."""
        return self.view

    def free(self, timeout: float | None = None) -> None:
        """Unregisters and unmaps the memory, and releases `view`.

        BufferError, with the memory unchanged, while arrays or slices made from `view` live. BusyError as
        in `Region.unregister`.
        """
        if self._view is not None:
            self._view.release()
            self._view = None
        if self._mapped is not None and self._mapped() is not None:
            raise BufferError("arrays or slices of this memory are still in use")
        what = self._engine._pointer, self.handle
        in_turns(timeout, lambda turn: call(library.ferry_memory_free, *what, turn))
        self.handle = 0

    def __enter__(self) -> Memory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.handle == 0:
            # The block has freed the memory.
            return
        try:
            self.free()
        except ClosedError:
            pass
        except (BufferError, Error):
            # Don't hide a failure of the `with` block; its traceback may hold arrays.
            if error is None:
                raise

    def __len__(self) -> int:
        return self.length

    def __repr__(self) -> str:
        return f"<ferry.Memory {self.length} bytes at {self.address:#x}>"


def allocate(engine: Engine, length: int, access: int | None, name: str | None) -> Memory:
    options = region_options(_BOTH if access is None else access, name)
    address = c_void_p()
    handle = c_uint64()
    if length < 0:
        raise invalid(f"length must be at least 1, not {length}")
    call(
        library.ferry_memory_alloc,
        engine._pointer,
        length,
        addressof(options),
        addressof(address),
        addressof(handle),
    )
    return Memory(engine, handle.value, address.value or 0, length)
