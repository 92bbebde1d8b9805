"""Notices between engines. A notice has a name and a message, and travels as a ferry notification."""

from __future__ import annotations

import logging
import struct
import time
from collections import deque

import ferry

_LENGTH = struct.Struct("<I")
# The pause between two looks: a look costs as much as a small transfer. A sender has room for 1,024 notices
# in between.
PAUSE_NS = 1_000_000
# The most notices that wait for `take`: a program that never asks does not keep all that ever came.
KEPT_MAX = 65_536

LOG = logging.getLogger("mooncake.engine")


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
    notices, so every operation of the engine calls `collect`, which looks once a millisecond. Beyond KEPT_MAX
    the oldest notices are dropped."""

    def __init__(self, engine: ferry.Engine) -> None:
        self._queue = engine.queue(notifications=True)
        self._found: deque[TransferNotify] = deque(maxlen=KEPT_MAX)
        self._has_dropped = False
        self._due_ns = 0

    def collect(self) -> None:
        now = time.monotonic_ns()
        if now >= self._due_ns:
            self._due_ns = now + PAUSE_NS
            self._look()

    def _look(self) -> None:
        for event in self._queue.drain():
            notice = decode(event.data) if event.kind == ferry.EventKind.NOTIFICATION else None
            if notice is None:
                continue
            if len(self._found) == KEPT_MAX and not self._has_dropped:
                self._has_dropped = True
                LOG.warning("more than %d notices wait for get_notifies: the oldest are dropped", KEPT_MAX)
            self._found.append(notice)

    def take(self) -> list[TransferNotify]:
        self._look()
        taken = []
        while self._found:
            taken.append(self._found.popleft())
        return taken
