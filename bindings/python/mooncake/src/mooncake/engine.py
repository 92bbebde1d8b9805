"""`mooncake.engine` over ferry: `TransferEngine` with the names, codes and behaviour that callers rely on.

Success is 0 and every failure is negative; the logger `mooncake.engine` gets the reason. After a call has
returned, nothing of it touches memory, unless the call only started a transfer. Addresses, lengths and codes
are ints. Memory is named by address alone, and the caller keeps it alive while it is registered. Any thread
may call anything; waiting releases the GIL.

Without a secret (FERRY_SECRET_FILE names its file: 32 bytes or more, the same for all) peers must be
processes of the same user on this host.
"""

from __future__ import annotations

import ctypes
import ipaddress
import json
import logging
import os
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from itertools import count
from operator import index
from pathlib import Path
from typing import Any

import ferry

from ._codes import FAILED, code_of, coded, column, request_of, requests_of
from ._memory import OK, Registered
from ._notices import Inbox, TransferNotify, encode
from ._own import host_of, is_own
from ._sessions import Sessions

__all__ = ["Read", "TransferEngine", "TransferNotify", "TransferOpcode", "Write"]

LOG = logging.getLogger("mooncake.engine")
DONE, PENDING, TIMED_OUT = 1, 0, -2
# Outcomes of finished batches, for callers that ask again.
OUTCOMES_KEPT = 65_536
# "tcp" allows these: between processes and devices of one host a copy replaces TCP with less work.
TRANSPORTS = {"rdma": "auto", "ascend": "auto", "tcp": "local,tcp,cuda,ascend"}


def __getattr__(name: str) -> bool:
    """SUPPORT_CUDA and the like: True if memory of such devices can be registered."""
    if name.startswith("SUPPORT_"):
        return name == "SUPPORT_CUDA" or name.startswith("SUPPORT_ASCEND")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class TransferOpcode(Enum):
    Read = 0
    Write = 1


Read, Write = TransferOpcode.Read, TransferOpcode.Write
_READ, _WRITE = ferry.Peer.read, ferry.Peer.write


