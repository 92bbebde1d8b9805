"""The bare system call, process_vm_writev and process_vm_readv, from Python as the engines are called.
Options: "threads" (each takes a part of every transfer's blocks)."""

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from memory import Peer

IOVECS_MAX = 1024
libc = ctypes.CDLL(None, use_errno=True)


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


signature = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
for function in (libc.process_vm_writev, libc.process_vm_readv):
    function.argtypes, function.restype = signature, ctypes.c_ssize_t
FUNCTIONS = {"WRITE": libc.process_vm_writev, "READ": libc.process_vm_readv}


class Call:
    """Copies up to 1,024 blocks in one system call."""

    def __init__(self, operation, pid, requests):
        count = len(requests)
        self.local = (Iovec * count)(*[(local, length) for local, _, length in requests])
        self.remote = (Iovec * count)(*[(remote, length) for _, remote, length in requests])
        self.bytes = sum(length for _, _, length in requests)
        local, remote = ctypes.addressof(self.local), ctypes.addressof(self.remote)
        self.run = partial(FUNCTIONS[operation], pid, local, count, remote, count, 0)


class Engine:
    in_flight = 1
    version = "Linux " + os.uname().release

    def __init__(self, options):
        self.threads = options.get("threads", 1)
        self.pool = ThreadPoolExecutor(self.threads - 1) if self.threads > 1 else None

    def allocate(self, bytes):
        return None

    def register(self, memory):
        pass

    def introduce(self, memory):
        return {"process": os.getpid(), "address": memory.address}

    def connect(self, introduction):
        return Peer(introduction["process"], introduction["address"])

    def path(self, peer):
        return "process_vm_writev and process_vm_readv"

    def prepare(self, operation, peer, requests):
        """Returns one list of calls per thread."""
        each = -(-len(requests) // self.threads)
        shares = [requests[first : first + each] for first in range(0, len(requests), each)]
        cut = lambda share: [share[at : at + IOVECS_MAX] for at in range(0, len(share), IOVECS_MAX)]
        return [[Call(operation, peer.handle, part) for part in cut(share)] for share in shares]

    def start(self, shares):
        others = [self.pool.submit(run_all, share) for share in shares[1:]]
        run_all(shares[0])
        for other in others:
            other.result()

    def finish(self, started):
        pass

    def calls(self, operation, prepared):
        first = [shares[0][0] for shares in prepared]
        return [call.run for call in first], first[0].bytes

    def explain(self, moved):
        raise RuntimeError("errno %d" % ctypes.get_errno() if moved < 0 else "moved %d bytes" % moved)

    def release(self, transfer):
        pass

    def close(self):
        pass


def run_all(calls):
    for call in calls:
        moved = call.run()
        if moved != call.bytes:
            raise RuntimeError("moved %d of %d bytes, errno %d" % (moved, call.bytes, ctypes.get_errno()))
