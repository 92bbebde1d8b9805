"""Values of a call as the library takes them: keys, and pieces of registered memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import addressof, sizeof
from typing import TYPE_CHECKING, Any, Union

from .._errors import invalid, items_of
from .._memory import Memory, Region, place
from ._abi import CKey, CRange, CValue

if TYPE_CHECKING:
    from .._buffers import Registrable

    Piece = Union[Memory, Region, Registrable]
    Value = tuple[bytes, Union[Piece, Sequence[Piece]]]


class Values:
    """An array of ferry_pool_value, and what its pointers lead to."""

    __slots__ = ("address", "count", "_held")

    def __init__(self, values: Sequence[Value], writable: bool) -> None:
        rows = (CValue * len(items_of(values, "values", " of (key, memory)")))()
        pieces: list[tuple[int, int]] = []
        counts: list[int] = []
        for at, item in enumerate(values):
            if not isinstance(item, tuple) or len(item) != 2:
                raise invalid(f"values[{at}] must be (key, memory), not {item!r}", at)
            key, memory = item
            several = memory if isinstance(memory, (list, tuple)) else (memory,)
            pieces.extend(_place(piece, f"values[{at}]", writable, at) for piece in several)
            counts.append(len(several))
            rows[at].key = CKey.from_buffer_copy(key_bytes(key, f"values[{at}]", at))
        ranges = (CRange * len(pieces))(*(CRange(*piece) for piece in pieces))
        start = addressof(ranges)
        for row, count in zip(rows, counts):
            row.struct_size, row.memory, row.memory_count = sizeof(CValue), start, count
            start += count * sizeof(CRange)
        self.address = addressof(rows)
        self.count = len(rows)
        self._held = rows, ranges


class Keys:
    """An array of ferry_pool_key."""

    __slots__ = ("address", "count", "_held")

    def __init__(self, keys: Sequence[bytes]) -> None:
        items = items_of(keys, "keys", " of keys")
        if isinstance(items, (bytes, bytearray)):
            raise invalid("keys must be a list of keys, not one key")
        joined = b"".join(key_bytes(key, f"keys[{at}]", at) for at, key in enumerate(items))
        self._held: ctypes.Array[CKey] = (CKey * len(items)).from_buffer_copy(joined)
        self.address = addressof(self._held)
        self.count = len(items)


def key_bytes(key: Any, name: str, at: int) -> bytes:
    if not isinstance(key, bytes) or len(key) != sizeof(CKey):
        mend = "a ferry.pool.Key: Keyspace.key makes one of a hash, Keyspace.keys_of of tokens"
        raise invalid(f"{name}: its key must be {mend}, not {key!r}", at)
    return key


def _place(piece: Any, name: str, writable: bool, at: int) -> tuple[int, int]:
    """Returns address and length. Registered memory stays in place, because the engine holds it: the library
    refuses all other memory."""
    if isinstance(piece, (Memory, Region)):
        return piece.address, piece.length
    pin = place(piece, name, writable)
    found = pin.address, pin.length
    pin.release()
    return found
