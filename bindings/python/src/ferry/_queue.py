"""Queues of events: drained by hand, or awaited in an event loop.

An event loop watches a queue's descriptor only while a coroutine waits for an event. When the descriptor is
readable, the queue is drained to its end. An event that coroutines wait for goes to the first of them, which
wakes the others when it has the event; other events stay in `_backlog`.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from contextlib import suppress
from ctypes import addressof, c_int, c_size_t, c_uint64, sizeof, string_at
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from ._abi import (
    QUEUE_NOTIFICATIONS,
    QUEUE_PEER_STATES,
    QUEUE_PEERS,
    QUEUE_TRANSFERS,
    CEvent,
    library,
)
from ._errors import (
    BusyError,
    ClosedError,
    Error,
    PendingError,
    StaleError,
    Status,
    call,
    channel_number,
    error_class,
    nanoseconds,
)
from ._numbers import Number, described, number
from ._peer import Peer
from ._transfer import Transfer
from ._waits import TURN_NS

if TYPE_CHECKING:
    import asyncio

    from ._engine import Engine

_BATCH = 64


class EventKind(Number):
    TRANSFER = 1
    NOTIFICATION = 2
    PEER_UP = 3
    PEER_LOST = 4
    LATE_APPLY = 5
    PEER_CONNECTED = 6
    PEER_DOWN = 7


class Event(NamedTuple):
    """One event; fields that its kind doesn't set are 0, None or empty."""

    kind: EventKind
    """Ignore kinds that you don't know: a newer library may add some."""
    peer: Peer | None
    transfer: int
    """`Transfer.handle` of the transfer that is final."""
    user_data: int
    status: Status
    data: bytes
    """The bytes of a notification, or, for PEER_DOWN, PEER_LOST and a failed PEER_CONNECTED, a sentence that
    says why (UTF-8)."""
    region: int
    address: int
    length: int
    os_error: int = 0
    """The errno that caused PEER_DOWN, PEER_LOST or a failed PEER_CONNECTED, or 0."""
    channel: int = 0
    """The channel of a notification."""

    def __repr__(self) -> str:
        return described(self)


