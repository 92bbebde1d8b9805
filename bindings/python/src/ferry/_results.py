"""How transfers and their requests end, and the numbers that describe it."""

from __future__ import annotations

from ctypes import addressof, c_size_t, sizeof
from enum import IntFlag
from typing import TYPE_CHECKING, NamedTuple

from ._abi import RESULTS_ALL, CRequestResult, CResult, library
from ._errors import Status, call, status_name
from ._numbers import Number, Transport, number

if TYPE_CHECKING:
    from ._engine import Engine


class Access(IntFlag):
    """What peers may do with a region."""

    REMOTE_READ = 1
    REMOTE_WRITE = 2


class MemoryKind(Number):
    """The kind of a region's memory; AUTO, only for registration, lets the engine detect the kind."""

    AUTO = 0
    HOST = 1
    CUDA = 2
    ASCEND = 3
    CUDA_MANAGED = 4
    CUDA_PINNED = 5
    FILE = 6


class State(Number):
    """How a transfer ended."""

    DONE = 3
    FAILED = 4
    CANCELLED = 5
    TIMED_OUT = 6


class Fence(Number):
    """Why the memory is the caller's again."""

    CONFIRMED = 1
    DEAD = 2
    LEASE = 3


class NotificationState(Number):
    """The outcome of a transfer's notification."""

    NONE = 0
    DELIVERED = 1
    NOT_SENT = 2
    UNKNOWN = 3


class Progress(NamedTuple):
    """The progress of a transfer. bytes_confirmed never decreases; at the end it equals the result's."""

    bytes_confirmed: int
    bytes_total: int


_state = CResult.state.__get__
_status = CResult.status.__get__
_fence = CResult.fence.__get__
_notification = CResult.notification.__get__
_transport = CResult.transport.__get__
_request_status = CRequestResult.status.__get__
_request_transport = CRequestResult.transport.__get__


class Result(CResult):
    """How a transfer ended. Times are time.monotonic_ns()."""

    # The fields of the struct, by their names in ferry.h; the properties below give the numbers of enums.
    os_error: int
    user_data: int
    bytes_confirmed: int
    requests_failed: int
    requests_in: int
    slices_out: int
    submitted_ns: int
    started_ns: int
    finished_ns: int

    @property
    def state(self) -> State:
        return number(State, _state(self))

    @property
    def status(self) -> Status:
        return number(Status, _status(self))

    @property
    def fence(self) -> Fence:
        return number(Fence, _fence(self))

    @property
    def notification(self) -> NotificationState:
        return number(NotificationState, _notification(self))

    @property
    def transport(self) -> Transport:
        """The transport that carried the transfer."""
        return number(Transport, _transport(self))

    def __repr__(self) -> str:
        return (
            f"<ferry.Result {self.state.name} {status_name(self.status)}, "
            f"{self.bytes_confirmed} bytes, {self.requests_failed} of {self.requests_in} requests failed>"
        )


class RequestResult(CRequestResult):
    """How one request ended; `request_index` is its index in the caller's list."""

    request_index: int
    bytes_confirmed: int
    os_error: int
    vendor_error: int

    @property
    def status(self) -> Status:
        return number(Status, _request_status(self))

    @property
    def transport(self) -> Transport:
        return number(Transport, _request_transport(self))

    def __repr__(self) -> str:
        return f"<ferry.RequestResult [{self.request_index}] {status_name(self.status)}>"


RESULT_BYTES = sizeof(Result)


def request_results(engine: Engine, transfer: int, which: int = RESULTS_ALL) -> list[RequestResult]:
    """Lists the outcome of each request of a final transfer."""
    count = c_size_t()
    function = library.ferry_transfer_results
    step = sizeof(RequestResult)
    call(function, engine._pointer, transfer, which, None, step, 0, addressof(count))
    found = (RequestResult * count.value)()
    call(function, engine._pointer, transfer, which, addressof(found), step, count.value, addressof(count))
    return list(found)
