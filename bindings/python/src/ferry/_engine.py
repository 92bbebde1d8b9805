"""Engines: open, close, memory, peers, statistics."""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from ctypes import addressof, c_size_t, c_uint64, c_void_p, sizeof
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ._abi import CSetting, CStats, Stats, library
from ._buffers import Pin, Registrable
from ._devices import Held
from ._errors import Error, PendingError, Status, call, encoded, invalid, items_of, nanoseconds, text
from ._memory import HasFileno, Memory, NoPin, Region, allocate, register, register_file
from ._peer import Peer
from ._queue import Queue, create_queue
from ._results import MemoryKind
from ._transfer import Transfer
from ._waits import TURN_NS, apart, in_turns

if TYPE_CHECKING:
    import asyncio

_LOOP_QUEUE_CAPACITY = 65536

Item = TypeVar("Item")


class Setting(NamedTuple):
    """A setting of this library."""

    key: str
    variable: str
    default: str
    valid: str
    description: str


def settings() -> list[Setting]:
    """Lists every setting that Engine takes, with the variable that overrides its default."""
    rows = listed(CSetting, library.ferry_config_settings)
    return [
        Setting(
            *(
                value.decode()
                for value in (row.key, row.variable, row.default_value, row.valid, row.description)
            )
        )
        for row in rows
    ]


def version() -> str:
    """Returns the version of the loaded library."""
    found: bytes = library.ferry_version()
    return found.decode()


def listed(kind: type[Item], function: Callable[..., int], *arguments: object) -> Sequence[Item]:
    """Returns a list of the library; asks again while the list grows."""
    count = c_size_t()
    capacity = 16
    while True:
        found = (kind * capacity)()  # type: ignore[operator]
        call(function, *arguments, addressof(found), sizeof(kind), capacity, addressof(count))  # type: ignore[arg-type]
        if count.value <= capacity:
            return list(found[: count.value])
        capacity = 2 * count.value


def address_of(address: object) -> bytes:
    return encoded(address, "address", ', like "node1:7000"')


