"""Sessions of an engine with itself: an address that names its own. ferry refuses to connect there, and has a
peer that stands for the engine instead."""

from __future__ import annotations

import socket

import ferry


def is_own(engine: ferry.Engine, session: str) -> bool:
    """Returns whether the session, which the engine has just refused as INVALID, is the engine's own. A
    malformed address is refused in the same way."""
    port = engine.address.rpartition(":")[2]
    host, _, theirs = session.rpartition(":")
    if theirs != port or (":" in host and not host.startswith("[")):
        return False
    try:
        return bool(socket.getaddrinfo(host_of(session), port))
    except OSError:
        return False


def host_of(hostname: str) -> str:
    """Returns the host without its port, if it has one."""
    if hostname.startswith("["):
        return hostname[1:].partition("]")[0]
    host, _, port = hostname.rpartition(":")
    return host if host and ":" not in host and port.isdigit() else hostname
