"""NIXL over UCX, as its wheels install it, or over ferry's plugin. UCX's settings are environment variables, set
by the starter of the process. Options: "progress_thread", "in_flight"; for ferry "plugins", the folder of the
plugin, and "parameters", the backend's."""

import base64
import os
import time
from functools import partial

from importlib.metadata import version as installed_version
from memory import Peer
from nixl._api import nixl_agent, nixl_agent_config

TRANSFER_TIMEOUT_SECONDS = 20


class Engine:
    version = installed_version("nixl")

    def __init__(self, options):
        self.in_flight = options.get("in_flight", 2)
        self.backend = "FERRY" if "plugins" in options else "UCX"
        name = "agent-%d" % os.getpid()
        backends = []
        if self.backend == "UCX":
            backends = ["UCX"]
        else:
            os.environ["NIXL_PLUGIN_DIR"] = options["plugins"]
        config = nixl_agent_config(
            enable_prog_thread=options.get("progress_thread", True), backends=backends
        )
        self.agent = nixl_agent(name, config)
        if self.backend == "FERRY":
            self.agent.create_backend("FERRY", options["parameters"])
            self.transports = options["parameters"]["transports"]
        self.registered = []

    def allocate(self, bytes):
        return None

    def register(self, memory):
        self.registered.append(self.agent.register_memory([(memory.address, memory.bytes, 0, "")], "DRAM"))

    def introduce(self, memory):
        metadata = base64.b64encode(self.agent.get_agent_metadata()).decode()
        return {"metadata": metadata, "address": memory.address}

    def connect(self, introduction):
        name = self.agent.add_remote_agent(base64.b64decode(introduction["metadata"]))
        name = name.decode() if isinstance(name, bytes) else name
        self.agent.make_connection(name)
        return Peer(name, introduction["address"])

    def path(self, peer):
        if self.backend == "FERRY":
            return "ferry's plugin, transports=" + self.transports
        return "UCX, UCX_TLS=" + os.environ.get("UCX_TLS", "all")

    def prepare(self, operation, peer, requests):
        """Makes all of a transfer request ahead: a run only posts it again."""
        local = self.agent.get_xfer_descs([(here, length, 0) for here, _, length in requests], "DRAM")
        remote = self.agent.get_xfer_descs([(there, length, 0) for _, there, length in requests], "DRAM")
        return self.agent.initialize_xfer(operation, local, remote, peer.handle)

    def start(self, transfer):
        if self.agent.transfer(transfer) == "ERR":
            raise RuntimeError("posting a transfer failed")
        return transfer

    def finish(self, transfer):
        check = self.agent.check_xfer_state
        state = check(transfer)
        if state == "PROC":
            end = time.monotonic() + TRANSFER_TIMEOUT_SECONDS
            while state == "PROC" and time.monotonic() < end:
                state = check(transfer)
        if state != "DONE":
            raise RuntimeError("a transfer ended as %s" % state)

    def calls(self, operation, prepared):
        return [partial(synchronous, self.agent, transfer) for transfer in prepared], "DONE"

    def explain(self, state):
        raise RuntimeError("a transfer ended as %s" % state)

    def release(self, transfer):
        self.agent.release_xfer_handle(transfer)

    def close(self):
        pass


def synchronous(agent, transfer):
    """Polls for a completion: no event reports it."""
    state = agent.transfer(transfer)
    while state == "PROC":
        state = agent.check_xfer_state(transfer)
    return state
