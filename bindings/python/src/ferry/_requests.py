"""Converts requests, blocks and options to the structs of the library.

Requests that are already in an array are passed by pointer, without a look at single requests.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import addressof, sizeof
from itertools import chain
from typing import TYPE_CHECKING, Any, TypedDict, Union

from ._abi import (
    FLAG_ACKED_ONLY,
    FLAG_CHECKSUM,
    FLAG_DURABLE,
    FLAG_NO_COALESCE,
    FLAG_ORDERED,
    CBlocks,
    CTransferOptions,
)
from ._buffers import Pin, integers, numbers
from ._devices import point_of
from ._errors import channel_number, invalid, items_of, member, nanoseconds, unsigned
from ._numbers import Transport

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._buffers import SupportsArrayInterface
    from ._peer import RemoteRegion
    from ._queue import Queue

    RequestTuple = Union[tuple[int, int, int], tuple[int, int, int, Union[int, RemoteRegion]]]
    RequestsLike = Union["Requests", Sequence[RequestTuple], Buffer, SupportsArrayInterface]
    Numbers = Union[Sequence[int], Buffer, SupportsArrayInterface]

REQUEST_BYTES = 32

#: The layout of a request, in the form that numpy.dtype takes.
REQUEST_DTYPE = [("local", "u8"), ("remote", "u8"), ("length", "u8"), ("remote_region", "u8")]


class Options(TypedDict, total=False):
    """Options of a transfer besides its requests."""

    deadline: float
    """Seconds until the transfer is stopped; math.inf is never. The default is the setting deadline_ms."""
    notify: Buffer
    """Bytes for the peer's application, delivered after the data is visible there. A WRITE of no requests
    sends them alone."""
    channel: int
    """The channel of the notification, 0 to 15; the queue at the peer names it too. The default is 0."""
    ordered: bool
    checksum: bool
    acked_only: bool
    durable: bool
    """True: done when fdatasync has returned for the files that the transfer has written."""
    coalesce: bool
    """False: post each request as it is; do not merge neighbours."""
    transports: Sequence[int | str]
    """The allowed `Transport`s or their names, at least one; if none of them is usable, the transfer
    fails."""
    priority: int
    """0 to 2**32 - 1; the default is 0."""
    user_data: int
    """A number of the caller's, 0 to 2**64 - 1, for the result and the event; the default is 0."""
    start_after: object
    """The event or stream of a device after which the transfer starts; for a stream, after all its work so
    far. Either an object of torch or torch_npu, or one with `__cuda_stream__`, which ferry keeps alive; or a
    pair of a `StartAfter` and a handle. The event of a handle must exist until the transfer is final; the
    stream of a handle must exist until the call returns, and its context until the transfer is final."""


class SubmitOptions(Options, total=False):
    queue: Queue
    """The queue that gets an event when the transfer is final."""


class Requests:
    """A list of requests in the library's layout; build it once and use it many times.

    `items` are (local, remote, length, remote_region): two addresses, bytes, and a `RemoteRegion` or its
    handle. The region keeps stale requests away from memory that the peer has registered anew since.
    (local, remote, length) gives that protection up: the bytes go to whatever region the peer then has at
    the address.
    """

    __slots__ = ("_words", "_address", "_count")

    def __init__(self, items: Sequence[RequestTuple]) -> None:
        rows: Any = items
        try:
            if len(rows) == 1 and len(rows[0]) == 4:
                words = array("Q", rows[0])
            elif set(map(len, rows)) == {4}:
                words = array("Q", chain.from_iterable(rows))
            else:
                words = words_of(rows)
        except (TypeError, ValueError, OverflowError):
            words = words_of(rows)
        self._set(words)

    def _set(self, words: array[int]) -> None:
        self._words = words
        self._address, length = words.buffer_info()
        self._count = length // 4

    @classmethod
    def _of_words(cls, words: array[int]) -> Requests:
        """Takes over an array of 64-bit integers that has the library's layout."""
        made = cls.__new__(cls)
        made._set(words)
        return made

    @classmethod
    def from_columns(
        cls, local: Numbers, remote: Numbers, length: Numbers | int, remote_region: Numbers | int = 0
    ) -> Requests:
        """Makes requests from one array per column, or one number for all; no array is walked in Python."""
        columns = {"local": local, "remote": remote, "length": length, "remote_region": remote_region}
        views: dict[str, memoryview] = {}
        repeated: dict[str, int] = {}
        for name, column in columns.items():
            if isinstance(column, int):
                repeated[name] = column
            else:
                views[name] = numbers(column, name).cast("B").cast("L")
        counts = {name: len(view) for name, view in views.items()}
        if len(set(counts.values())) != 1:
            raise invalid(f"columns have different lengths, or no column is an array: {counts}")
        count = next(iter(counts.values()))
        for name, number in repeated.items():
            views[name] = memoryview(integers([number], name) * count)
        words = array("L", bytes(REQUEST_BYTES * count))
        whole = memoryview(words)
        for place, name in enumerate(columns):
            whole[place::4] = views[name]
        return cls._of_words(words)

    def __len__(self) -> int:
        return self._count


