"""Mooncake's Transfer Engine, as its wheel installs it. Its settings are environment variables, set
by the starter of the process. Options: "in_flight", "protocol" (tcp), "device" (RDMA's)."""

from functools import partial

from mooncake.engine import TransferEngine

from importlib.metadata import version as installed_version
from memory import Peer

WHEEL = "mooncake-transfer-engine-non-cuda"


class Engine:
    version = installed_version(WHEEL)

    def __init__(self, options):
        self.in_flight = options.get("in_flight", 1)
        self.engine = TransferEngine()
        self.protocol, device = options.get("protocol", "tcp"), options.get("device", "")
        succeed(self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", self.protocol, device), "initialize")
        self.submit = {
            "WRITE": self.engine.batch_transfer_async_write,
            "READ": self.engine.batch_transfer_async_read,
        }
        self.synchronous = {"WRITE": self.engine.transfer_sync_write, "READ": self.engine.transfer_sync_read}
        self.batches = {
            "WRITE": self.engine.batch_transfer_sync_write,
            "READ": self.engine.batch_transfer_sync_read,
        }

    def allocate(self, bytes):
        return None

    def register(self, memory):
        succeed(self.engine.register_memory(memory.address, memory.bytes), "register_memory")

    def introduce(self, memory):
        return {"session": "127.0.0.1:%d" % self.engine.get_rpc_port(), "address": memory.address}

    def connect(self, introduction):
        """Does nothing: Mooncake connects at the first transfer."""
        return Peer(introduction["session"], introduction["address"])

    def path(self, peer):
        return self.protocol

    def prepare(self, operation, peer, requests):
        local, remote, lengths = (list(column) for column in zip(*requests))
        if self.in_flight == 1:
            return partial(self.batches[operation], peer.handle, local, remote, lengths), requests, peer
        return partial(self.submit[operation], peer.handle, local, remote, lengths), requests, peer

    def start(self, transfer):
        result = transfer[0]()
        if self.in_flight == 1:
            succeed(result, "a batch")
        elif result == 0:
            raise RuntimeError("submitting a batch failed")
        return result

    def finish(self, batch):
        if self.in_flight > 1:
            succeed(self.engine.get_batch_transfer_status([batch]), "a batch")

    def calls(self, operation, prepared):
        function = self.synchronous[operation]
        return [partial(function, peer.handle, *requests[0]) for _, requests, peer in prepared], 0

    def explain(self, result):
        succeed(result, "a transfer")

    def release(self, transfer):
        pass

    def close(self):
        pass


def succeed(result, what):
    if result != 0:
        raise RuntimeError("%s returned %r" % (what, result))
