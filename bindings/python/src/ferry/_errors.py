"""Statuses, exceptions, and `call`, which calls every function of the library."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Sequence
from ctypes import addressof, c_size_t, create_string_buffer, sizeof
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any, TypeVar

from ._abi import CHANNELS_MAX, FOREVER, NO_INDEX, CError, library
from ._numbers import Number, Transport, number

if TYPE_CHECKING:
    from ._results import RequestResult, Result

Item = TypeVar("Item", IntEnum, IntFlag)


class Status(Number):
    """The outcome of a call or a transfer; the numbers are those of ferry.h."""

    OK = 0
    PENDING = 1
    DRAINING = 2
    INVALID = -100
    NOT_REGISTERED = -101
    OVERLAP = -102
    ACCESS = -103
    STALE = -104
    BUSY = -105
    LIMIT = -106
    UNSUPPORTED = -107
    CLOSED = -108
    TIMEOUT = -200
    CANCELLED = -201
    CORRUPT = -202
    PARTIAL = -203
    UNREACHABLE = -300
    PEER_LOST = -301
    REFUSED = -302
    VERSION = -303
    NOT_FERRY = -304
    NO_MEMORY = -400
    SYSTEM = -401
    UNAVAILABLE = -402
    PANIC = -403


class Error(Exception):
    """A call or a transfer failed.

    `status_name` is the name of `status` in the library, also if a newer library added the status.
    `request_index` is the index of the failed request or buffer, if the error concerns one. For a failed
    transfer, `result` has its end and `results` its failed requests.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        request_index: int | None = None,
        os_error: int = 0,
        vendor_error: int = 0,
        transport: int = 0,
    ) -> None:
        self.status: Status = number(Status, status)
        self.status_name: str = status_name(status)
        self.message: str = message
        self.request_index: int | None = request_index
        self.os_error: int = os_error
        self.vendor_error: int = vendor_error
        self.transport: Transport = number(Transport, transport)
        self.result: Result | None = None
        self.results: Sequence[RequestResult] = ()
        super().__init__(status, message)
        if isinstance(self, OSError):
            # Its constructor has taken the status for an errno.
            failure: OSError = self
            failure.errno = os_error or None

    def __str__(self) -> str:
        return f"{self.status_name}: {self.message}"


class CallerError(Error):
    """The caller made a mistake, or the call is not possible now; the call did nothing. BusyError names the
    exception."""


class InvalidError(CallerError, ValueError):
    """INVALID: an argument is wrong; the message names it."""


class NotRegisteredError(CallerError, KeyError):
    """NOT_REGISTERED: no region has this memory, or this name."""


class OverlapError(CallerError):
    """OVERLAP: requests of one transfer write the same bytes, or a region overlaps another."""


class AccessError(CallerError):
    """ACCESS: the peer does not allow this to the region."""


class StaleError(CallerError):
    """STALE: the object of the handle is gone."""


class BusyError(CallerError):
    """BUSY: the object is in use, or an operation is in progress; try again later. After the timeout of an
    unregister, a free or a close, the region, peer or engine stays closed for new work; a region is unchanged
    if the timeout was 0."""


class LimitError(CallerError):
    """LIMIT: a number or a length is beyond what ferry takes."""


class UnsupportedError(CallerError):
    """UNSUPPORTED: this version does not support the operation."""


class ClosedError(CallerError):
    """CLOSED: the engine is closed, or this process inherited it by fork."""


class PendingError(Error, builtins.TimeoutError):
    """PENDING or DRAINING: the timeout has passed. The transfer goes on and still owns its memory."""


class TransferError(Error):
    """This transfer or call failed."""


class TimeoutError(TransferError, builtins.TimeoutError):
    """TIMEOUT: a transfer's deadline or a call's timeout has passed."""


class CancelledError(TransferError):
    """CANCELLED: by request, or because an earlier ordered transfer failed."""


class CorruptError(TransferError):
    """CORRUPT: a checksum is wrong."""


class PartialError(TransferError):
    """PARTIAL: some requests failed; `results` lists them."""


class PeerError(Error, ConnectionError):
    """The peer, or every path to it, failed."""


class UnreachableError(PeerError):
    """UNREACHABLE: nothing answers at the address."""


class PeerLostError(PeerError):
    """PEER_LOST: the peer was reached before and is lost now."""


class RefusedError(PeerError):
    """REFUSED: the peer refused the session: authentication failed, or the peer is at a limit."""


class VersionError(PeerError):
    """VERSION: the peer speaks another version of the protocol."""


class NotFerryError(PeerError):
    """NOT_FERRY: another program answers at the address."""


class EngineError(Error):
    """This engine or machine failed."""


class NoMemoryError(EngineError, MemoryError):
    """NO_MEMORY: the machine has no memory left."""


class SystemError(EngineError):
    """SYSTEM: a call of the system failed; `os_error` has its errno."""


