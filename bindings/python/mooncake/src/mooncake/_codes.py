"""Converts Python's arguments for the library, and the library's errors to the codes that callers know."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from operator import index
from typing import Any, TypeVar, cast

import ferry

LOG = logging.getLogger("mooncake.engine")
FAILED = -1
OVERLAP = -7

COLUMNS = ("buffers", "peer_buffer_addresses", "lengths")

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
    """Returns 64-bit words from a list, tuple or numpy array of integers; TypeError for other types. "L" is
    the letter whose numbers `array` converts fastest."""
    try:
        if type(values) is list or type(values) is tuple:
            return array("L", values)
        if isinstance(values, (str, bytes)):
            raise TypeError(f"{name}: {type(values).__name__} is no list of integers")
        return words_of(values)
    except OverflowError:
        raise negative(name) from None


def words_of(values: Iterable[int]) -> array[int]:
    """Copies an array of 64-bit integers as a whole, other sequences one by one."""
    try:
        view = memoryview(values)  # type: ignore[arg-type]
    except TypeError:
        return array("L", map(index, values))
    # Signed and unsigned words are alike below 2**63, and no address or length is above.
    if view.ndim == 1 and view.c_contiguous and view.format in ("L", "l", "Q", "q"):
        words = array("L")
        words.frombytes(view.cast("B"))
        return words
    return array("L", map(index, values))


def negative(name: str) -> ferry.InvalidError:
    return ferry.InvalidError(ferry.Status.INVALID, f"{name}: a number is negative or above 2**64")


def requests_of(local: Sequence[int], remote: Sequence[int], lengths: Sequence[int]) -> ferry.Requests | None:
    """Returns requests from the lists that COLUMNS names; None if there is nothing to move."""
    if (
        type(local) is type(remote) is type(lengths) is list
        and len(local) == len(remote) == len(lengths) == 1
    ):
        return request_of(local[0], remote[0], lengths[0])
    local, remote, lengths = map(column, (local, remote, lengths), COLUMNS)
    count = len(local)
    if not count == len(remote) == len(lengths):
        message = f"{count} buffers, {len(remote)} peer_buffer_addresses and {len(lengths)} lengths"
        raise ferry.InvalidError(ferry.Status.INVALID, message)
    if count == 0:
        return None
    # A row has a fourth number, the remote region: 0 means the region that is registered there.
    rows = array("L", bytes(32 * count))
    rows[0::4], rows[1::4], rows[2::4] = local, remote, lengths
    return _requests(rows)


def request_of(local: int, remote: int, length: int) -> ferry.Requests:
    """Returns a single request, for which lists would cost more than the transfer does."""
    try:
        return _requests(array("L", (local, remote, length, 0)))
    except OverflowError:
        raise negative("buffer, peer_buffer_address or length") from None


_requests = ferry.Requests._of_words