def words_of(items: Sequence[Any]) -> array[int]:
    """Converts requests of 3 or 4 numbers one by one, so that an error can name the request."""
    words = array("Q")
    for index, item in enumerate(items):
        try:
            if len(item) not in (3, 4):
                raise ValueError(f"{len(item)} numbers, not 3 or 4")
            region = item[3] if len(item) == 4 else 0
            words.extend((*item[:3], getattr(region, "handle", region)))
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(item, int) and index == 0 and len(items) in (3, 4):
                raise invalid("requests is one request: give a list of them", 0) from None
            shape = "(local, remote, length, remote_region), as RemoteRegion.request makes it"
            message = f"requests[{index}] must be {shape}: {error}"
            raise invalid(message, index) from None
    return words


_INTEGERS = frozenset("lLqQ")


def is_rows(view: memoryview) -> bool:
    """True for an array of shape (n, 4) with local, remote, length and region in each row."""
    shaped = view.ndim == 2 and view.shape is not None and view.shape[1] == 4
    return shaped and view.itemsize == 8 and view.format.lstrip("@=<") in _INTEGERS


def is_structured(view: memoryview) -> bool:
    """True if the format is that of REQUEST_DTYPE, as in T{L:local:L:remote:L:length:L:remote_region:}."""
    words = view.format.removeprefix("T{").split(":")
    names = [name for name, _ in REQUEST_DTYPE]
    letters = {word.lstrip("@=<") for word in words[0:8:2]}
    return view.ndim == 1 and view.itemsize == REQUEST_BYTES and words[1::2] == names and letters <= _INTEGERS


class Lent:
    """Requests in an array of the caller, pinned for the length of a call."""

    __slots__ = ("_pin", "_address", "_count")

    def __init__(self, source: Any) -> None:
        view = memoryview(source)
        if not (is_rows(view) or is_structured(view)):
            raise invalid(
                "an array of requests must have the layout REQUEST_DTYPE or be rows of four 64-bit integers, "
                f"not format {view.format!r} in shape {view.shape}"
            )
        self._pin = Pin(source, "requests")
        self._address = self._pin.address
        self._count = self._pin.length // REQUEST_BYTES


def requests_of(source: RequestsLike | Lent) -> Requests | Lent:
    """Returns the caller's requests, from any of their forms. Pass the result to give_back."""
    if type(source) is Requests or type(source) is Lent:
        return source
    if isinstance(source, (list, tuple)):
        return Requests(source)
    try:
        memoryview(source)  # type: ignore[arg-type]
    except TypeError:
        return Requests(source)  # type: ignore[arg-type]
    return Lent(source)


def give_back(requests: Requests | Lent) -> None:
    if type(requests) is Lent:
        requests._pin.release()


_PLAIN = frozenset(
    ("deadline", "notify", "channel", "transports", "priority", "user_data", "queue", "start_after")
)
_FLAGS = {
    "ordered": FLAG_ORDERED,
    "checksum": FLAG_CHECKSUM,
    "acked_only": FLAG_ACKED_ONLY,
    "durable": FLAG_DURABLE,
}


class COptions(CTransferOptions):
    """Options, with the objects that they point to."""

    held: object
    address: int


def notification(data: Any) -> bytes:
    try:
        return bytes(memoryview(data))
    except TypeError:
        raise invalid(f"notify must be bytes, not {data!r}") from None


