"""The owner of an object of the library, which frees it when the last reference is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._errors import ClosedError, Status


class Handle:
    """An object of the library.

    Only this finaliser frees it. A method holds the handle during its call, so another thread that closes the
    Python object meanwhile takes nothing away from the call.
    """

    __slots__ = ("pointer", "_free", "_held")

    def __init__(self, pointer: int, free: Callable[[int], None], *held: object) -> None:
        self.pointer: int = pointer
        self._free = free
        self._held = held

    def __del__(self) -> None:
        self._free(self.pointer)

    def __reduce__(self) -> Any:
        raise TypeError("an object of the library belongs to its process and cannot be pickled")


def opened(handle: Handle | None, what: str) -> Handle:
    """Returns the handle of an object that is not closed."""
    if handle is None:
        raise ClosedError(Status.CLOSED, f"the {what} is closed")
    return handle