class UnavailableError(EngineError):
    """UNAVAILABLE: this machine or engine lacks what the call needs."""


class PanicError(EngineError):
    """PANIC: the engine is broken; close it."""


# PEER_LOST is PeerLostError, and so on.
_CLASSES: dict[int, type[Error]] = {
    status: globals()[status.name.title().replace("_", "") + "Error"]
    for status in Status
    if status not in (Status.OK, Status.DRAINING)
}
_CLASSES[Status.DRAINING] = PendingError
_GROUPS: dict[int, type[Error]] = {1: CallerError, 2: TransferError, 3: PeerError, 4: EngineError}


def status_name(status: int) -> str:
    name: bytes = library.ferry_status_name(status)
    return name.decode()


def error_class(status: int) -> type[Error]:
    """Returns the class of a status; for an unknown status, the class of its group."""
    return _CLASSES.get(status) or _GROUPS.get(-status // 100, Error)


# Error structs that successful calls have returned: a new struct for each call would cost more than the
# call. list.pop and append are atomic, so threads need no lock, and a forked child finds no lock held.
_spare: list[tuple[CError, int]] = []


def call(function: Callable[..., int], *arguments: object) -> int:
    """Calls a function of the library with an error struct as last argument; raises on failure."""
    try:
        place = _spare.pop()
    except IndexError:
        new = CError(struct_size=sizeof(CError))
        place = (new, addressof(new))
    status = function(*arguments, place[1])
    if status < 0:
        raise from_c(status, place[0])
    _spare.append(place)
    return status


def from_c(status: int, error: CError) -> Error:
    index = error.request_index
    return error_class(status)(
        status,
        error.message.decode(errors="replace"),
        request_index=None if index == NO_INDEX else index,
        os_error=error.os_error,
        vendor_error=error.vendor_error,
        transport=error.transport,
    )


def invalid(message: str, request_index: int | None = None) -> InvalidError:
    return InvalidError(Status.INVALID, message, request_index=request_index)


def nanoseconds(seconds: float | None, name: str = "timeout") -> int:
    """Converts seconds to nanoseconds; None and infinity mean no end."""
    if seconds is None or seconds == math.inf:
        return FOREVER
    if not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise invalid(f"{name} must be seconds, at least 0, or None for no end, not {seconds!r}")
    return min(int(seconds * 1e9), FOREVER - 1)


def channel_number(channel: int) -> int:
    """Returns the number of a channel of notifications: ctypes would cut larger numbers short."""
    if not hasattr(channel, "__index__") or not 0 <= (value := operator.index(channel)) < CHANNELS_MAX:
        raise invalid(f"channel must be 0 to {CHANNELS_MAX - 1}, not {channel!r}")
    return value


def unsigned(value: Any, name: str, bits: int = 32) -> int:
    """Returns a number that fits into a field of the library: ctypes would cut larger numbers short."""
    try:
        found = operator.index(value)
    except TypeError:
        raise invalid(f"{name} must be an integer, not {value!r}") from None
    if not 0 <= found < 2**bits:
        raise invalid(f"{name} must be 0 to 2**{bits} - 1, not {found}")
    return found


def member(kind: type[Item], value: Any, name: str) -> Item:
    """Returns a member of an enum, by itself, its number or its name in any case."""
    if isinstance(value, kind):
        return value  # Perhaps of a newer library.
    try:
        return kind[value.upper()] if isinstance(value, str) else kind(value)
    except (KeyError, ValueError):
        choices = ", ".join(kind.__members__)
        raise invalid(f"{name}: one of {choices} of ferry's {kind.__name__}, not {value!r}") from None


def items_of(value: Any, name: str, what: str = "") -> Any:
    """Returns a list of the caller, which could be one of its items by mistake."""
    if not hasattr(value, "__len__") or isinstance(value, str):
        raise invalid(f"{name} must be a list{what}, not {value!r}")
    return value


def encoded(value: Any, name: str, like: str = "") -> bytes:
    """Returns a text for the library."""
    if not isinstance(value, str):
        raise invalid(f"{name} must be a str{like}, not {value!r}")
    if "\0" in value:  # C would see the text end there.
        raise invalid(f"{name} has a zero byte: {value!r}")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise invalid(f"{name} is no UTF-8: {error}") from None


def text(function: Callable[..., int], *arguments: object) -> bytes:
    """Returns a text or bytes of the library; asks again while it grows."""
    capacity = 512
    while True:
        buffer = create_string_buffer(capacity)
        length = c_size_t()
        try:
            call(function, *arguments, addressof(buffer), capacity, addressof(length))
        except Error as error:
            if error.status != Status.LIMIT:
                raise
            call(function, *arguments, None, 0, addressof(length))
            capacity = 2 * length.value + 1
        else:
            return buffer.raw[: length.value]