def options_of(options: dict[str, Any]) -> COptions:
    """Converts the caller's options to the library's struct."""
    made = COptions(struct_size=sizeof(CTransferOptions))
    made.address = addressof(made)
    for name, value in options.items():
        if name in _FLAGS:
            made.flags |= _FLAGS[name] if value else 0
        elif name == "coalesce":
            made.flags |= 0 if value else FLAG_NO_COALESCE
        elif name not in _PLAIN:
            choices = ", ".join(sorted(_PLAIN | _FLAGS.keys() | {"coalesce"}))
            raise TypeError(f"unknown option {name!r}; there are {choices}")
    if "deadline" in options:
        made.deadline_ns = max(nanoseconds(options["deadline"], "deadline"), 1)
    if "notify" in options:
        data = notification(options["notify"])
        # The copy ends with a zero byte: an empty notification needs an address too.
        made.held = held = array("B", data + b"\0")
        made.notify, made.notify_length = held.buffer_info()[0], len(data)
    if "channel" in options:
        made.channel = channel_number(options["channel"])
    if "transports" in options:
        named = options["transports"]
        for transport in named.split(",") if isinstance(named, str) else items_of(named, "transports"):
            made.transports_allowed |= 1 << member(Transport, transport, "transports")
        # The library takes no bits as every transport.
        if made.transports_allowed == 0:
            raise invalid("transports names no transport; without the option every transport is allowed")
    if "priority" in options:
        made.priority = unsigned(options["priority"], "priority")
    if "user_data" in options:
        made.user_data = unsigned(options["user_data"], "user_data", 64)
    if "queue" in options:
        made.queue = getattr(options["queue"], "handle", 0)
        if made.queue == 0:
            raise invalid(f"queue must be a Queue, not {options['queue']!r}")
    if "start_after" in options:
        made.event_kind, made.event = point_of(options["start_after"], "start_after")
    return made


class Blocks:
    """Pairs of blocks, the same in every layer of a cache; see ferry_blocks in ferry.h.

    The first five arguments and `remote_region` have one number per layer. `local_blocks` and `remote_blocks`
    are block ids: arrays of 32 or 64-bit integers are used in place, other sequences are copied. Don't change
    the arrays during a submit.
    """

    __slots__ = ("_held", "_c", "_address")

    def __init__(
        self,
        *,
        local_base: Numbers,
        remote_base: Numbers,
        local_stride: Numbers,
        remote_stride: Numbers,
        block_bytes: Numbers,
        local_blocks: Numbers,
        remote_blocks: Numbers,
        remote_region: Numbers | None = None,
    ) -> None:
        layers = {
            "local_base": local_base,
            "remote_base": remote_base,
            "local_stride": local_stride,
            "remote_stride": remote_stride,
            "block_bytes": block_bytes,
        }
        if remote_region is not None:
            layers["remote_region"] = remote_region
        self._held: list[Any] = []
        self._c = CBlocks(struct_size=sizeof(CBlocks))
        self._address = addressof(self._c)
        counts = {name: self._point(name, numbers(column, name)) for name, column in layers.items()}
        if len(set(counts.values())) != 1:
            raise invalid(f"layers have different lengths: {counts}")
        self._c.layer_count = counts["local_base"]

        local_ids = numbers(local_blocks, "local_blocks", (4, 8))
        remote_ids = numbers(remote_blocks, "remote_blocks", (4, 8))
        if local_ids.itemsize != remote_ids.itemsize or len(local_ids) != len(remote_ids):
            raise invalid(
                f"local_blocks and remote_blocks differ: {len(local_ids)} ids of {local_ids.itemsize} bytes, "
                f"{len(remote_ids)} of {remote_ids.itemsize}"
            )
        self._c.id_bytes = local_ids.itemsize
        self._c.pair_count = self._point("local_blocks", local_ids)
        self._point("remote_blocks", remote_ids)

    def _point(self, name: str, view: memoryview) -> int:
        """Points a field to the numbers and pins them; returns their count."""
        pin = Pin(view, name)
        self._held.append(pin)
        setattr(self._c, name, pin.address)
        return len(view)

    def __del__(self) -> None:
        for pin in getattr(self, "_held", ()):
            pin.release()
