"""Peers: information about them, and the transfers to and from them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from ctypes import addressof, c_uint64, sizeof
from typing import TYPE_CHECKING, Any, NamedTuple

from ._abi import READ, WRITE, CPathInfo, CPeerInfo, CRegionInfo, CRequestResult, library
from ._errors import (
    ClosedError,
    Error,
    NotRegisteredError,
    StaleError,
    call,
    encoded,
    invalid,
    nanoseconds,
    unsigned,
)
from ._numbers import Number, Transport, number
from ._requests import Blocks, give_back, options_of, requests_of
from ._results import RESULT_BYTES, Access, MemoryKind, RequestResult, Result
from ._transfer import Transfer
from ._uniform import LayerBlocks
from ._waits import TURN_NS, apart, in_turns

if TYPE_CHECKING:
    from typing_extensions import Buffer, Unpack

    from ._engine import Engine
    from ._memory import Memory, Region
    from ._requests import Options, RequestsLike, SubmitOptions

    ShowsProgress = Callable[[int, int], object]


class PeerState(Number):
    CONNECTING = 0
    UP = 1
    DOWN = 2
    LOST = 3


class RemoteRegion(NamedTuple):
    """A region that a peer registered. `request` makes requests of it, and a request's fourth element may
    be the region itself."""

    handle: int
    address: int
    length: int
    access: Access
    name: str
    kind: MemoryKind
    """The kind of memory at the peer."""
    device: int
    """Number of the device in the peer's process, for the kinds that have one; otherwise 0."""
    order: int
    """Rises with each region that the peer registers: of two regions the lower number came first."""

    def request(
        self, local: Memory | Region, *, offset: int = 0, local_offset: int = 0, length: int | None = None
    ) -> tuple[int, int, int, int]:
        """Returns a request between `local`, from `local_offset` on, and this region, from `offset` on. The
        default `length` is the rest of `local`."""
        here, there = unsigned(local_offset, "local_offset", 64), unsigned(offset, "offset", 64)
        if not hasattr(local, "address"):
            raise invalid(f"local must be a Memory or a Region, not {local!r}")
        rest = max(local.length - here, 0) if length is None else length
        return local.address + here, self.address + there, rest, self.handle


def remote_region(row: CRegionInfo) -> RemoteRegion:
    return RemoteRegion(
        row.region,
        row.address,
        row.length,
        Access(row.access),
        row.name.decode(errors="replace"),
        number(MemoryKind, row.kind),
        row.device,
        row.order,
    )


class PeerInfo(NamedTuple):
    state: PeerState
    engine_id: bytes
    incarnation: int
    round_trip: float
    """The round trip of the last probe, in seconds; 0 before the first probe."""
    transfers_active: int
    lanes: int
    same_host: bool
    address: str


class Path(NamedTuple):
    """One path to a peer, and why it is or is not chosen."""

    transport: Transport
    chosen: bool
    why: str


def only_result(result: Result, error: Error) -> RequestResult:
    """Returns the outcome of the only request of a transfer."""
    fields = CRequestResult(
        sizeof(CRequestResult),
        error.status,
        0,
        result.bytes_confirmed,
        error.os_error,
        error.vendor_error,
        result.transport,
    )
    return RequestResult.from_buffer_copy(fields)


