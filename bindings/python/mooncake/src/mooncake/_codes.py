"""Converts Python's arguments for the library, and the library's errors to the codes that callers know."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable
from functools import wraps
from operator import index
from typing import Any, TypeVar, cast

import ferry

LOG = logging.getLogger("mooncake.engine")
FAILED = -1
OVERLAP = -7

F = TypeVar("F", bound=Callable[..., int])


def code_of(error: ferry.Error) -> int:
    """Returns a strictly negative code."""
    return OVERLAP if error.status == ferry.Status.OVERLAP else min(error.status, FAILED)


def coded(function: F) -> F:
    """Makes a function return ferry's errors as codes and log their text. Wrong types stay TypeErrors."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> int:
        try:
            return function(*arguments, **named)
        except ferry.Error as error:
            LOG.error("%s: %s", function.__name__, error)
            return code_of(error)

    return cast(F, call)


def column(values: Iterable[int], name: str) -> array[int]:
    """Returns 64-bit words from a list, tuple or numpy array of integers; TypeError for other types."""
    if isinstance(values, (str, bytes)):
        raise TypeError(f"{name}: {type(values).__name__} is no list of integers")
    view = None
    try:
        view = memoryview(values)  # type: ignore[arg-type]
    except TypeError:
        pass
    # Signed and unsigned words are alike below 2**63, and no address or length is above.
    if view is not None and view.ndim == 1 and view.c_contiguous and view.format in ("L", "l", "Q", "q"):
        words = array("Q")
        words.frombytes(view.cast("B"))
        return words
    try:
        return array("Q", map(index, values))
    except OverflowError:
        raise ferry.InvalidError(
            ferry.Status.INVALID, f"{name}: a number is negative or above 2**64"
        ) from None
