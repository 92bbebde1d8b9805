"""Transfers: from their submission until they are final, and dropped."""

from __future__ import annotations

import time
from contextlib import suppress
from ctypes import addressof, sizeof
from types import TracebackType
from typing import TYPE_CHECKING

from ._abi import FOREVER, RESULTS_FAILED, CError, library
from ._errors import ClosedError, Error, PendingError, Status, call, from_c, invalid, nanoseconds
from ._results import RESULT_BYTES, RequestResult, Result, request_results

if TYPE_CHECKING:
    from ._engine import Engine
    from ._queue import Queue

TURN_NS = 100_000_000


class Transfer:
    """A transfer that was submitted. The memory that it names is the caller's again when it is final.

    Leaving a `with` before it is final cancels it and waits until it is. One that is dropped goes on; the
    engine forgets it when it is final.
    """

    __slots__ = ("_engine", "_queue", "handle", "__weakref__")

    def __init__(self, engine: Engine, handle: int, queue: Queue | None) -> None:
        self._engine = engine
        self._queue = queue
        self.handle = handle

    def wait(self, timeout: float | None = None) -> Result:
        """Waits until the transfer is final; raises if it is not done.

        PendingError when the timeout ends first. The exception of a failed transfer has its `result` and
        the `results` of the requests that failed.
        """
        result, error = self._wait(nanoseconds(timeout))
        if error is not None:
            raise error
        assert result is not None  # One of the two is there.
        return result

    def poll(self) -> Result | None:
        """The result if the transfer is final, however it ended; None before."""
        result, error = self._wait(0)
        if result is None and error is not None and not isinstance(error, PendingError):
            raise error
        return result

    async def wait_async(self) -> Result:
        """`wait` in an event loop, for a transfer that was submitted with a queue. Cancelling the task ends
        the wait; the transfer goes on."""
        await self.final_async()
        return self.wait(0)

    async def final_async(self) -> None:
        """Returns when the transfer is final, however it ended."""
        if self._queue is None:
            raise invalid("the transfer was submitted without a queue: nothing wakes the event loop")
        await self._queue._transfer_final(self.handle)

    def results(self) -> list[RequestResult]:
        """What became of each request of a final transfer, in the caller's order."""
        if self.poll() is None:
            raise PendingError(Status.PENDING, "the transfer is not final yet")
        return request_results(self._engine, self.handle)

    def cancel(self) -> None:
        """Asks the transfer to stop; what came of it, the final state tells. Never waits."""
        call(library.ferry_transfer_cancel, self._engine._pointer, self.handle)

    def __enter__(self) -> Transfer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # With its engine closed, it is final.
        with suppress(ClosedError):
            self._settle()

    def __del__(self) -> None:
        self._engine._release(self.handle)

    def __repr__(self) -> str:
        return f"<ferry.Transfer {self.handle:#x}>"

    def _settle(self) -> None:
        """Cancels the transfer if it is not final, and waits until it is."""
        if self.poll() is None:
            self.cancel()
            self._wait(FOREVER)

    def _wait(self, timeout_ns: int) -> tuple[Result | None, Error | None]:
        """The result if it is final, and the error of the transfer or of the call."""
        result = Result(RESULT_BYTES)
        problem = CError(struct_size=sizeof(CError))
        places = addressof(result), addressof(problem)
        until = time.monotonic_ns() + timeout_ns
        while True:
            # In turns, so that the interpreter sees signals: control-C ends the wait.
            turn = min(timeout_ns, TURN_NS)
            status = library.ferry_transfer_wait(self._engine._pointer, self.handle, turn, *places)
            timeout_ns = until - time.monotonic_ns()
            if status <= 0 or timeout_ns <= 0:
                break
        if status > 0:
            return None, PendingError(status, "the transfer is not final yet")
        if status == 0:
            return result, None
        error = from_c(status, problem)
        if result.state == 0:
            return None, error
        error.result = result
        error.results = request_results(self._engine, self.handle, RESULTS_FAILED)
        return result, error