class TransferEngine:
    def __init__(self) -> None:
        self._engine: ferry.Engine | None = None
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._batches: dict[int, ferry.Transfer] = {}
        self._outcomes: OrderedDict[int, int] = OrderedDict()

    # --- Setting up ---------------------------------------------------------------------------------------

    @coded
    def initialize(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str | None = None
    ) -> int:
        """Opens the engine on a free port of `local_hostname`; ignores a port in `local_hostname`.

        `protocol`: "tcp", or "rdma", "ascend" and others, which use the best path that both sides have.
        `device_name`: RDMA devices, separated by commas; None or "" takes all.
        """
        if self._engine is not None:
            LOG.error("initialize: the engine is open already")
            return FAILED
        if metadata_server != "P2PHANDSHAKE":
            LOG.error("initialize: metadata_server must be 'P2PHANDSHAKE', not %r", metadata_server)
            return FAILED
        host = host_of(local_hostname)
        if not may_listen(host):
            LOG.error(
                "initialize: %s can be reached from other hosts: name a file with the shared secret in "
                "FERRY_SECRET_FILE, or set FERRY_ALLOW_UNAUTHENTICATED=1",
                host,
            )
            return FAILED
        if protocol not in TRANSPORTS:
            LOG.warning(
                "initialize: protocol %r is not part of this version; the best path is used", protocol
            )
        settings = {"transports": TRANSPORTS.get(protocol, "auto")}
        if protocol == "rdma":
            LOG.info("initialize: RDMA is used where both sides have a device, TCP otherwise")
            settings["rdma_devices"] = device_name or ""
        bracketed = f"[{host}]" if ":" in host else host
        engine = ferry.Engine(listen_address=f"{bracketed}:0", **settings)
        self._memory = Registered(engine)
        self._inbox = Inbox(engine)
        self._sessions = Sessions(engine)
        self._engine = engine
        LOG.info(
            "initialize: ferry %s at %s, transports %s",
            ferry.version(),
            engine.address,
            settings["transports"],
        )
        return OK

    def initialize_ext(
        self,
        local_hostname: str,
        metadata_server: str,
        protocol: str,
        device_name: str | None,
        metadata_type: str,
    ) -> int:
        """Calls `initialize`; only one kind of metadata exists."""
        return self.initialize(local_hostname, metadata_server, protocol, device_name)

    def get_rpc_port(self) -> int:
        """Returns the port of this engine's session; 0 before `initialize`."""
        return 0 if self._engine is None else int(self._engine.address.rpartition(":")[2])

    def get_engine(self) -> ferry.Engine | None:
        """Returns the ferry engine."""
        return self._engine

    def get_engine_ptr(self) -> int:
        """Returns the `ferry_engine *`; 0 before `initialize`."""
        return 0 if self._engine is None else self._engine._pointer

    def get_local_topology(self, device_name: str | None = None) -> str:
        """Returns JSON: the RDMA devices for host memory, preferred devices and others."""
        names = device_name.split(",") if device_name else rdma_devices()
        return json.dumps({"cpu:0": [names, []]})

    def warmup_efa_segment(self, *_: Any) -> int:
        return OK

    @coded
    def send_probe(self, peer: str) -> int:
        """Returns 0 if the peer answers."""
        engine = self._open()
        try:
            engine.connect(peer, timeout=5.0).probe(timeout=5.0)
        except ferry.InvalidError:
            # The engine has refused to connect to itself: it answers.
            if not is_own(engine, peer):
                raise
        return OK

    # --- Memory -------------------------------------------------------------------------------------------

    @coded
    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Registers memory of the host or of a device; `location` "cuda:0" or "npu:0" is checked.

        With any other `location` ferry detects the device. -7 if registered memory overlaps, -1 for 0
        bytes, -100 if the memory is not at `location`.
        """
        return self._registered().register([index(buffer_addr)], [index(capacity)], location)

    @coded
    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*"
    ) -> int:
        """Registers all of them or none."""
        addresses = column(buffer_addresses, "buffer_addresses")
        return self._registered().register(addresses, column(capacities, "capacities"), location)

    @coded
    def unregister_memory(self, buffer_addr: int) -> int:
        """Unregisters memory; afterwards no peer can reach it. -3 if it is not registered."""
        return self._registered().unregister([index(buffer_addr)])

    @coded
    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        return self._registered().unregister(column(buffer_addresses, "buffer_addresses"))

    def allocate_managed_buffer(self, length: int) -> int:
        """Returns the address of registered memory, or 0."""
        try:
            return self._registered().allocate(index(length))
        except ferry.Error as error:
            LOG.error("allocate_managed_buffer: %s", error)
            return 0

    @coded
    def free_managed_buffer(self, buffer_addr: int, length: int) -> int:
        return self._registered().free(index(buffer_addr))

    def write_bytes_to_buffer(self, dest_address: int, src_ptr: bytes, length: int) -> int:
        """Copies into host memory."""
        if not 0 <= index(length) <= len(src_ptr):
            return FAILED
        ctypes.memmove(index(dest_address), src_ptr, length)
        return OK

    def read_bytes_from_buffer(self, source_address: int, length: int) -> bytes:
        """Copies from host memory."""
        return ctypes.string_at(index(source_address), index(length))

    def get_first_buffer_address(self, session: str) -> int:
        """Returns the address of the first memory that the peer registered and has not unregistered, or 0."""
        try:
            self._open()
            regions = self._sessions.with_peer(session, ferry.Peer.regions)
        except ferry.Error as error:
            LOG.error("get_first_buffer_address: %s", error)
            return 0
        return min(regions, key=lambda region: region.order).address if regions else 0

    # --- Transfers, awaited -------------------------------------------------------------------------------

    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        numbers = (buffer, peer_buffer_address, length)
        return self._move(target_hostname, request_of, numbers, opcode, notify)

    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        lists = (buffers, peer_buffer_addresses, lengths)
        return self._move(target_hostname, requests_of, lists, opcode, notify)

    def transfer_sync_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        return self._move(target_hostname, request_of, (buffer, peer_buffer_address, length), Write)

    def transfer_sync_read(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        return self._move(target_hostname, request_of, (buffer, peer_buffer_address, length), Read)

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        return self._move(target_hostname, requests_of, (buffers, peer_buffer_addresses, lengths), Write)

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        return self._move(target_hostname, requests_of, (buffers, peer_buffer_addresses, lengths), Read)

    # --- Transfers, started -------------------------------------------------------------------------------

    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
    ) -> int:
        """Returns the batch's number, or 0 if it could not be started."""
        try:
            requests = requests_of(buffers, peer_buffer_addresses, lengths)
            if requests is None:
                return 0
            self._open()
            self._inbox.collect()
            submit = ferry.Peer.submit_read if opcode is Read else ferry.Peer.submit_write
            transfer = self._sessions.with_peer(target_hostname, submit, requests)
        except ferry.Error as error:
            LOG.error("batch_transfer_async: %s", error)
            return 0
        with self._lock:
            number = next(self._numbers)
            self._batches[number] = transfer
        return number

    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
    ) -> int:
        return self.batch_transfer_async(
            target_hostname, buffers, peer_buffer_addresses, lengths, TransferOpcode.Write
        )

    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
    ) -> int:
        return self.batch_transfer_async(
            target_hostname, buffers, peer_buffer_addresses, lengths, TransferOpcode.Read
        )

    def transfer_submit_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int
    ) -> int:
        return self.batch_transfer_async_write(target_hostname, [buffer], [peer_buffer_address], [length])

    def transfer_check_status(self, batch_id: int) -> int:
        """Returns the status of the whole batch: 1 done, 0 in progress, -1 failed, -2 timed out."""
        return self._outcome(index(batch_id), None)

    def get_batch_transfer_status(self, batch_ids: Iterable[int]) -> int:
        """Waits for all batches; returns 0 if all are done."""
        outcomes = [self._outcome(number, 1.0) for number in column(batch_ids, "batch_ids")]
        return OK if all(outcome == DONE for outcome in outcomes) else FAILED

    # --- Notices ------------------------------------------------------------------------------------------

    def get_notifies(self) -> list[TransferNotify]:
        """Returns the notices that have arrived since the last call."""
        return [] if self._engine is None else self._inbox.take()

    # ------------------------------------------------------------------------------------------------------

    def _open(self) -> ferry.Engine:
        if self._engine is None:
            raise ferry.ClosedError(ferry.Status.CLOSED, "initialize has not been called, or failed")
        return self._engine

    def _registered(self) -> Registered:
        self._open()
        return self._memory

    def _move(
        self,
        session: str,
        make: Callable[..., ferry.Requests | None],
        numbers: tuple[Any, Any, Any],
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
    ) -> int:
        """Makes requests from the numbers, and moves their bytes. Every call that waits takes this path, and
        beside a small transfer each of its steps counts."""
        try:
            requests = make(*numbers)
            if self._engine is None:
                self._open()
            self._inbox.collect()
            options = {} if notify is None else {"notify": encode(notify)}
            if requests is not None:
                move = _READ if opcode is Read else _WRITE
                self._sessions.with_peer(session, move, requests, **options)
            elif notify is not None:
                self._sessions.with_peer(session, ferry.Peer.notify, encode(notify))
            return OK
        except ferry.Error as error:
            LOG.error("a transfer with %s: %s", session, error)
            return code_of(error)

    def _outcome(self, number: int, pause: float | None) -> int:
        """Returns the outcome of a batch; PENDING only without a `pause` to wait in."""
        while True:
            with self._lock:
                transfer = self._batches.get(number)
                if transfer is None:
                    return self._outcomes.get(number, FAILED)
            self._inbox.collect()
            outcome = look(transfer, pause)
            if outcome != PENDING:
                with self._lock:
                    self._batches.pop(number, None)
                    self._outcomes[number] = outcome
                    while len(self._outcomes) > OUTCOMES_KEPT:
                        self._outcomes.popitem(last=False)
                return outcome
            if pause is None:
                return PENDING


# Some callers look for it on the class.
setattr(TransferEngine, "TransferOpcode", TransferOpcode)


def may_listen(host: str) -> bool:
    """True if only this host can reach it, or peers must prove themselves, or proof is not wanted."""
    if os.environ.get("FERRY_SECRET_FILE") or os.environ.get("FERRY_SECRET"):
        return True
    if os.environ.get("FERRY_ALLOW_UNAUTHENTICATED", "").lower() in ("1", "true"):
        return True
    try:
        found = socket.getaddrinfo(host, None)
    except OSError:
        return True  # The engine reports the error.
    return all(ipaddress.ip_address(entry[4][0]).is_loopback for entry in found)


def rdma_devices() -> list[str]:
    place = Path("/sys/class/infiniband")
    return sorted(entry.name for entry in place.iterdir()) if place.is_dir() else []


def look(transfer: ferry.Transfer, pause: float | None) -> int:
    try:
        transfer.wait(pause or 0)
        return DONE
    except ferry.PendingError:
        return PENDING
    except ferry.TimeoutError as error:
        LOG.error("a batch: %s", error)
        return TIMED_OUT
    except ferry.Error as error:
        LOG.error("a batch: %s", error)
        return FAILED
