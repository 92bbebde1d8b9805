"""The base of the enums that mirror numbers of the library (`Status`, `State`, `EventKind` and others), and
the enum that both errors and results use."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeVar

Kind = TypeVar("Kind", bound="Number")


class Number(IntEnum):
    """A number of the library. It equals the plain number, with which programs may compare it."""


def number(kind: type[Kind], value: int) -> Kind:
    """Returns the member with this value.

    A number that a newer library added becomes a member of its own, which is named by the number. A program
    that prints the number, or compares it with those that it knows, continues.
    """
    found = kind._value2member_map_.get(value)
    if found is None:
        found = int.__new__(kind, value)
        found._name_ = str(value)
        found._value_ = value
    return found  # type: ignore[return-value]


def described(event: Any) -> str:
    """Returns an event, a named tuple, as a text with the fields that are set."""
    fields = list(event._asdict().items())[1:]
    said = [f", {name} {_shown(name, it)}" for name, it in fields if it or (name == "rank" and it == 0)]
    return f"<{type(event).__module__}.Event {event.kind.name}{''.join(said)}>"


def _shown(name: str, value: Any) -> str:
    if isinstance(value, IntEnum):
        return value.name
    return hex(value) if name in ("transfer", "region", "address") else repr(value)


class Transport(Number):
    NONE = 0
    TCP = 1
    LOCAL = 2
    RDMA = 3
    CUDA = 4
    ASCEND = 5
