"""Connections by session ("host:port"); a lost connection is made again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import ferry

from ._own import is_own

LOG = logging.getLogger("mooncake.engine")
CONNECT_SECONDS = 10.0

T = TypeVar("T")


class Sessions:
    """The peers of one engine by their sessions. Any thread may use it."""

    def __init__(self, engine: ferry.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._peers: dict[str, ferry.Peer] = {}

    def with_peer(self, session: str, act: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Calls `act` with the session's peer and the arguments. If the peer was lost before the call,
        connects again once: the call has then moved nothing."""
        peer = self._peers.get(session)
        if peer is not None:
            try:
                return act(peer, *arguments, **named)
            except (ferry.PeerLostError, ferry.InvalidError, ferry.StaleError) as error:
                # A result means that a transfer took place; its outcome is the answer.
                if error.result is not None or not self._is_gone(peer):
                    raise
                self._forget(session, peer)
        return act(self._connect(session), *arguments, **named)

    def _is_gone(self, peer: ferry.Peer) -> bool:
        try:
            return peer.info().state == ferry.PeerState.LOST
        except ferry.Error:
            return True

    def _forget(self, session: str, peer: ferry.Peer) -> None:
        with self._lock:
            if self._peers.get(session) is peer:
                del self._peers[session]

    def _connect(self, session: str) -> ferry.Peer:
        try:
            peer = self._engine.connect(session, timeout=CONNECT_SECONDS)
        except ferry.InvalidError:
            if not is_own(self._engine, session):
                raise
            peer = self._engine.own_peer()
        with self._lock:
            known = self._peers.setdefault(session, peer)
        if known is peer:
            for path in peer.paths():
                used = "is used" if path.chosen else "is not"
                LOG.info("%s: %s %s: %s", session, path.transport.name.lower(), used, path.why)
        return peer
