"""A node of a pool on an engine, and its calls: each waits, in turns or in an event loop."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import addressof, c_char_p, c_int, c_uint64, c_void_p, sizeof, string_at
from types import TracebackType
from typing import TYPE_CHECKING

from .._abi import library
from .._engine import listed
from .._errors import (
    ClosedError,
    Error,
    Status,
    TimeoutError,
    call,
    encoded,
    invalid,
    items_of,
    member,
    nanoseconds,
    text,
    unsigned,
)
from .._waits import TURN_NS, apart, in_turns
from ..kv._handle import Handle
from ._abi import (
    PREFIX,
    CCallOptions,
    CCost,
    CCostOptions,
    CDrained,
    CEvent,
    CNodeInfo,
    COptions,
    CResult,
    CStats,
    Stats,
)
from ._keys import CHUNK_TOKENS
from ._parts import PartValues
from ._quotas import Quota, quotas_of
from ._results import Cost, Drained, Node, Outcome, Result, results_of
from ._values import Keys, Values

if TYPE_CHECKING:
    import asyncio

    from .._engine import Engine
    from ._values import Value


class _Call:
    """A call that has not ended: what waits for its end."""

    __slots__ = ("results", "future")

    def __init__(self, future: asyncio.Future[list[Result]] | None = None) -> None:
        self.results: bytes | None = None
        self.future = future


class Pool:
    """A node of a pool: a KV cache for a whole cluster. Any thread may use it.

    The node lends `memory_bytes` to the pool, in units of `unit_bytes` (0 means 16 KiB); with 0 it is a
    client, which stores nothing. `nodes` are the addresses of the other nodes' engines; its own may be among
    them. `name` is a name that no other node has (None: the engine's address); nodes of another `cluster`
    (None: "ferry") or with other `chunk_tokens` are refused. Each value is held by `replicas` nodes (0 means
    1). A node that is not connected is dialed again every `redial_ms` (0 means 250).

    `file` is a file, which is made if it is missing, or a block device, of which the node uses `file_bytes`:
    values are copied there, and a node that is opened anew with it has them again.

    `quotas` has the tenants whose share of this node is bounded, and the bytes of each, or a `Quota` where
    the tenant has a secret.

    `directory` is the URL of a directory that lists the nodes, as for `ferry.Directory`; a node that lends
    memory registers its name there. etcd lists a node that it does not hear from for `directory_ttl_s`
    seconds (0 means 10). The constructor waits for etcd, and for a name that another node has, for
    `directory_timeout_ms` (0 means 5,000): UnreachableError, BusyError.

    An engine has one pool, which takes the notifications of channel 2. A `with` block closes the pool at its
    end. In a forked child every call raises ClosedError, and closing does nothing.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        nodes: Sequence[str] = (),
        memory_bytes: int = 0,
        name: str | None = None,
        cluster: str | None = None,
        chunk_tokens: int = CHUNK_TOKENS,
        replicas: int = 0,
        unit_bytes: int = 0,
        redial_ms: int = 0,
        file: str | os.PathLike[str] | None = None,
        file_bytes: int = 0,
        directory: str | None = None,
        directory_ttl_s: int = 0,
        directory_timeout_ms: int = 0,
        quotas: Mapping[str, int | Quota] | None = None,
    ) -> None:
        addresses = [
            encoded(it, f"nodes[{at}]") for at, it in enumerate(items_of(nodes, "nodes", " of addresses"))
        ]
        rows = (c_char_p * len(addresses))(*addresses)
        shares = quotas_of(quotas if quotas is not None else {})
        options = COptions(
            sizeof(COptions),
            unsigned(chunk_tokens, "chunk_tokens"),
            None if name is None else encoded(name, "name"),
            None if cluster is None else encoded(cluster, "cluster"),
            addressof(rows),
            len(rows),
            unsigned(memory_bytes, "memory_bytes", 64),
            unsigned(unit_bytes, "unit_bytes", 64),
            unsigned(replicas, "replicas"),
            unsigned(redial_ms, "redial_ms"),
            None if file is None else encoded(os.fsdecode(file), "file"),
            unsigned(file_bytes, "file_bytes", 64),
            None if directory is None else encoded(directory, "directory"),
            unsigned(directory_ttl_s, "directory_ttl_s"),
            unsigned(directory_timeout_ms, "directory_timeout_ms"),
            addressof(shares),
            len(shares),
        )
        pointer, opened = c_void_p(), c_void_p()
        what = library.ferry_pool_open, engine._pointer, addressof(options)
        try:
            if directory is None:
                call(*what, addressof(pointer))
            else:
                free, kept = library.ferry_pool_free, (engine, options, rows, shares, opened)
                apart(kept, *what, addressof(opened), undo=lambda: free(opened))
                pointer = opened
        finally:
            # Also if a signal handler has raised after the call: the handle ends the pool.
            self._handle = Handle(pointer.value or 0, library.ferry_pool_free, engine)
        self._engine = engine
        self._state = ""
        self._numbers = itertools.count(1)
        self._calls: dict[int, _Call] = {}
        # How many calls of each event loop have not ended; the loop's thread alone uses its number.
        self._loops: dict[asyncio.AbstractEventLoop, int] = {}

    def put(
        self,
        values: Sequence[Value] | PartValues,
        *,
        replicas: int = 0,
        preferred: str | None = None,
        timeout: float | None = None,
    ) -> list[Result]:
        """Stores values: (key, memory) each, where memory is registered with the engine and lets peers READ
        it: an array or buffer, a `Memory` or `Region`, or a list of such pieces; or what `Parts.values` has
        made. Returns a result for each key.

        A value is immutable: a node that has the key already moves no byte, and the outcome is HERE.
        `replicas` nodes hold each value (0: as the pool's options say), the node named `preferred` first if
        it has room. The memory belongs to the call until it has ended.

        TimeoutError: the call goes on, and its memory belongs to it until the pool is closed.
        NotRegisteredError and AccessError name the value whose memory is not registered, or lacks the right;
        `request_index` is its number.
        """
        return self._run(
            library.ferry_pool_put, _values(values, False), _put_options(replicas, preferred), timeout
        )

    def get(self, values: Sequence[Value] | PartValues, *, timeout: float | None = None) -> list[Result]:
        """Gets values: (key, memory) each, as for `put`; the memory lets peers WRITE it, and has the value's
        length. The memory of a key is undefined unless its outcome is OK. Timeout and errors as for `put`."""
        return self._run(library.ferry_pool_get, _values(values, True), _options(), timeout)

    def exists(
        self, keys: Sequence[bytes], *, prefix: bool = False, timeout: float | None = None
    ) -> list[Result]:
        """Says which keys exist. Holds nothing: a get may still find a value gone. With `prefix` the keys are
        the chunks of a prefix, in order: what follows the first miss is ABSENT."""
        return self._run(library.ferry_pool_exists, Keys(keys), _options(PREFIX if prefix else 0), timeout)

    def prefix(self, keys: Sequence[bytes], *, timeout: float | None = None) -> int:
        """Returns how many of a prefix's chunks exist, from the first one on."""
        return _prefix(self.exists(keys, prefix=True, timeout=timeout))

    def remove(self, keys: Sequence[bytes], *, timeout: float | None = None) -> list[Result]:
        """Removes values from all nodes; a node that is absent removes them when it comes again within ten
        minutes."""
        return self._run(library.ferry_pool_remove, Keys(keys), _options(), timeout)

    def prefetch(
        self, keys: Sequence[bytes], *, prefix: bool = False, timeout: float | None = None
    ) -> list[Result]:
        """Brings values into this node's memory, which must lend some: those of other nodes, and those that
        its file alone has. Others are evicted for them. OK: the value was brought; HERE: it was in memory;
        FULL: there is no room beside the keys before it and the values in use; TOO_LONG: it has more bytes
        than the node lends, or than 128 MiB. With `prefix` the keys are the chunks of a prefix, in order, and
        nothing is brought from the first miss on."""
        options = _options(PREFIX if prefix else 0)
        return self._run(library.ferry_pool_prefetch, Keys(keys), options, timeout)

    def estimate(
        self,
        keys: Sequence[bytes],
        *,
        prefill_tokens_per_s: int = 0,
        value_bytes: int = 0,
        chunk_tokens: int = 0,
        timeout: float | None = None,
    ) -> Cost:
        """Says how long a get of a prefix would take, by what gets through this node have taken so far.

        With `prefill_tokens_per_s`, the tokens that the caller computes in a second, it says how many of the
        leading keys are worth loading; the caller computes the others. `value_bytes` is the length of a value
        (0: the mean of those that went through this node), `chunk_tokens` the tokens of a chunk (0: as the
        pool's). Asks which keys exist, and moves nothing."""
        options = _cost_options(chunk_tokens, value_bytes, prefill_tokens_per_s)
        items = Keys(keys)
        results = self._run(library.ferry_pool_exists, items, _options(PREFIX), timeout)
        return self._cost(items, results, options)

    async def put_async(
        self, values: Sequence[Value] | PartValues, *, replicas: int = 0, preferred: str | None = None
    ) -> list[Result]:
        """Does as `put`, in the running event loop and without a thread. A coroutine that is cancelled does
        not end the call."""
        options = _put_options(replicas, preferred)
        return await self._submit(library.ferry_pool_submit_put, _values(values, False), options)

    async def get_async(self, values: Sequence[Value] | PartValues) -> list[Result]:
        """Does as `get`, in the running event loop and without a thread. After a cancel the memory belongs to
        the call until it ends, which takes a little more than a second at most."""
        return await self._submit(library.ferry_pool_submit_get, _values(values, True), _options())

    async def exists_async(self, keys: Sequence[bytes], *, prefix: bool = False) -> list[Result]:
        """Does as `exists`, in the running event loop."""
        options = _options(PREFIX if prefix else 0)
        return await self._submit(library.ferry_pool_submit_exists, Keys(keys), options)

    async def prefix_async(self, keys: Sequence[bytes]) -> int:
        """Does as `prefix`, in the running event loop."""
        return _prefix(await self.exists_async(keys, prefix=True))

    async def remove_async(self, keys: Sequence[bytes]) -> list[Result]:
        """Does as `remove`, in the running event loop."""
        return await self._submit(library.ferry_pool_submit_remove, Keys(keys), _options())

    async def prefetch_async(self, keys: Sequence[bytes], *, prefix: bool = False) -> list[Result]:
        """Does as `prefetch`, in the running event loop, which runs other tasks meanwhile."""
        options = _options(PREFIX if prefix else 0)
        return await self._submit(library.ferry_pool_submit_prefetch, Keys(keys), options)

    async def estimate_async(
        self,
        keys: Sequence[bytes],
        *,
        prefill_tokens_per_s: int = 0,
        value_bytes: int = 0,
        chunk_tokens: int = 0,
    ) -> Cost:
        """Does as `estimate`, in the running event loop."""
        options = _cost_options(chunk_tokens, value_bytes, prefill_tokens_per_s)
        items = Keys(keys)
        results = await self._submit(library.ferry_pool_submit_exists, items, _options(PREFIX))
        return self._cost(items, results, options)

    def wait_nodes(self, count: int, timeout: float | None = None) -> None:
        """Waits until `count` nodes, this one among them, are connected. TimeoutError names those that are
        missing, and says why."""
        number = unsigned(count, "count")
        wait = library.ferry_pool_wait_nodes
        in_turns(timeout, lambda turn: call(wait, self._handle.pointer, number, turn), TimeoutError)

    def drain(self, timeout: float | None = None) -> Drained:
        """Takes this node out of the pool, before it is closed: it takes no puts any more, and moves its
        values to other nodes, those used longest ago first. It serves gets all the while. A drain that is
        under way is joined.

        TimeoutError: the drain goes on; the next call tells its end. InvalidError: the node lends no memory,
        or no other node takes values.
        """
        found = CDrained(struct_size=sizeof(CDrained))
        drain, out = library.ferry_pool_drain, addressof(found)
        in_turns(timeout, lambda turn: call(drain, self._handle.pointer, turn, out), TimeoutError)
        return Drained(found.moved, found.here, found.left)

    def nodes(self) -> list[Node]:
        """Lists this node, then those that it is, or is to be, connected to. A closed pool answers too."""
        return [
            Node(
                it.name.decode(),
                it.address.decode(),
                it.id,
                bool(it.is_member),
                it.capacity,
                it.free,
                it.why.decode(),
            )
            for it in listed(CNodeInfo, library.ferry_pool_nodes, self._handle.pointer)
        ]

    def stats(self) -> Stats:
        """Returns the counters since the pool was opened and the current numbers. A closed pool answers
        too."""
        found = CStats(struct_size=sizeof(CStats))
        call(library.ferry_pool_get_stats, self._handle.pointer, addressof(found))
        return Stats(*(getattr(found, name) for name in Stats._fields))

    def gets_ended(self, outcome: int | str) -> int:
        """Returns how many keys of gets have ended with this `Outcome`: hits and, by their reason, misses."""
        return self._ended(library.ferry_pool_gets_ended, outcome)

    def puts_ended(self, outcome: int | str) -> int:
        """Returns how many keys of puts have ended with this `Outcome`."""
        return self._ended(library.ferry_pool_puts_ended, outcome)

    def metrics(self) -> str:
        """Returns the numbers of `stats`, `gets_ended` and `puts_ended` in Prometheus' text format."""
        return text(library.ferry_pool_metrics, self._handle.pointer).decode()

    def close(self, timeout: float | None = None) -> None:
        """Closes the node: refuses further calls, waits for those that are open and for what it serves, tells
        the other nodes, and gives its memory back. Values that only this node held are lost.

        BusyError: that took longer than the timeout. The node is still closing; call again.
        """
        in_turns(timeout, lambda turn: call(library.ferry_pool_close, self._handle.pointer, turn))
        self._state = ", closed"

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        try:
            found, (own, *_) = self.stats(), self.nodes()
        except Error as error:  # Of a forked child.
            return f"<ferry.pool.Pool {error.status_name}>"
        return f"<ferry.pool.Pool {own.name!r}, {found.nodes} nodes, {found.values} values here{self._state}>"

    def _cost(self, items: Keys, results: list[Result], options: CCostOptions) -> Cost:
        rows = (CResult * len(results))(*(CResult(it.outcome, 0, it.bytes, it.node) for it in results))
        found = CCost(struct_size=sizeof(CCost))
        what = self._handle.pointer, items.address, addressof(rows), items.count
        call(library.ferry_pool_estimate, *what, addressof(options), addressof(found))
        known = bool(found.is_known)
        best = found.best_ns / 1e9 if known and options.prefill_tokens_per_s > 0 else None
        return Cost(found.keys, found.bytes, found.get_ns / 1e9 if known else None, found.load_keys, best)

    def _ended(self, function: Callable[..., int], outcome: int | str) -> int:
        count = c_uint64()
        call(function, self._handle.pointer, member(Outcome, outcome, "outcome"), addressof(count))
        return count.value

    def _run(
        self,
        function: Callable[..., int],
        items: Keys | Values | PartValues,
        options: CCallOptions,
        timeout: float | None,
    ) -> list[Result]:
        """Makes a call, and waits for its end in turns, so that the interpreter handles signals."""
        remaining = nanoseconds(timeout)
        until = time.monotonic_ns() + remaining
        options.user_data = next(self._numbers)
        # Before the call: another thread may take its end.
        made = self._calls[options.user_data] = _Call()
        found = (CResult * items.count)()
        what = self._handle.pointer, items.address, items.count, addressof(options)
        try:
            call(function, *what, min(remaining, TURN_NS), addressof(found))
            return results_of(bytes(found))
        except TimeoutError:
            # The call goes on, and its end comes as that of a submitted call.
            while made.results is None:
                remaining = until - time.monotonic_ns()
                if remaining <= 0:
                    raise
                self._take(library.ferry_pool_wait, min(remaining, TURN_NS))
            return results_of(made.results)
        finally:
            self._calls.pop(options.user_data, None)

    async def _submit(
        self, function: Callable[..., int], items: Keys | Values | PartValues, options: CCallOptions
    ) -> list[Result]:
        """Makes a call, and waits for its end in the running event loop, which watches the pool's descriptor
        while it has calls."""
        import asyncio

        loop = asyncio.get_running_loop()
        options.user_data = next(self._numbers)
        future: asyncio.Future[list[Result]] = loop.create_future()
        self._calls[options.user_data] = _Call(future)
        try:
            call(function, self._handle.pointer, items.address, items.count, addressof(options))
        except BaseException:
            self._calls.pop(options.user_data, None)
            raise
        if loop not in self._loops:
            fd = c_int()
            call(library.ferry_pool_fd, self._handle.pointer, addressof(fd))
            loop.add_reader(fd.value, self._readable, loop, fd.value)
        self._loops[loop] = self._loops.get(loop, 0) + 1
        return await future

    def _readable(self, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        try:
            while self._take(library.ferry_pool_poll):
                pass
        except ClosedError:
            # All ends have been taken; those that another thread took are on their way.
            loop.remove_reader(fd)
        except Error as error:
            loop.remove_reader(fd)
            for made in list(self._calls.values()):
                if made.future is not None and made.future.get_loop() is loop and not made.future.done():
                    made.future.set_exception(error)

    def _take(self, function: Callable[..., int], *timeout_ns: int) -> bool:
        """Takes the end of a call, whoever made it. Returns whether there was one."""
        found = CEvent(struct_size=sizeof(CEvent))
        try:
            return call(function, self._handle.pointer, *timeout_ns, addressof(found)) == Status.OK
        finally:
            # Also if a signal handler has raised after the call.
            if found.user_data != 0:
                results = (
                    string_at(found.results, found.result_count * sizeof(CResult)) if found.results else b""
                )
                library.ferry_pool_event_release(addressof(found))
                made = self._calls.pop(found.user_data, None)
                if made is not None:
                    made.results = results
                    if made.future is not None and self._engine._process == os.getpid():
                        loop = made.future.get_loop()
                        if not loop.is_closed():
                            loop.call_soon_threadsafe(self._hand_over, loop, made.future, results)

    def _hand_over(
        self, loop: asyncio.AbstractEventLoop, future: asyncio.Future[list[Result]], results: bytes
    ) -> None:
        """Ends a call of an event loop, on the loop's thread."""
        if not future.done():
            future.set_result(results_of(results))
        self._loops[loop] -= 1
        if self._loops[loop] == 0:
            del self._loops[loop]
            fd = c_int()
            call(library.ferry_pool_fd, self._handle.pointer, addressof(fd))
            loop.remove_reader(fd.value)


def _values(values: Sequence[Value] | PartValues, writable: bool) -> Values | PartValues:
    return values if isinstance(values, PartValues) else Values(values, writable)


def _options(flags: int = 0) -> CCallOptions:
    return CCallOptions(struct_size=sizeof(CCallOptions), flags=flags)


def _put_options(replicas: int, preferred: str | None) -> CCallOptions:
    options = _options()
    options.replicas = unsigned(replicas, "replicas")
    if preferred is not None:
        options.preferred = encoded(preferred, "preferred")
        if not preferred:
            raise invalid("preferred must be the name of a node, or None")
    return options


def _cost_options(chunk_tokens: int, value_bytes: int, prefill_tokens_per_s: int) -> CCostOptions:
    return CCostOptions(
        sizeof(CCostOptions),
        unsigned(chunk_tokens, "chunk_tokens"),
        unsigned(value_bytes, "value_bytes", 64),
        unsigned(prefill_tokens_per_s, "prefill_tokens_per_s", 64),
    )


def _prefix(results: Iterable[Result]) -> int:
    return sum(1 for _ in itertools.takewhile(lambda it: it.ok, results))