class Engine:
    """Registers memory, connects to peers, and moves bytes. Any thread may use it.

    Settings are keywords, as `settings()` lists them: Engine(listen_address="0.0.0.0:7000", lanes=4). They
    override the FERRY_* environment variables. A `with` block closes the engine at its end. In a forked
    child every call raises ClosedError, and closing does nothing.
    """

    # For `__del__`, if the arguments of the constructor are wrong.
    _pointer = 0

    def __init__(self, **settings: str | int | bool) -> None:
        self._pointer = 0
        self._pins: dict[int, Pin | Held | NoPin] = {}
        self._orphans: list[int] = []
        # The objects that unreleased transfers start after, by the transfers' handles.
        self._points: dict[int, object] = {}
        self._process = os.getpid()
        self._queues: weakref.WeakSet[Queue] = weakref.WeakSet()
        self._loop_queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Queue] = (
            weakref.WeakKeyDictionary()
        )
        config, pointer = c_void_p(), c_void_p()
        call(library.ferry_config_new, addressof(config))
        try:
            for key, value in settings.items():
                word = str(value).lower() if isinstance(value, bool) else str(value)
                call(library.ferry_config_set, config, encoded(key, "setting"), encoded(word, key))
            call(library.ferry_engine_open, config, addressof(pointer))
        finally:
            # Also if a signal handler has raised after the call: the finaliser ends the engine.
            self._pointer = pointer.value or 0
            library.ferry_config_free(config)
        for sentence in self.warnings:
            warnings.warn(sentence, RuntimeWarning, stacklevel=2)

    def close(self, timeout: float | None = None) -> None:
        """Closes the engine; afterwards neither the engine nor a peer touches registered memory.

        BusyError: transfers are not final within the timeout; call again.
        """
        in_turns(timeout, lambda turn: call(library.ferry_engine_close, self._pointer, turn))
        # The descriptors of queues don't report the close. In a forked child the loops are the parent's.
        if os.getpid() == self._process:
            for queue in list(self._queues):
                queue._wake()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self, free: Callable[[int], None] = library.ferry_engine_free) -> None:
        # The engine may be freed only here: a call in progress holds the object. Finalisers of the same
        # cycle that run later pass NULL, for which the library returns INVALID.
        pointer, self._pointer = self._pointer, 0
        free(pointer)
        for pin in getattr(self, "_pins", {}).values():
            pin.release()

    def __reduce__(self) -> Any:
        raise TypeError("an engine belongs to its process and cannot be pickled: open one in each process")

    def __repr__(self) -> str:
        try:
            found = self.stats()
            address = self.address or "nowhere"
        except Error as error:  # Closed, of a forked child, or broken.
            return f"<ferry.Engine {error.status_name}>"
        return f"<ferry.Engine at {address}, {found.peers_up} peers, {found.regions} regions>"

    @property
    def address(self) -> str:
        """host:port at which peers reach the engine; empty if the engine does not listen."""
        return text(library.ferry_engine_address, self._pointer).decode()

    @property
    def warnings(self) -> list[str]:
        """Warnings of an engine that has opened nevertheless: FERRY_* variables of the environment that are
        no settings, each with the setting of the nearest name. Opening the engine also issues them as
        RuntimeWarning."""
        return text(library.ferry_engine_warnings, self._pointer).decode().splitlines()

    @property
    def descriptor(self) -> bytes:
        """The address and identity of this engine, for `connect_descriptor` of a peer."""
        return text(library.ferry_descriptor_export, self._pointer)

    def register(
        self,
        buffer: Registrable,
        *,
        access: int | str | None = None,
        name: str | None = None,
        kind: int | str = MemoryKind.AUTO,
        device: int | None = None,
    ) -> Region:
        """Registers the memory of an object, of the host or of a device, and announces it to every peer.

        The object has the buffer protocol, or is a torch tensor (`data_ptr` and `nbytes`), or an array with
        `__cuda_array_interface__` or DLPack: of CUDA, or of the host if numpy is imported. Its memory must
        be contiguous. The call does not wait for device work that has yet to fill the memory; a transfer
        can, with `start_after`. For memory that has only an address, use a ctypes array made by
        `from_address`.

        `access` takes bits of `Access`, or the name of one. The default lets peers READ, and WRITE if the
        buffer is writable. The engine holds the object, so that its memory stays in place, until the region
        is unregistered or the engine is gone. The engine detects the kind and device of the memory; `kind`
        and `device` state them, and are checked.
        """
        return register(self, [buffer], access, name, kind, device)[0]

    def register_many(
        self,
        buffers: Sequence[Registrable],
        *,
        access: int | str | None = None,
        name: str | None = None,
        kind: int | str = MemoryKind.AUTO,
        device: int | None = None,
    ) -> list[Region]:
        """Registers several buffers with the same options, all or none; request_index of an error is the
        index of the buffer that failed."""
        return register(self, buffers, access, name, kind, device)

    def register_file(
        self,
        file: int | HasFileno,
        offset: int,
        length: int,
        access: int | str | None = None,
        *,
        name: str | None = None,
    ) -> Region:
        """Registers `length` bytes of a file or of a block device, from `offset` on, and announces them to
        every peer. `file` is a descriptor, or an object that has one. The engine opens the file anew with its
        rights; it may be closed afterwards.

        Requests name the bytes by the `address` of the result, at which nothing is mapped. The range of a
        file may lie beyond its end: a WRITE there extends the file, and a READ there fails with ENODATA. The
        default of `access` is all that the file is open for."""
        return register_file(self, file, offset, length, access, name)

    def alloc(self, length: int, *, access: int | str | None = None, name: str | None = None) -> Memory:
        """Allocates zeroed, registered memory. Peers on this host can map it, which is the fastest path."""
        return allocate(self, length, access, name)

    def connect(self, address: str, timeout: float | None = None) -> Peer:
        """Connects to the engine at host:port; returns the existing peer if the two are connected already."""
        peer = c_uint64()
        what = self._pointer, address_of(address), nanoseconds(timeout), addressof(peer)
        apart((self, peer), library.ferry_peer_connect, *what)
        return Peer(self, peer.value)

    def connect_descriptor(self, descriptor: bytes, timeout: float | None = None) -> Peer:
        """Connects by the `descriptor` of another engine; StaleError if a different engine answers."""
        peer = c_uint64()
        if not isinstance(descriptor, bytes):
            raise invalid(f"descriptor must be the bytes of Engine.descriptor, not {descriptor!r}")
        what = self._pointer, descriptor, len(descriptor), nanoseconds(timeout), addressof(peer)
        apart((self, peer), library.ferry_descriptor_import, *what)
        return Peer(self, peer.value)

    async def connect_async(self, address: str, timeout: float | None = None) -> Peer:
        """Connects to the engine at host:port, in an event loop."""
        return await self._loop_queue()._connect(address_of(address), timeout)

    def own_peer(self) -> Peer:
        """Returns the engine as a peer of itself, for transfers between two of its own regions and for
        notifications to its own queues. It needs no connect, no listener and no access rights. If the source
        of a transfer overlaps its destination, the bytes in the destination are undefined."""
        peer = c_uint64()
        call(library.ferry_engine_own_peer, self._pointer, addressof(peer))
        return Peer(self, peer.value)

    def peers(self) -> list[Peer]:
        """Lists the known peers, whichever side connected; lost peers stay for a while."""
        count = c_size_t()
        capacity = 64
        while True:
            found = (c_uint64 * capacity)()
            call(library.ferry_peer_list, self._pointer, addressof(found), capacity, addressof(count))
            if count.value <= capacity:
                return [Peer(self, handle) for handle in found[: count.value]]
            capacity = 2 * count.value

    def queue(
        self,
        *,
        transfers: bool = False,
        notifications: bool = False,
        peers: bool = False,
        peer_states: bool = False,
        capacity: int = 1024,
        channel: int = 0,
    ) -> Queue:
        """Creates a queue for the given kinds of events.

        `peers` reports peers that come up or are lost, `peer_states` known peers whose connection goes down
        (PEER_DOWN) or stands again (PEER_UP). `notifications` reports those of `channel`, 0 to 15; one queue
        at a time takes them (BusyError).
        """
        return create_queue(self, transfers, notifications, peers, capacity, peer_states, channel)

    def _loop_queue(self) -> Queue:
        """The queue through which the running event loop awaits transfers and connects."""
        import asyncio

        loop = asyncio.get_running_loop()
        queue = self._loop_queues.get(loop)
        if queue is None:
            queue = create_queue(self, True, False, True, _LOOP_QUEUE_CAPACITY)
            queue._only_awaited = True
            self._loop_queues[loop] = queue
        return queue

    def wait_any(self, transfers: Sequence[Transfer], timeout: float | None = None) -> int:
        """Waits until one of the transfers is final, however it ended; returns its index in the list."""
        items_of(transfers, "transfers", " of Transfers")
        index = c_size_t()
        status = self._wait_for(library.ferry_transfer_wait_any, transfers, timeout, index)
        if status != Status.OK:
            raise PendingError(status, "none of the transfers is final")
        return index.value

    def wait_all(self, transfers: Sequence[Transfer], timeout: float | None = None) -> None:
        """Waits until all of the transfers are final; raises as `Transfer.wait` for the first that is not
        done. PendingError: the timeout has passed, and all go on."""
        items_of(transfers, "transfers", " of Transfers")
        index = c_size_t()
        try:
            status = self._wait_for(library.ferry_transfer_wait_all, transfers, timeout, index)
        except Error:
            if index.value < len(transfers):
                # The error of the transfer, with its result.
                transfers[index.value].wait(0)
            raise
        if status != Status.OK:
            raise PendingError(status, f"transfers[{index.value}] is not final yet")

    def _wait_for(
        self, function: Any, transfers: Sequence[Transfer], timeout: float | None, index: c_size_t
    ) -> int:
        """Waits for several transfers, in turns, so that the interpreter handles signals."""
        handles = (c_uint64 * len(transfers))(*(transfer.handle for transfer in transfers))
        remaining = nanoseconds(timeout)
        until = time.monotonic_ns() + remaining
        while True:
            turn = min(remaining, TURN_NS)
            status = call(function, self._pointer, addressof(handles), len(transfers), turn, addressof(index))
            remaining = until - time.monotonic_ns()
            if status == Status.OK or remaining <= 0:
                return status

    def stats(self) -> Stats:
        """Returns the counters since the engine was opened and the current numbers of objects."""
        found = CStats(struct_size=sizeof(CStats))
        call(library.ferry_engine_get_stats, self._pointer, addressof(found))
        return Stats(*(getattr(found, name) for name in Stats._fields))

    def metrics(self) -> str:
        """Returns the statistics in Prometheus' text format."""
        return text(library.ferry_engine_metrics, self._pointer).decode()

    def _release(self, transfer: int) -> None:
        """Releases a transfer without users; tries again later if it is not final yet."""
        try:
            call(library.ferry_transfer_release, self._pointer, transfer)
        except Error as error:
            if error.status == Status.BUSY:
                self._orphans.append(transfer)
                return
        self._points.pop(transfer, None)

    def _release_orphans(self) -> None:
        dropped, self._orphans = self._orphans, []
        for transfer in dropped:
            self._release(transfer)