class Peer:
    """A remote engine, whichever side connected. The handle of a lost peer stays lost: connect again."""

    __slots__ = ("_engine", "handle")

    def __init__(self, engine: Engine, handle: int) -> None:
        self._engine = engine
        self.handle: int = handle

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Peer) and other._engine is self._engine and other.handle == self.handle

    def __hash__(self) -> int:
        return hash(self.handle)

    def __repr__(self) -> str:
        try:
            found = self.info()
        except Error as error:
            return f"<ferry.Peer {self.handle:#x}, {error.status_name}>"
        return f"<ferry.Peer at {found.address}, {found.state.name}, {found.transfers_active} transfers>"

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def info(self) -> PeerInfo:
        found = CPeerInfo(struct_size=sizeof(CPeerInfo))
        call(library.ferry_peer_get_info, self._engine._pointer, self.handle, addressof(found))
        return PeerInfo(
            number(PeerState, found.state),
            bytes(found.engine_id),
            found.incarnation,
            found.round_trip_ns / 1e9,
            found.transfers_active,
            found.lanes,
            bool(found.same_host),
            found.address.decode(),
        )

    def regions(self) -> list[RemoteRegion]:
        """Lists the regions that the peer has announced, in order of address; after connect, all of them."""
        from ._engine import listed

        rows = listed(CRegionInfo, library.ferry_peer_regions, self._engine._pointer, self.handle)
        return [remote_region(row) for row in rows]

    def region(self, name: str) -> RemoteRegion:
        """Returns the region of this name, or the last registered one if several have the name.
        NotRegisteredError, a KeyError: the peer has announced no such region; the message lists those that it
        has."""
        found = CRegionInfo(struct_size=sizeof(CRegionInfo))
        wanted, place = encoded(name, "name"), addressof(found)
        try:
            call(library.ferry_peer_region, self._engine._pointer, self.handle, wanted, place)
        except NotRegisteredError as error:
            raise NotRegisteredError(error.status, self._no_region(name)) from None
        return remote_region(found)

    def _no_region(self, name: str) -> str:
        import difflib

        names = sorted({region.name for region in self.regions()} - {""})
        near = "".join(f"; did you mean {it!r}?" for it in difflib.get_close_matches(name, names, 1))
        listed = ", ".join(map(repr, names[:20])) + (", ..." if len(names) > 20 else "")
        return f"the peer has no region {name!r}{near or '.'} It has {listed or 'none with a name'}"

    def paths(self) -> list[Path]:
        """Lists every path to the peer, chosen or not, and why."""
        from ._engine import listed

        rows = listed(CPathInfo, library.ferry_peer_paths, self._engine._pointer, self.handle)
        return [
            Path(number(Transport, row.transport), bool(row.chosen), row.why.decode(errors="replace"))
            for row in rows
        ]

    def probe(self, timeout: float | None = None) -> float:
        """Sends a probe and waits for the answer; returns the round trip in seconds."""
        found = c_uint64()
        what = self._engine._pointer, self.handle, nanoseconds(timeout), addressof(found)
        apart((self._engine, found), library.ferry_peer_probe, *what)
        return found.value / 1e9

    def fence(self, timeout: float | None = None) -> None:
        """Fences the peer: returns when nothing that the peer sends can land here any more. This engine
        refuses the peer until it connects to the peer."""
        what = self._engine._pointer, self.handle, nanoseconds(timeout)
        apart(self._engine, library.ferry_peer_fence, *what)

    def close(self, timeout: float | None = None) -> None:
        """Closes the session; transfers fail with CLOSED. BusyError: they are not final yet; call again. Does
        nothing if the peer or its engine is closed."""
        what = self._engine._pointer, self.handle
        with contextlib.suppress(ClosedError, StaleError):
            in_turns(timeout, lambda turn: call(library.ferry_peer_close, *what, turn))

    def notify(self, data: Buffer, deadline: float | None = None) -> None:
        """Sends bytes to the peer's application on channel 0; returns when the peer has taken them in.
        `submit_write` of no requests sends its `notify` without waiting, and on any `channel`.

        `deadline` is in seconds; the default is the setting deadline_ms.
        """
        options: Any = {"notify": data}
        if deadline is not None:
            options["deadline"] = deadline
        transfer = self._run(WRITE, None, 0, options, Result(RESULT_BYTES))
        if transfer is None:
            return
        try:
            transfer.wait()
        except BaseException:
            # Control-C. There is no memory to wait for.
            with contextlib.suppress(Error):
                transfer.cancel()
            raise

    def write(
        self, requests: RequestsLike, *, progress: ShowsProgress | None = None, **options: Unpack[Options]
    ) -> Result:
        """WRITEs local memory to the peer, and waits until the bytes are visible there.

        `requests` are what `RemoteRegion.request` returns, or tuples (local, remote, length, remote_region)
        of addresses and a region, or `Requests`, or an array with the layout REQUEST_DTYPE, which the
        library reads in place. A tuple without the region means whatever region the peer has at the address
        when the bytes arrive, which may be a newer one than the caller knows. If the transfer fails, the
        exception has its `result`, and its failed requests in `results`. `progress` is called as in
        `Transfer.wait`; if `progress` raises, the transfer is cancelled. Control-C cancels the transfer,
        and raises when the transfer is final and its memory is the caller's again.
        """
        return self._move(WRITE, requests, progress, options)

    def read(
        self, requests: RequestsLike, *, progress: ShowsProgress | None = None, **options: Unpack[Options]
    ) -> Result:
        """READs the peer's memory into local memory. Behaves as `write` otherwise."""
        return self._move(READ, requests, progress, options)

    def submit_write(self, requests: RequestsLike, **options: Unpack[SubmitOptions]) -> Transfer:
        """Starts a WRITE. The memory that the requests name belongs to the transfer until it is final."""
        return self._submit(WRITE, requests, options)

    def submit_read(self, requests: RequestsLike, **options: Unpack[SubmitOptions]) -> Transfer:
        """Starts a READ. Behaves as `submit_write` otherwise."""
        return self._submit(READ, requests, options)

    def submit_write_blocks(self, blocks: Blocks | LayerBlocks, **options: Unpack[SubmitOptions]) -> Transfer:
        """Starts a WRITE of blocks: `Blocks`, or what `UniformBlocks.blocks` returns."""
        return self._submit_blocks(WRITE, blocks, options)

    def submit_read_blocks(self, blocks: Blocks | LayerBlocks, **options: Unpack[SubmitOptions]) -> Transfer:
        """Starts a READ of blocks."""
        return self._submit_blocks(READ, blocks, options)

    async def write_async(
        self, requests: RequestsLike, *, progress: ShowsProgress | None = None, **options: Unpack[Options]
    ) -> Result:
        """`write` in an event loop. If the task is cancelled, the transfer is cancelled too, and
        CancelledError is raised when the transfer is final and its memory is the caller's again."""
        return await self._move_async(WRITE, requests, progress, options)

    async def read_async(
        self, requests: RequestsLike, *, progress: ShowsProgress | None = None, **options: Unpack[Options]
    ) -> Result:
        """`read` in an event loop. Behaves as `write_async` otherwise."""
        return await self._move_async(READ, requests, progress, options)

    def _move(self, op: int, requests: Any, progress: Any, options: Any) -> Result:
        given = requests_of(requests)
        try:
            if given._count != 1 or progress is not None:
                # ferry_transfer_run forgets the outcome of requests, which the exception must carry.
                return self._wait_for(self._submit(op, given, options), progress)
            result = Result(RESULT_BYTES)
            try:
                transfer = self._run(op, given._address, 1, options, result)
            except Error as error:
                # The result is written only if a transfer took place.
                if result.state != 0:
                    error.result = result
                    error.results = [only_result(result, error)]
                raise
            return result if transfer is None else self._wait_for(transfer, None)
        finally:
            give_back(given)

    def _run(self, op: int, address: int | None, count: int, options: Any, result: Result) -> Transfer | None:
        """Moves requests in one call if that takes no longer than a turn; otherwise returns the transfer."""
        made = options_of(options) if options else None
        handle = c_uint64()
        places = made.address if made else None, TURN_NS, addressof(handle), addressof(result)
        try:
            call(library.ferry_transfer_run, self._engine._pointer, self.handle, op, address, count, *places)
        except BaseException:
            if handle.value != 0:
                # A signal handler has raised after the call.
                Transfer(self._engine, handle.value, None)._settle()
            raise
        if handle.value == 0:
            return None
        if "start_after" in options:
            self._engine._points[handle.value] = options["start_after"]
        return Transfer(self._engine, handle.value, None)

    def _wait_for(self, transfer: Transfer, progress: Any) -> Result:
        try:
            return transfer.wait(progress=progress)
        except BaseException:
            # Control-C, or `progress` raised. The code that handles the exception may use the memory.
            transfer._settle()
            raise

    def _submit(self, op: int, requests: Any, options: Any) -> Transfer:
        given = requests_of(requests)
        try:
            return self._start(library.ferry_transfer_submit, options, op, given._address, given._count)
        finally:
            if given is not requests:
                give_back(given)

    def _submit_blocks(self, op: int, blocks: Blocks | LayerBlocks, options: Any) -> Transfer:
        equal = isinstance(blocks, LayerBlocks)
        if not equal and not isinstance(blocks, Blocks):
            raise invalid(f"blocks must be Blocks, or what UniformBlocks.blocks returns, not {blocks!r}")
        function = library.ferry_transfer_submit_uniform if equal else library.ferry_transfer_submit_blocks
        return self._start(function, options, op, blocks._address)

    def _start(self, function: Any, options: Any, *what: int) -> Transfer:
        if self._engine._orphans:
            self._engine._release_orphans()
        made = options_of(options) if options else None
        handle = c_uint64()
        place = made.address if made else None
        queue = options.get("queue")
        try:
            call(function, self._engine._pointer, self.handle, *what, place, addressof(handle))
        except BaseException:
            if handle.value != 0:
                # A signal handler has raised after the call had started the transfer. The code that handles
                # the exception may use the memory.
                Transfer(self._engine, handle.value, queue)._settle()
            raise
        if "start_after" in options:
            # Also for a dropped transfer: the device's event must live until the transfer is final.
            self._engine._points[handle.value] = options["start_after"]
        return Transfer(self._engine, handle.value, queue)

    async def _move_async(self, op: int, requests: Any, progress: Any, options: Any) -> Result:
        transfer = self._submit(op, requests, {**options, "queue": self._engine._loop_queue()})
        try:
            return await transfer.wait_async(progress=progress)
        except BaseException:
            # However often the task is cancelled: the memory is not the caller's before the transfer is
            # final.
            await transfer._settle_async()
            raise
