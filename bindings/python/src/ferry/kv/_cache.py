"""A rank's cache: offers of a producer, takes of a consumer, and the events that tell how they end."""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from ctypes import addressof, c_int, c_size_t, c_uint64, c_void_p, sizeof
from types import TracebackType
from typing import TYPE_CHECKING, overload

from .._abi import library
from .._devices import StartAfter, point_of
from .._errors import Error, Status, call, invalid, items_of, member, nanoseconds, text, unsigned
from .._waits import TURN_NS, in_turns
from ._abi import (
    ALL_LAYERS,
    NO_RANK,
    TAKE_LAYERS,
    CCacheEvent,
    CCacheOptions,
    CMemory,
    COfferOptions,
    CState,
    CStats,
    CTakeOptions,
    Stats,
)
from ._blocks import Lists, layer_range
from ._events import Event, State, Waiters, event_of, state_of
from ._handle import Handle, opened
from ._layout import Layout
from ._numbers import Mode, id_of
from ._timeline import Timeline

if TYPE_CHECKING:
    from .._engine import Engine
    from .._memory import Memory, Region
    from .._peer import Peer
    from ._blocks import BlocksLike


class Cache:
    """One rank's cache in registered memory of an engine. Any thread may use it.

    Each layer of this rank's stage lies in one item of `memory`, which stays registered until the cache is
    closed. An engine has one cache; it takes the notifications of channel 1. A peer that is silent for
    `silence_ms` (0 means 1,000) while something is expected of it is fenced, and its handoffs end. Sealed
    offers that nobody has taken hold at most `leased_blocks_max` blocks (0 is no bound): a seal that exceeds
    it ends the oldest of them. Blocks belong to their offer or take until its terminal event.

    A `with` block closes the cache at its end. In a forked child every call raises ClosedError, and closing
    does nothing.
    """

    def __init__(
        self,
        engine: Engine,
        layout: Layout,
        memory: Memory | Region | Sequence[Memory | Region],
        *,
        silence_ms: int = 0,
        leased_blocks_max: int = 0,
    ) -> None:
        if not isinstance(layout, Layout):
            raise invalid(f"layout must be a Layout, not {layout!r}")
        regions = list(memory) if isinstance(memory, Sequence) else [memory]
        for at, region in enumerate(regions):
            if getattr(region, "_engine", None) is not engine:
                raise invalid(f"memory[{at}] is no registered memory of the engine")
        ranges = (CMemory * len(regions))(
            *(CMemory(sizeof(CMemory), 0, it.handle, it.address, it.length) for it in regions)
        )
        options = CCacheOptions(
            sizeof(CCacheOptions),
            unsigned(silence_ms, "silence_ms"),
            unsigned(leased_blocks_max, "leased_blocks_max", 64),
        )
        pointer = c_void_p()
        what = engine._pointer, opened(layout._handle, "layout").pointer, addressof(ranges), len(regions)
        try:
            call(library.ferry_kv_cache_open, *what, addressof(options), addressof(pointer))
        finally:
            # The memory of a cache that is dropped without a close may still be written to. Also if a signal
            # handler has raised after the call: the handle ends the cache.
            self._handle = Handle(pointer.value or 0, library.ferry_kv_cache_free, engine, regions)
        self._engine = engine
        self._group_count = layout.group_count
        self._layout = f"rank {layout.rank} of {layout.ranks}"
        self._state = ""
        # Events of calls that a signal handler then ended by an exception; older than those of the library.
        self._kept: deque[Event] = deque()
        self._waiters = Waiters(self.fileno, self._kept)
        self.timeline: Timeline = Timeline(self._handle)
        """What happens to the cache's handoffs, recorded while a program asks for it."""

    def offer(
        self,
        id: bytes,
        blocks: BlocksLike,
        *,
        takers: int = 1,
        only: Sequence[Peer] | None = None,
        lease: float = 30.0,
    ) -> None:
        """Offers blocks of a sequence; `ready` says what of it is computed.

        `blocks` has a list of block ids for each group of the layout, or, if there is one group, is the list.
        Arrays of 32-bit integers are used without a copy. The offer ends when `takers` consumers have ended,
        or when not all are there `lease` seconds after `seal`. `only` are the peers that may take it.
        """
        options = COfferOptions(struct_size=sizeof(COfferOptions), takers=unsigned(takers, "takers"))
        if takers == 0:
            raise invalid("takers must be at least 1")
        if only is not None and len(only) == 0:
            raise invalid("only names no peer; None is every peer")
        peers = self._peers(only or (), "only")
        options.only, options.only_count = addressof(peers) if only else None, len(peers)
        options.lease_ms = _milliseconds(lease, "lease")
        with Lists(blocks, self._group_count) as lists:
            options.blocks, options.group_count = lists.address, lists.count
            call(library.ferry_kv_offer, self._handle.pointer, id_of(id), addressof(options))

    def extend(self, id: bytes, blocks: BlocksLike) -> None:
        """Adds blocks to an offer, after those that it has. Their `first_token` counts only for a group that
        has no blocks."""
        with Lists(blocks, self._group_count) as lists:
            call(library.ferry_kv_offer_extend, self._handle.pointer, id_of(id), lists.address, lists.count)

    def ready(self, id: bytes, tokens: int, layers: tuple[int, int] | int | None = None) -> None:
        """Says that the first `tokens` tokens of the sequence are in their blocks: in all layers, in one, or
        in those from the first to before the end. Layers become ready in order, anew for each chunk."""
        first, end = layer_range(layers, ALL_LAYERS)
        count = unsigned(tokens, "tokens", 64)
        call(library.ferry_kv_offer_ready, self._handle.pointer, id_of(id), first, end, count)

    def ready_after(
        self, id: bytes, tokens: int, event: object, layers: tuple[int, int] | int | None = None
    ) -> None:
        """Does as `ready` when the program's work on a device has come to a point. Does not wait for that.

        `event` is an event of CUDA as it is recorded now: an object with `cuda_event`, or the number of its
        handle. It may also be the work that a stream has been given so far (an object with `cuda_stream`,
        `__cuda_stream__` or `npu_stream`), or a `ferry.StartAfter` and a handle. The point is taken in the
        call: afterwards the program may record the event anew, or destroy it.

        Layers become ready in the order of the calls, those of `ready` included. If the work before the point
        fails, so does the offer, with the device's status. UNSUPPORTED: an event of Ascend; give its stream.
        """
        first, end = layer_range(layers, ALL_LAYERS)
        count = unsigned(tokens, "tokens", 64)
        point = (StartAfter.CUDA_EVENT, event) if isinstance(event, int) else event
        kind, handle = point_of(point, "event")
        arguments = self._handle.pointer, id_of(id), first, end, count, kind, handle
        call(library.ferry_kv_offer_ready_after, *arguments)

    def seal(self, id: bytes, tokens: int) -> None:
        """Says that the sequence has `tokens` tokens, and that no more blocks come. The lease begins."""
        call(library.ferry_kv_offer_seal, self._handle.pointer, id_of(id), unsigned(tokens, "tokens", 64))

    def retract(self, id: bytes, from_token: int, timeout: float | None = None) -> None:
        """Takes back the tokens of an offer from `from_token` on, and its seal, for example when a sequence
        is preempted. Waits until nothing reads them any more.

        Afterwards the blocks without a token before `from_token` are the caller's, and the block that stays
        may be written from there on. The offer goes on: `extend`, `ready`, `seal`. A take that has reported
        complete layers with one of these tokens fails, with STALE.

        BusyError: a taker has not answered within the timeout. Nothing is free yet, and the tokens are taken
        back all the same: call again with the same token or an earlier one, or cancel the offer.
        """
        token = unsigned(from_token, "from_token", 64)
        arguments = self._handle.pointer, id_of(id), token
        in_turns(timeout, lambda turn: call(library.ferry_kv_offer_retract, *arguments, turn))

    def retract_window(self, id: bytes, group: int, before_token: int, timeout: float | None = None) -> None:
        """Frees the blocks of a window that have only tokens before `before_token`. Waits until nothing reads
        them any more; afterwards they are the caller's. The offer stays as it is.

        BusyError: a take that needs them has not got them within the timeout. Nothing is free; call again.
        """
        token = unsigned(before_token, "before_token", 64)
        arguments = self._handle.pointer, id_of(id), unsigned(group, "group"), token
        in_turns(timeout, lambda turn: call(library.ferry_kv_offer_retract_window, *arguments, turn))

    def cancel_offer(self, id: bytes) -> None:
        """Asks an offer to end. Its blocks are the caller's with its terminal event."""
        call(library.ferry_kv_offer_cancel, self._handle.pointer, id_of(id))

    def reclaim(self, blocks: int) -> int:
        """Ends sealed offers that nobody has taken, until `blocks` blocks are free; returns how many are."""
        freed = c_size_t()
        wanted = unsigned(blocks, "blocks", 64)
        call(library.ferry_kv_reclaim, self._handle.pointer, wanted, addressof(freed))
        return freed.value

    def take(
        self,
        id: bytes,
        producers: Sequence[Peer],
        blocks: BlocksLike,
        tokens: int,
        *,
        taker: int = 1,
        skip_tokens: int = 0,
        mode: int | str = Mode.AUTO,
        deadline: float | None = None,
        layers: bool = False,
    ) -> None:
        """Takes a handoff: the tokens from `skip_tokens` to before `tokens` come into the blocks as they
        become ready. The take may come before its offer.

        `producers` are all ranks of the producer, by their numbers. `taker` is any number that all ranks of
        this consumer have, and no other consumer. `layers` asks for events LAYERS. A take that is not
        complete `deadline` seconds from now fails with TIMEOUT.
        """
        options = CTakeOptions(struct_size=sizeof(CTakeOptions), flags=TAKE_LAYERS if layers else 0)
        peers = self._peers(producers, "producers")
        options.producers, options.producer_count = addressof(peers), len(peers)
        options.mode = member(Mode, mode, "mode")
        options.taker = unsigned(taker, "taker", 64)
        options.skip_tokens = unsigned(skip_tokens, "skip_tokens", 64)
        options.tokens = unsigned(tokens, "tokens", 64)
        # To the library 0 is no deadline.
        options.deadline_ns = max(nanoseconds(deadline, "deadline"), 1)
        with Lists(blocks, self._group_count) as lists:
            options.blocks, options.group_count = lists.address, lists.count
            call(library.ferry_kv_take, self._handle.pointer, id_of(id), addressof(options))

    def cancel_take(self, id: bytes) -> None:
        """Asks a take to end. Its blocks are the caller's with its terminal event."""
        call(library.ferry_kv_take_cancel, self._handle.pointer, id_of(id))

    def poll(self) -> Event | None:
        """Takes the next event, oldest first; None if there is none. Never waits.

        ClosedError: the cache or its engine is closed, and there are no more events.
        """
        return self._next(library.ferry_kv_poll)

    @overload
    def wait(self, timeout: None = None) -> Event: ...

    @overload
    def wait(self, timeout: float) -> Event | None: ...

    def wait(self, timeout: float | None = None) -> Event | None:
        """Waits for the next event and takes it, on the calling thread; None if none came in `timeout`
        seconds.

        ClosedError as in `poll`; closing the cache or its engine ends the wait.
        """
        remaining = nanoseconds(timeout)
        until = time.monotonic_ns() + remaining
        while True:
            # In turns, so that the interpreter handles signals.
            event = self._next(library.ferry_kv_wait, min(max(remaining, 0), TURN_NS))
            if event is not None:
                return event
            remaining = until - time.monotonic_ns()
            if remaining <= 0:
                return None

    async def event(self) -> Event:
        """Takes the next event; waits for it in the running event loop, without a thread."""
        while (event := self.poll()) is None:
            await self._waiters.readable()
        return event

    def __aiter__(self) -> Cache:
        return self

    async def __anext__(self) -> Event:
        return await self.event()

    @property
    def fd(self) -> int:
        """The descriptor of `fileno`."""
        return self.fileno()

    def fileno(self) -> int:
        """Returns a descriptor for select, poll or an event loop; it is readable when the cache has events or
        is closed.

        ferry owns the descriptor: neither read nor close it. Take events until `poll` returns None, then
        watch it again. A call that a signal handler ends by an exception may leave an event to `poll`.
        """
        found = c_int()
        call(library.ferry_kv_fd, self._handle.pointer, addressof(found))
        return found.value

    def state(self, id: bytes) -> State:
        """Returns what the cache knows of an id. A closed cache answers too."""
        found = CState(struct_size=sizeof(CState))
        call(library.ferry_kv_get_state, self._handle.pointer, id_of(id), addressof(found))
        return state_of(found)

    @property
    def unfenced_blocks(self) -> int:
        """How many blocks belong to handoffs with silent peers that could not be fenced: processes of this
        host that were stopped in the middle of a copy."""
        count = c_size_t()
        call(library.ferry_kv_unfenced_blocks, self._handle.pointer, addressof(count))
        return count.value

    def stats(self) -> Stats:
        """Returns the counters since the cache was opened and the current numbers of objects. A closed cache
        answers too."""
        found = CStats(struct_size=sizeof(CStats))
        call(library.ferry_kv_get_stats, self._handle.pointer, addressof(found))
        return Stats(*(getattr(found, name) for name in Stats._fields))

    def ended_failed(self, status: int | str) -> int:
        """Returns how many offers and takes have ended by FAILED with this status, a `ferry.Status`."""
        count = c_uint64()
        number = member(Status, status, "status")
        call(library.ferry_kv_ended_failed, self._handle.pointer, number, addressof(count))
        return count.value

    def metrics(self) -> str:
        """Returns the numbers of `stats` and `ended_failed` in Prometheus' text format."""
        return text(library.ferry_kv_metrics, self._handle.pointer).decode()

    def close(self, timeout: float | None = None) -> None:
        """Closes the cache: ends all offers and takes, and waits until nothing touches their blocks and the
        peers have been told, for which a peer has `silence_ms`. All terminal events can be taken afterwards.

        BusyError: that took longer than the timeout. The cache is still closing; call again.
        """
        in_turns(timeout, lambda turn: call(library.ferry_kv_cache_close, self._handle.pointer, turn))
        self._state = ", closed"

    def __enter__(self) -> Cache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        try:
            found = self.stats()
        except Error as error:  # Of a forked child.
            return f"<ferry.kv.Cache {error.status_name}>"
        return f"<ferry.kv.Cache of {self._layout}, {found.offers} offers, {found.takes} takes{self._state}>"

    def _next(self, function: Callable[..., int], *timeout_ns: int) -> Event | None:
        """Takes the next event by a function of the library."""
        # A forked child has no events.
        if self._kept and self._engine._process == os.getpid():
            with suppress(IndexError):  # Another thread has taken it.
                return self._kept.popleft()
        found = CCacheEvent(struct_size=sizeof(CCacheEvent), rank=NO_RANK)
        try:
            status = call(function, self._handle.pointer, *timeout_ns, addressof(found))
        except BaseException:
            if found.kind != 0:
                # A signal handler has raised after the call, which has taken an event.
                self._kept.append(event_of(found, self._engine))
                self._waiters.wake()
            raise
        return event_of(found, self._engine) if status == Status.OK else None

    def _peers(self, peers: Sequence[Peer], name: str) -> ctypes.Array[c_uint64]:
        for at, peer in enumerate(items_of(peers, name, " of peers")):
            if getattr(peer, "_engine", None) is not self._engine:
                raise invalid(f"{name}[{at}] is no peer of the cache's engine")
        return (c_uint64 * len(peers))(*(peer.handle for peer in peers))


def _milliseconds(seconds: float, name: str) -> int:
    """Converts seconds to milliseconds of 32 bits, and to at least one: the library's 0 is its default."""
    if not 0 < seconds <= (2**32 - 1) / 1000:
        raise invalid(f"{name} must be above 0 and at most {(2**32 - 1) // 1000} seconds, not {seconds!r}")
    return min(math.ceil(seconds * 1000), 2**32 - 1)
