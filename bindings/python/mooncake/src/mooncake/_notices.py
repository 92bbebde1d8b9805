"""Notices between engines, a name and a message each, as the bytes of one of ferry's notifications."""

from __future__ import annotations

import struct
from collections import deque

import ferry

_LENGTH = struct.Struct("<I")


class TransferNotify:
    """What the target is told when a transfer's data is there."""

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
    """None for what was not sent from here."""
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
    """Notices that came and nobody has asked for. Senders wait when 1,024 of theirs have not been taken
    from the library, so `collect` is called by whatever the engine does."""

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
