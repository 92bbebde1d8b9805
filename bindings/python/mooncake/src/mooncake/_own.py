"""Transfers of an engine with itself: a session that names its own address.

ferry refuses to connect an engine to itself. So the first such transfer opens a second engine in this
process, the mirror. All memory is registered in the mirror too, and the mirror is the peer: it admits,
checks, copies, cancels and delivers notices as any peer does. Programs that never send to themselves have no
mirror.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import ferry

if TYPE_CHECKING:
    from ._memory import Registered
    from ._notices import Inbox

# Within one process nothing goes through a NIC.
TRANSPORTS = "local,tcp,cuda,ascend"
SETTLE_SECONDS = 10.0


class Own:
    """The engine itself as a peer. Any thread may use it."""

    def __init__(self, engine: ferry.Engine, memory: Registered, inbox: Inbox) -> None:
        self._engine = engine
        self._memory = memory
        self._inbox = inbox
        self._lock = threading.Lock()
        self._mirror: ferry.Engine | None = None
        self._peer: ferry.Peer | None = None

    def is_at(self, session: str) -> bool:
        """Returns whether the session, which the engine has just refused as INVALID, is the engine's own. A
        malformed address is refused in the same way."""
        port = self._engine.address.rpartition(":")[2]
        host, _, theirs = session.rpartition(":")
        if theirs != port or (":" in host and not host.startswith("[")):
            return False
        try:
            return bool(socket.getaddrinfo(host_of(session), port))
        except OSError:
            return False

    def peer(self, timeout: float) -> ferry.Peer:
        """Returns the mirror as a peer; opens the mirror first."""
        with self._lock:
            if self._mirror is None:
                mirror = ferry.Engine(
                    listen_address="127.0.0.1:0", advertise_address="", transports=TRANSPORTS
                )
                try:
                    self._memory.mirror_in(mirror, self._settle)
                    self._inbox.listen_to(mirror)
                except ferry.Error:
                    self._memory.mirror_no_more()
                    mirror.close()
                    raise
                self._mirror = mirror
            self._peer = self._engine.connect(self._mirror.address, timeout=timeout)
            return self._peer

    def _settle(self) -> None:
        """Waits until the engine knows what the mirror has announced: the answer to a probe follows it.
        Otherwise the caller's next transfer with this memory could be too early."""
        if self._peer is not None:
            with suppress(ferry.Error):
                self._peer.probe(SETTLE_SECONDS)


def host_of(hostname: str) -> str:
    """Returns the host without its port, if it has one."""
    if hostname.startswith("["):
        return hostname[1:].partition("]")[0]
    host, _, port = hostname.rpartition(":")
    return host if host and ":" not in host and port.isdigit() else hostname
