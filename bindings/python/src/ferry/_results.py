"""How transfers and their requests end, and the numbers that describe it."""

from __future__ import annotations

from ctypes import addressof, c_size_t, sizeof
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, NamedTuple

from ._abi import RESULTS_ALL, CRequestResult, CResult, library
from ._errors import call, status_name

if TYPE_CHECKING:
    from ._engine import Engine


class Access(IntFlag):
    """What peers may do with a region."""

    REMOTE_READ = 1
    REMOTE_WRITE = 2


class MemoryKind(IntEnum):
    """The kind of a region's memory; AUTO, only for registration, lets the engine detect the kind."""

    AUTO = 0
    HOST = 1
    CUDA = 2
    ASCEND = 3
    CUDA_MANAGED = 4
    CUDA_PINNED = 5


class Transport(IntEnum):
    NONE = 0
    TCP = 1
    LOCAL = 2
    RDMA = 3
    CUDA = 4
    ASCEND = 5


class State(IntEnum):
    """How a transfer ended."""

    DONE = 3
    FAILED = 4
    CANCELLED = 5
    TIMED_OUT = 6


class Fence(IntEnum):
    """Why the memory is the caller's again."""

    CONFIRMED = 1
    DEAD = 2
    LEASE = 3


class NotificationState(IntEnum):
    """The outcome of a transfer's notification."""

    NONE = 0
    DELIVERED = 1
    NOT_SENT = 2
    UNKNOWN = 3


class Progress(NamedTuple):
    """The progress of a transfer. bytes_confirmed never decreases; at the end it equals the result's."""

    bytes_confirmed: int
    bytes_total: int


class Result(CResult):
    """How a transfer ended. Times are time.monotonic_ns()."""

    state: int
    status: int
    fence: int
    notification: int
    transport: int
    os_error: int
    user_data: int
    bytes_confirmed: int
    requests_failed: int
    requests_in: int
    slices_out: int
    submitted_ns: int
    started_ns: int
    finished_ns: int

    def __repr__(self) -> str:
        return (
            f"<ferry.Result {State(self.state).name} {status_name(self.status)}, "
            f"{self.bytes_confirmed} bytes, {self.requests_failed} of {self.requests_in} requests failed>"
        )


class RequestResult(CRequestResult):
    """How one request ended; `request_index` is its index in the caller's list."""

    status: int
    request_index: int
    bytes_confirmed: int
    os_error: int
    vendor_error: int
    transport: int

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
