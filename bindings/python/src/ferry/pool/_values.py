"""Values of a call as the library takes them: keys, and pieces of registered memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import addressof, sizeof
from itertools import starmap
from struct import Struct
from typing import TYPE_CHECKING, Any, Union

from .._errors import invalid, items_of
from .._memory import Memory, Region, place
from ._abi import CKey, CRange, CValue

if TYPE_CHECKING:
    from .._buffers import Registrable

    Piece = Union[Memory, Region, Registrable]
    Value = tuple[bytes, Union[Piece, Sequence[Piece]]]


#: CRange and CValue: ctypes takes ten times as long to fill them field by field.
_RANGE, _VALUE = Struct("QQ"), Struct("I4x32sQQ")


class Values:
    """An array of ferry_pool_value, and what its pointers lead to."""

    __slots__ = ("address", "count", "_held")

    def __init__(self, values: Sequence[Value], writable: bool) -> None:
        pieces: list[tuple[int, int]] = []
        rows: list[tuple[bytes, int, int]] = []
        for at, item in enumerate(items_of(values, "values", " of (key, memory)")):
            if not isinstance(item, tuple) or len(item) != 2:
                raise invalid(f"values[{at}] must be (key, memory), not {item!r}", at)
            key, memory = item
            several = memory if isinstance(memory, (list, tuple)) else (memory,)
            rows.append((key_bytes(key, "values", at), len(pieces) * sizeof(CRange), len(several)))
            pieces.extend(_place(piece, f"values[{at}]", writable) for piece in several)
        ranges = (CRange * len(pieces)).from_buffer_copy(b"".join(starmap(_RANGE.pack, pieces)))
        start, size = addressof(ranges), sizeof(CValue)
        packed = b"".join(_VALUE.pack(size, key, start + offset, length) for key, offset, length in rows)
        self._held = (CValue * len(rows)).from_buffer_copy(packed), ranges
        self.address = addressof(self._held[0])
        self.count = len(rows)


class Keys:
    """An array of ferry_pool_key."""

    __slots__ = ("address", "count", "_held")

    def __init__(self, keys: Sequence[bytes], name: str = "keys") -> None:
        items = items_of(keys, name, " of keys")
        if isinstance(items, (bytes, bytearray)):
            raise invalid(f"{name} must be a list of keys, not one key")
        joined = b"".join(key_bytes(key, name, at) for at, key in enumerate(items))
        self._held: ctypes.Array[CKey] = (CKey * len(items)).from_buffer_copy(joined)
        self.address = addressof(self._held)
        self.count = len(items)


def key_bytes(key: Any, name: str, at: int) -> bytes:
    """Returns the key of an item of the list `name`."""
    if not isinstance(key, bytes) or len(key) != sizeof(CKey):
        mend = "a ferry.pool.Key: Keyspace.key makes one of a hash, Keyspace.keys_of of tokens"
        raise invalid(f"{name}[{at}]: its key must be {mend}, not {key!r}", at)
    return key


def _place(piece: Any, name: str, writable: bool) -> tuple[int, int]:
    """Returns address and length. Registered memory stays in place, because the engine holds it: the library
    refuses all other memory."""
    if isinstance(piece, (Memory, Region)):
        return piece.address, piece.length
    pin = place(piece, name, writable)
    found = pin.address, pin.length
    pin.release()
    return found
