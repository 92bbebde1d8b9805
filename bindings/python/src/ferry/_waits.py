"""Calls that wait for peers, so that the interpreter handles signals meanwhile: control-C ends each at once.

A wait inside the library can't be interrupted. A call that can be repeated waits in turns. A call that would
begin anew with each turn has a thread of its own.
"""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ._errors import BusyError, call, nanoseconds

TURN_NS = 100_000_000


def in_turns(
    timeout: float | None, wait: Callable[[int], object], again: type[Exception] = BusyError
) -> None:
    """Repeats a call that waits for some nanoseconds while it raises `again`, until the timeout."""
    remaining = nanoseconds(timeout)
    until = time.monotonic_ns() + remaining
    while True:
        try:
            wait(min(max(remaining, 0), TURN_NS))
            return
        except again:
            remaining = until - time.monotonic_ns()
            if remaining <= 0:
                raise


def apart(
    keep: Any, function: Callable[..., int], *arguments: object, undo: Callable[[], object] | None = None
) -> int:
    """Calls a function of the library on a thread of its own, and waits for that thread.

    If a signal's handler raises, the call goes on until its own end, without its caller: `keep` lives until
    then, and `undo` takes back what the call has made.
    """
    import threading

    if threading.current_thread() is not threading.main_thread():
        # Signal handlers run on the main thread only.
        return call(function, *arguments)
    outcome: list[int | BaseException] = []
    # The side that takes the ticket first knows that the other side is still there.
    tickets = [keep]
    over = _thread.allocate_lock()
    over.acquire()

    def work(_kept: object) -> None:
        try:
            outcome.append(call(function, *arguments))
        except BaseException as error:
            outcome.append(error)
        try:
            tickets.pop()
        except IndexError:
            _undo(outcome, undo)
        over.release()

    try:
        _thread.start_new_thread(work, (keep,))
        over.acquire()
    except BaseException:
        try:
            tickets.pop()
        except IndexError:
            _undo(outcome, undo)
        raise
    found = outcome.pop()
    if isinstance(found, BaseException):
        try:
            raise found
        finally:
            # The error's traceback refers to this frame.
            del found
    return found


def _undo(outcome: list[int | BaseException], undo: Callable[[], object] | None) -> None:
    if undo is not None and isinstance(outcome[0], int):
        with suppress(Exception):
            undo()
