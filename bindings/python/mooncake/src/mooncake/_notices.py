"""Notices between engines. A notice has a name and a message, and travels as a ferry notification."""

from __future__ import annotations

import struct
from collections import deque

import ferry

_LENGTH = struct.Struct("<I")


class TransferNotify:
    """The notice that the target gets when a transfer's data has arrived."""

    __slots__ = ("name", "msg")

    def __init__(self, name: str = "", msg: str = "") -> None:
        self.name = name
        self.msg = msg

    def __repr__(self) -> str:
        return f"TransferNotify(name={self.name!r}, msg={self.msg!r})"


def encode(notice: TransferNotify) -> bytes:
    name = notice.name.encode()
    return _LENGTH.pack(len(name)) + name + notice.msg.encode()


def decode(data: bytes) -> TransferNotify | None:
    """Returns None for bytes that this module did not send."""
    if len(data) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(data)
    name, message = data[_LENGTH.size : _LENGTH.size + length], data[_LENGTH.size + length :]
    if len(name) != length:
        return None
    try:
        return TransferNotify(name.decode(), message.decode())
    except UnicodeDecodeError:
        return None


class Inbox:
    """Notices that have arrived and were not asked for. A sender waits when the library holds 1,024 of its
    notices, so every operation of the engine calls `collect`."""

    def __init__(self, engine: ferry.Engine) -> None:
        self._queue = engine.queue(notifications=True)
        self._found: deque[TransferNotify] = deque()

    def collect(self) -> None:
        for event in self._queue.drain():
            notice = decode(event.data) if event.kind == ferry.EventKind.NOTIFICATION else None
            if notice is not None:
                self._found.append(notice)

    def take(self) -> list[TransferNotify]:
        self.collect()
        taken = []
        while self._found:
            taken.append(self._found.popleft())
        return taken
