"""Transfers, from their submission until they are final and released."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from ctypes import addressof, c_uint64, sizeof
from types import TracebackType
from typing import TYPE_CHECKING

from ._abi import FOREVER, RESULTS_FAILED, CError, library
from ._devices import stream_and_kind
from ._errors import ClosedError, Error, PendingError, Status, call, from_c, invalid, nanoseconds
from ._results import RESULT_BYTES, Progress, RequestResult, Result, request_results
from ._waits import TURN_NS

if TYPE_CHECKING:
    from ._engine import Engine
    from ._queue import Queue


class Transfer:
    """A submitted transfer. The memory that it names is the caller's again when the transfer is final.

    A `with` block closes the transfer at its end. A dropped transfer goes on; the engine releases it when
    it is final.
    """

    __slots__ = ("_engine", "_queue", "handle", "__weakref__")

    def __init__(self, engine: Engine, handle: int, queue: Queue | None) -> None:
        self._engine = engine
        self._queue = queue
        self.handle: int = handle

    def wait(
        self, timeout: float | None = None, *, progress: Callable[[int, int], object] | None = None
    ) -> Result:
        """Waits until the transfer is final; raises if it is not done.

        PendingError: the timeout has passed. The exception of a failed transfer has its `result`, and its
        failed requests in `results`. `progress` is called with the values of `progress()`, ten times a
        second and at the end; if it raises, the wait ends and the transfer goes on.
        """
        result, error = self._wait(nanoseconds(timeout), progress)
        if error is not None:
            try:
                raise error
            finally:
                # The error's traceback refers to this frame: a reference back would keep the transfer alive.
                del error
        assert result is not None  # Without an error there is a result.
        return result

    def poll(self) -> Result | None:
        """Returns the result if the transfer is final, however it ended; otherwise None."""
        result, error = self._wait(0)
        if result is None and error is not None and not isinstance(error, PendingError):
            try:
                raise error
            finally:
                del error  # as in `wait`
        return result

    def progress(self) -> Progress:
        """Returns the bytes confirmed at their destination, and all bytes. Never waits."""
        confirmed, total = c_uint64(), c_uint64()
        places = addressof(confirmed), addressof(total)
        call(library.ferry_transfer_progress, self._engine._pointer, self.handle, *places)
        return Progress(confirmed.value, total.value)

    async def wait_async(self, *, progress: Callable[[int, int], object] | None = None) -> Result:
        """`wait` in an event loop, for a transfer that was submitted with a queue. If the task is cancelled,
        the wait ends and the transfer goes on. Several tasks may wait for one transfer; the wait for a final
        transfer ends at once, even if another task has taken its event."""
        if progress is None:
            await self.final_async()
        else:
            await self._show_async(progress)
        return self.wait(0, progress=progress)

    async def final_async(self) -> None:
        """Returns when the transfer is final, however it ended."""
        if self._queue is None:
            raise invalid("the transfer was submitted without a queue: nothing wakes the event loop")
        await self._queue._transfer_final(self)

    def results(self) -> list[RequestResult]:
        """Lists the outcome of each request of a final transfer, in the caller's order."""
        if self.poll() is None:
            raise PendingError(Status.PENDING, "the transfer is not final yet")
        return request_results(self._engine, self.handle)

    def cancel(self) -> None:
        """Cancels the transfer; the final state has the outcome. Never waits."""
        call(library.ferry_transfer_cancel, self._engine._pointer, self.handle)

    def stream_wait(self, stream: object) -> None:
        """Makes a CUDA stream wait: work given to the stream after this call begins when the transfer is
        final, however it ended; the result has the outcome. The call itself does not wait.

        `stream` is the handle of a CUstream or cudaStream_t, 0 for the default stream, or an object of torch,
        or one with `__cuda_stream__`. UnsupportedError for streams of AscendCL.
        """
        handle, kind = stream_and_kind(stream, "stream")
        call(library.ferry_transfer_stream_wait, self._engine._pointer, self.handle, handle, kind)

    def close(self) -> None:
        """Cancels the transfer if it is not final, and waits until it is. The result can still be read.
        Control-C ends the wait alone: close again. Does nothing for a final transfer."""
        self._settle()

    def __enter__(self) -> Transfer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self._engine._release(self.handle)

    def __repr__(self) -> str:
        try:
            result = self.poll()
            said = "{} of {} bytes".format(*self.progress()) if result is None else repr(result)
        except Error as error:
            said = error.status_name
        return f"<ferry.Transfer {self.handle:#x}, {said}>"

    def _settle(self) -> None:
        """Cancels the transfer if it is not final, and waits until it is."""
        # All transfers of a closed engine are final.
        with suppress(ClosedError):
            if self.poll() is None:
                self.cancel()
                self._wait(FOREVER)

    async def _settle_async(self) -> None:
        """`_settle` in an event loop, however often the task is cancelled meanwhile."""
        import asyncio

        with suppress(ClosedError):
            if self.poll() is None:
                self.cancel()
            while self.poll() is None:
                with suppress(asyncio.CancelledError):
                    await self.final_async()

    async def _show_async(self, progress: Callable[[int, int], object]) -> None:
        """`final_async` that also calls `progress`."""
        import asyncio

        final = asyncio.ensure_future(self.final_async())
        try:
            while not (await asyncio.wait((final,), timeout=TURN_NS / 1e9))[0]:
                progress(*self.progress())
            await final
        finally:
            final.cancel()

    def _wait(
        self, timeout_ns: int, progress: Callable[[int, int], object] | None = None
    ) -> tuple[Result | None, Error | None]:
        """Returns the result if the transfer is final, and the error of the transfer or of the call."""
        result = Result(RESULT_BYTES)
        problem = CError(struct_size=sizeof(CError))
        places = addressof(result), addressof(problem)
        until = time.monotonic_ns() + timeout_ns
        while True:
            # In turns, so that the interpreter handles signals: control-C ends the wait.
            turn = min(timeout_ns, TURN_NS)
            status = library.ferry_transfer_wait(self._engine._pointer, self.handle, turn, *places)
            if progress is not None and status > 0:
                progress(*self.progress())
            timeout_ns = until - time.monotonic_ns()
            if status <= 0 or timeout_ns <= 0:
                break
        if status > 0:
            return None, PendingError(status, "the transfer is not final yet")
        if status == 0:
            if progress is not None:
                progress(result.bytes_confirmed, result.bytes_confirmed)
            return result, None
        error = from_c(status, problem)
        if result.state == 0:
            return None, error
        error.result = result
        error.results = request_results(self._engine, self.handle, RESULTS_FAILED)
        return result, error
