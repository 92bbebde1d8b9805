"""Events and states of offers and takes, and the coroutines that wait for events of a cache."""

from __future__ import annotations

import ctypes
from ctypes import addressof, sizeof, string_at
from typing import TYPE_CHECKING, NamedTuple

from .._abi import library
from .._errors import Status
from .._numbers import described, number
from .._peer import Peer
from ._abi import NO_RANK, CBlock, CCacheEvent, CState
from ._numbers import EventKind, Id, StateKind

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection

    from .._engine import Engine

_TERMINAL = frozenset(kind for kind in EventKind if kind != EventKind.LAYERS)


class Event(NamedTuple):
    """What has become of an offer or a take. Each has exactly one terminal event, after which nothing touches
    its blocks. Fields that the kind doesn't set are 0 or empty."""

    kind: EventKind
    """Ignore kinds that you don't know: a newer library may add some."""
    id: Id
    """The offer or take."""
    status: Status
    """For a terminal event: OK, or why the offer or take has ended."""
    message: str
    """Why, in a sentence for people; empty for OK."""
    layers: int
    """For LAYERS: how many layers, in the order of the layout, are complete."""
    valid_tokens: int
    """For a take's terminal event: the tokens from the beginning of the sequence that are complete."""
    untrusted: list[tuple[int, int]]
    """For a take's terminal event: the (group, block)s whose contents are undefined."""
    peer: Peer | None = None
    """For a terminal event: the peer that ended the offer or take, was lost, or failed."""
    rank: int | None = None
    """The rank of that peer in its instance."""

    @property
    def terminal(self) -> bool:
        """True if the blocks are the caller's again."""
        return self.kind in _TERMINAL

    def __repr__(self) -> str:
        return described(self)


class State(NamedTuple):
    """What a cache knows of an id. Fields that the kind doesn't set are 0, False or None."""

    kind: StateKind
    sealed: bool
    """For OFFERED."""
    takers: int
    """For OFFERED: how many consumers have begun to take it."""
    valid_tokens: int
    """For TAKING: tokens from the beginning of the sequence that are complete in all layers and groups."""
    event: EventKind | None
    """For ENDED: the kind of the terminal event, which may not have been taken yet."""


def event_of(found: CCacheEvent, engine: Engine) -> Event:
    """Returns an event and releases what the library's struct owns."""
    untrusted = (CBlock * found.untrusted_count)()
    if found.untrusted_count:
        ctypes.memmove(untrusted, found.untrusted, sizeof(untrusted))
    message = string_at(found.message, found.message_length) if found.message else b""
    library.ferry_kv_event_release(addressof(found))
    return Event(
        number(EventKind, found.kind),
        Id(bytes(found.id.bytes)),
        number(Status, found.status),
        message.decode(errors="replace"),
        found.layers,
        found.valid_tokens,
        [(row.group, row.block) for row in untrusted],
        Peer(engine, found.peer) if found.peer else None,
        None if found.rank == NO_RANK else found.rank,
    )


def state_of(found: CState) -> State:
    return State(
        number(StateKind, found.kind),
        bool(found.is_sealed),
        found.takers,
        found.valid_tokens,
        number(EventKind, found.event) if found.event else None,
    )


class Waiters:
    """The coroutines that wait until a descriptor is readable, by their loops. A loop watches the descriptor
    only while one of its coroutines waits. Each loop's part is used by that loop's thread alone. No coroutine
    waits while an event is kept, because the descriptor does not report it."""

    def __init__(self, fileno: Callable[[], int], kept: Collection[Event]) -> None:
        self._fileno = fileno
        self._kept = kept
        self._waiting: dict[asyncio.AbstractEventLoop, set[asyncio.Future[None]]] = {}

    async def readable(self) -> None:
        """Returns when the descriptor is readable, or was when another coroutine looked."""
        import asyncio

        loop = asyncio.get_running_loop()
        descriptor = self._fileno()
        waiter: asyncio.Future[None] = loop.create_future()
        waiting = self._waiting.setdefault(loop, set())
        waiting.add(waiter)
        loop.add_reader(descriptor, self._wake, loop)
        try:
            if not self._kept:
                await waiter
        finally:
            waiting.discard(waiter)
            if not waiting and self._waiting.pop(loop, None) is not None:
                loop.remove_reader(descriptor)

    def wake(self) -> None:
        """Wakes the coroutines of every loop, for an event that is kept; any thread."""
        for loop in list(self._waiting):
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._wake, loop)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        for waiter in self._waiting.get(loop, ()):
            if not waiter.done():
                waiter.set_result(None)
