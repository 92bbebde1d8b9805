"""ferry through its C ABI. Options: "library" (path of libferry.so), "settings" (as ferry_config_set takes
them), "allocated" (memory of ferry's own instead of the caller's)."""

import ctypes
from ctypes import byref, c_size_t, c_uint64, c_void_p
from functools import partial

import ferry_c
from memory import ForeignMemory, Peer, Unavailable

CONNECT_TIMEOUT_NS = 10 * 10**9
TRANSFER_TIMEOUT_NS = 20 * 10**9


class Transfer:
    def __init__(self, peer, requests, region):
        self.peer = peer.handle
        self.count = len(requests)
        array = (ferry_c.Request * self.count)(*[request + (region,) for request in requests])
        self.array = array  # kept alive for the pointer below
        self.requests = ctypes.addressof(array)


class Engine:
    #: Enough that both lanes always have a transfer under way and another waiting.
    in_flight = 4

    def __init__(self, options):
        self.lib = ferry_c.load(options["library"])
        self.version = self.lib.ferry_version().decode()
        self.allocated = options.get("allocated", False)
        self.error = ferry_c.new_error()
        self.region = c_uint64()
        config, self.engine = c_void_p(), c_void_p()
        self.call("ferry_config_new", byref(config))
        for key, value in options.get("settings", {}).items():
            self.call("ferry_config_set", config, key.encode(), str(value).encode())
        self.call("ferry_engine_open", config, byref(self.engine))
        self.lib.ferry_config_free(config)
        self.regions = {}

    def call(self, name, *arguments):
        """Calls a function whose last argument is the error; raises the reported error."""
        self.check(getattr(self.lib, name)(*arguments, byref(self.error)))

    def check(self, status):
        if status == ferry_c.OK:
            return
        name = self.lib.ferry_status_name(status).decode()
        text = "%s: %s" % (name, self.error.message.decode(errors="replace"))
        absent = status in (ferry_c.ERR_UNAVAILABLE, ferry_c.ERR_UNSUPPORTED)
        raise Unavailable(text) if absent else RuntimeError(text)

    def allocate(self, bytes):
        if not self.allocated:
            return None
        address = c_void_p()
        self.call("ferry_memory_alloc", self.engine, bytes, None, byref(address), byref(self.region))
        return ForeignMemory(address.value, bytes)

    def register(self, memory):
        if not self.allocated:
            address, region = memory.address, byref(self.region)
            self.call("ferry_region_register", self.engine, address, memory.bytes, None, region)

    def introduce(self, memory):
        text, length = ctypes.create_string_buffer(300), c_size_t()
        self.call("ferry_engine_address", self.engine, text, len(text), byref(length))
        return {"engine": text.value.decode(), "address": memory.address, "region": self.region.value}

    def connect(self, introduction):
        peer = c_uint64()
        address = introduction["engine"].encode()
        self.call("ferry_peer_connect", self.engine, address, CONNECT_TIMEOUT_NS, byref(peer))
        self.regions[peer.value] = introduction["region"]
        return Peer(peer.value, introduction["address"])

    def path(self, peer):
        infos, count = (ferry_c.PathInfo * 8)(), c_size_t()
        size = ctypes.sizeof(ferry_c.PathInfo)
        self.call("ferry_peer_paths", self.engine, peer.handle, infos, size, len(infos), byref(count))
        chosen = [info for info in infos[: count.value] if info.chosen]
        name = lambda info: ferry_c.TRANSPORTS.get(info.transport, str(info.transport))
        return ", ".join("%s (%s)" % (name(info), info.why.decode()) for info in chosen)

    def prepare(self, operation, peer, requests):
        transfer = Transfer(peer, requests, self.regions[peer.handle])
        transfer.operation = ferry_c.OP[operation]
        return transfer

    def start(self, transfer):
        handle, error = c_uint64(), byref(self.error)
        self.check(
            self.lib.ferry_transfer_submit(
                self.engine, transfer.peer, transfer.operation, transfer.requests, transfer.count, None,
                byref(handle), error,
            )
        )
        return handle.value

    def finish(self, handle):
        error = byref(self.error)
        status = self.lib.ferry_transfer_wait(self.engine, handle, TRANSFER_TIMEOUT_NS, None, error)
        if status > 0:
            raise RuntimeError("a transfer is not final after %g s" % (TRANSFER_TIMEOUT_NS / 1e9))
        self.check(status)
        self.lib.ferry_transfer_release(self.engine, handle, None)

    def calls(self, operation, prepared):
        """Returns one call per transfer, and the result of a successful call."""
        function = self.lib.ferry_write if operation == "WRITE" else self.lib.ferry_read
        engine, error = self.engine, byref(self.error)
        call = lambda t: partial(function, engine, t.peer, t.requests, t.count, None, None, error)
        return [call(transfer) for transfer in prepared], ferry_c.OK

    def explain(self, status):
        """Raises the error of the last call."""
        self.check(status)

    def release(self, transfer):
        pass

    def close(self):
        if self.lib.ferry_engine_close(self.engine, 5 * 10**9, None) == ferry_c.OK:
            self.lib.ferry_engine_free(self.engine)