class Queue:
    """Events of an engine, of the chosen kinds. A `with` block closes the queue at its end."""

    def __init__(self, engine: Engine, handle: int) -> None:
        self._engine = engine
        self.handle: int = handle
        self._backlog: deque[Event] = deque()
        self._only_awaited = False
        # The futures of waiting coroutines, by ("transfer", handle) or ("connect", user_data).
        # Any thread may take a future, to hand out an event; only the loop's thread adds and removes keys.
        self._awaited: dict[tuple[str, int], deque[asyncio.Future[Event | None]]] = {}
        self._next_waiters: deque[asyncio.Future[None]] = deque()
        self._connects = itertools.count(1)
        self._watching: asyncio.AbstractEventLoop | None = None
        self._watched = -1

    def fileno(self) -> int:
        """Returns a descriptor for select, poll or an event loop; it is readable when the queue has events.

        ferry owns the descriptor: neither read nor close it.
        """
        found = c_int()
        call(library.ferry_queue_fd, self._engine._pointer, self.handle, addressof(found))
        return found.value

    @property
    def fd(self) -> int:
        """The descriptor of `fileno`."""
        return self.fileno()

    def drain(self) -> list[Event]:
        """Takes all events of the queue, oldest first. Never waits."""
        self._pump()
        taken = []
        while self._backlog:
            taken.append(self._backlog.popleft())
        return taken

    def wait(self, timeout: float | None = None) -> Event:
        """Waits for the next event and takes it, on the calling thread; PendingError: none came in time.

        Closing the queue (StaleError) or the engine (ClosedError) ends the wait.
        """
        remaining = nanoseconds(timeout)
        until = time.monotonic_ns() + remaining
        while not self._backlog:
            # In turns, so that the interpreter handles signals. An event that is taken may go to a coroutine.
            if not self._take(min(max(remaining, 0), TURN_NS)) and remaining <= 0:
                raise PendingError(Status.PENDING, "the queue has no event yet")
            remaining = until - time.monotonic_ns()
        return self._backlog.popleft()

    async def next(self) -> Event:
        """Returns the next event; waits for it in the running event loop."""
        import asyncio

        self._pump()
        while not self._backlog:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._next_waiters.append(waiter)
            self._watch(waiter.get_loop())
            try:
                await waiter
            finally:
                if waiter in self._next_waiters:
                    self._next_waiters.remove(waiter)
                self._watch_no_more_than_needed()
        return self._backlog.popleft()

    def __aiter__(self) -> Queue:
        return self

    async def __anext__(self) -> Event:
        return await self.next()

    async def _connect(self, address: bytes, timeout: float | None = None) -> Peer:
        """Connects in the event loop, on a queue that takes peer events."""
        number = next(self._connects)
        future = self._await("connect", number)
        try:
            call(
                library.ferry_peer_connect_async,
                self._engine._pointer,
                address,
                nanoseconds(timeout),
                self.handle,
                number,
            )
            event = await future
        finally:
            self._forget("connect", number, future)
        assert event is not None  # No other coroutine awaits this connect.
        if event.status != Status.OK or event.peer is None:
            raise error_class(event.status)(
                event.status, event.data.decode(errors="replace"), os_error=event.os_error
            )
        return event.peer

    async def _transfer_final(self, transfer: Transfer) -> None:
        """Returns when a transfer of this queue is final; takes its event, unless that has been taken."""
        handle = transfer.handle
        for event in self._backlog:
            if event.kind == EventKind.TRANSFER and event.transfer == handle:
                self._backlog.remove(event)
                return
        future = self._await("transfer", handle)
        waiting = self._awaited["transfer", handle]
        try:
            self._pump()
            if future in waiting and transfer.poll() is not None:
                # Once the transfer is seen to be final, its event is in the queue.
                self._pump()
                if future in waiting:
                    # The event has been taken.
                    return
            taken = await future
            while taken is not None and (other := self._waiter(taken)) is not None:
                other.get_loop().call_soon_threadsafe(_wake, other)
        except BaseException:
            if future.done() and not future.cancelled() and future.exception() is None:
                # The task was cancelled when it had the event, which goes to another.
                self._pass_on(future.result())
            raise
        finally:
            self._forget("transfer", handle, future)

    def close(self) -> None:
        """Closes the queue; coroutines that wait for it get StaleError. Call it in the thread of the queue's
        event loop, if a loop runs. Does nothing if the queue or its engine is closed.

        BusyError while transfers have yet to report to the queue.
        """
        loop = self._watching
        self._stop_watching()
        try:
            call(library.ferry_queue_destroy, self._engine._pointer, self.handle)
        except (ClosedError, StaleError) as error:
            self._fail(error)
            return
        except BusyError:
            if loop is not None:
                self._watch(loop)
            raise
        self._fail(StaleError(Status.STALE, "the queue is closed"))

    def __enter__(self) -> Queue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except Error:
            if error is None:
                raise

    def __del__(self) -> None:
        # Leave the descriptor registered with its loop: in a forked child, the epoll is also the parent's.
        try:
            call(library.ferry_queue_destroy, self._engine._pointer, self.handle)
        except Error:
            pass

    def __repr__(self) -> str:
        try:
            state = f"descriptor {self.fileno()}"
        except Error as error:
            state = error.status_name
        return f"<ferry.Queue {self.handle:#x}, {state}>"

    def _pump(self) -> None:
        """Drains the library's queue to its end, which arms the descriptor, and delivers the events."""
        while self._take() == _BATCH:
            pass

    def _take(self, timeout_ns: int | None = None) -> int:
        """Takes a batch of events, with a timeout after waiting for them, and delivers them."""
        count = c_size_t()
        events = (CEvent * _BATCH)()
        place = addressof(events), sizeof(CEvent), _BATCH, addressof(count)
        queue = self._engine._pointer, self.handle
        try:
            if timeout_ns is None:
                call(library.ferry_queue_drain, *queue, *place)
            else:
                call(library.ferry_queue_wait, *queue, timeout_ns, *place)
        finally:
            # Also if a signal handler raises after the call: the events have been taken.
            for index in range(count.value):
                self._hand_out(self._event(events[index]))
            self._wake_next()
        return count.value

    def _event(self, found: CEvent) -> Event:
        data = string_at(found.data, found.data_length) if found.data_length else b""
        library.ferry_event_release(addressof(found))
        peer = Peer(self._engine, found.peer) if found.peer else None
        return Event(
            number(EventKind, found.kind),
            peer,
            found.transfer,
            found.user_data,
            number(Status, found.status),
            data,
            found.region,
            found.address,
            found.length,
            found.os_error,
            found.channel,
        )

    def _hand_out(self, event: Event) -> None:
        future = self._waiter(event)
        if future is not None:
            future.get_loop().call_soon_threadsafe(self._deliver, future, event)
        elif not self._only_awaited:
            self._backlog.append(event)

    def _waiter(self, event: Event) -> asyncio.Future[Event | None] | None:
        """Takes the future of the first coroutine that still waits for the event."""
        if event.kind == EventKind.TRANSFER:
            key = ("transfer", event.transfer)
        elif event.kind == EventKind.PEER_CONNECTED:
            key = ("connect", event.user_data)
        else:
            return None
        try:
            waiting = self._awaited[key]
            while (future := waiting.popleft()).done():
                pass
        except (KeyError, IndexError):
            return None
        return future

    def _deliver(self, future: asyncio.Future[Event | None], event: Event) -> None:
        if future.done():
            # The coroutine was cancelled.
            self._pass_on(event)
        else:
            future.set_result(event)

    def _pass_on(self, event: Event | None) -> None:
        """Hands out the event of a coroutine that was cancelled; None if the coroutine had no event."""
        if event is not None:
            self._hand_out(event)
            self._wake_next()

    def _wake_next(self) -> None:
        # A copy: a loop may add and remove waiters while another thread takes events.
        for waiter in list(self._next_waiters):
            if self._backlog:
                waiter.get_loop().call_soon_threadsafe(_wake, waiter)

    def _await(self, kind: str, number: int) -> asyncio.Future[Event | None]:
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[Event | None] = loop.create_future()
        self._watch(loop)
        self._awaited.setdefault((kind, number), deque()).append(future)
        return future

    def _forget(self, kind: str, number: int, future: asyncio.Future[Event | None]) -> None:
        waiting = self._awaited.get((kind, number))
        if waiting is not None:
            with suppress(ValueError):
                waiting.remove(future)
            if not waiting:
                self._awaited.pop((kind, number), None)
        self._watch_no_more_than_needed()
        # An event that is on its way to the future is passed on.
        future.cancel()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._watching is not loop:
            self._stop_watching()
            self._watched = self.fileno()
            loop.add_reader(self._watched, self._readable)
            self._watching = loop

    def _watch_no_more_than_needed(self) -> None:
        if not self._awaited and not self._next_waiters:
            self._stop_watching()

    def _stop_watching(self) -> None:
        loop, self._watching = self._watching, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._watched)

    def _wake(self) -> None:
        """Makes the loop look at the queue of a closed engine; any thread."""
        loop = self._watching
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._readable)

    def _readable(self) -> None:
        try:
            self._pump()
        except Error as error:
            # Tells every waiter that the engine is closed.
            self._stop_watching()
            self._fail(error)

    def _fail(self, error: Error) -> None:
        awaited = itertools.chain.from_iterable(self._awaited.values())
        waiting: list[asyncio.Future[Any]] = [*awaited, *self._next_waiters]
        self._awaited.clear()
        self._next_waiters.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(error)


def _wake(waiter: asyncio.Future[Any]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def create_queue(
    engine: Engine,
    transfers: bool,
    notifications: bool,
    peers: bool,
    capacity: int,
    peer_states: bool = False,
    channel: int = 0,
) -> Queue:
    what = (
        (QUEUE_TRANSFERS if transfers else 0)
        | (QUEUE_NOTIFICATIONS if notifications else 0)
        | (QUEUE_PEERS if peers else 0)
        | (QUEUE_PEER_STATES if peer_states else 0)
    )
    handle = c_uint64()
    where = channel_number(channel), addressof(handle)
    call(library.ferry_queue_create_channel, engine._pointer, what, capacity, *where)
    queue = Queue(engine, handle.value)
    engine._queues.add(queue)
    return queue
