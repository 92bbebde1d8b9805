"""One end of one engine, in a process of its own: `ferry-compare peers` starts a pair of these for each
engine and tells them what to do.

Over standard input and output, one JSON object a line: {"do": ..., ...} is answered by {"ok": ...} or
{"error": "...", "unavailable": bool}. The agent only moves bytes and reads the clock. The program that
started the agent chooses the bytes, checks that they arrived, and evaluates the figures; it reads and writes
this process's memory directly.

    agent.py ENGINE OPTIONS      an engine_*.py beside this file, and its options as JSON
"""

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
from collections import deque

from memory import OwnMemory, Unavailable

PR_SET_PDEATHSIG = 1


class Agent:
    def __init__(self, engine):
        self.engine = engine
        self.memory = None
        self.peers = []
        self.prepared = []

    def do_memory(self, bytes):
        """Allocates, touches and registers memory. Returns its address and the data that a peer needs."""
        self.memory = self.engine.allocate(bytes) or OwnMemory(bytes)
        self.memory.populate()
        self.engine.register(self.memory)
        return {"address": self.memory.address, "introduction": self.engine.introduce(self.memory)}

    def do_connect(self, introductions):
        """Returns the seconds until transfers to all peers can start, as far as the engine knows."""
        start = time.perf_counter()
        self.peers = [self.engine.connect(introduction) for introduction in introductions]
        return {"seconds": time.perf_counter() - start, "path": self.engine.path(self.peers[0])}

    def do_first(self, introduction, bytes):
        """Returns the seconds from "not connected" to the first WRITE's end: some engines connect then."""
        start = time.perf_counter()
        self.peers = [self.engine.connect(introduction)]
        blocks = [(self.memory.address, introduction["address"], bytes)]
        self.prepared = [self.engine.prepare("WRITE", self.peers[0], blocks)]
        calls, good = self.engine.calls("WRITE", self.prepared)
        self.expect(calls[0](), good)
        return {"seconds": time.perf_counter() - start}

    def do_register(self, bytes):
        """Returns the seconds to register existing memory, or to allocate it if the engine does so."""
        start = time.perf_counter()
        memory = self.engine.allocate(bytes)
        if memory is None:
            memory = OwnMemory(bytes)
            memory.populate()
            start = time.perf_counter()
            self.engine.register(memory)
        return {"seconds": time.perf_counter() - start}

    def do_prepare(self, operation, block_bytes, blocks, local, remote, area_bytes):
        """Sets up the transfers of a walk, untimed: transfer k goes to peer k mod
        their number, from and to that peer's own area of this memory."""
        self.release()
        if not self.peers:
            raise RuntimeError("not connected")
        for first in range(0, len(local), blocks):
            for index, peer in enumerate(self.peers):
                base = self.memory.address + index * area_bytes
                pairs = zip(local[first : first + blocks], remote[first : first + blocks])
                there = peer.address
                requests = [(base + l * block_bytes, there + r * block_bytes, block_bytes) for l, r in pairs]
                self.prepared.append(self.engine.prepare(operation, peer, requests))
        self.operation = operation
        return {}

    def do_throughput(self, seconds):
        """Keeps the engine's window of transfers under way, and finishes all that were started."""
        start_one, finish_one = self.engine.start, self.engine.finish
        prepared, count = self.prepared, len(self.prepared)
        in_flight = min(self.engine.in_flight * len(self.peers), count)
        window, clock, transfers = deque(), time.perf_counter, 0
        gc.disable()
        start = clock()
        end = start + seconds
        while clock() < end:
            if len(window) == in_flight:
                finish_one(window.popleft())
            window.append(start_one(prepared[transfers % count]))
            transfers += 1
        while window:
            finish_one(window.popleft())
        spent = clock() - start
        gc.enable()
        return {"transfers": transfers, "seconds": spent}

    def do_latency(self, samples):
        """Returns the nanoseconds of each of so many synchronous transfers."""
        calls, good = self.engine.calls(self.operation, self.prepared)
        count, clock, taken = len(calls), time.perf_counter_ns, []
        gc.disable()
        for index in range(samples):
            call = calls[index % count]
            start = clock()
            result = call()
            taken.append(clock() - start)
            if result != good:
                self.expect(result, good)
        gc.enable()
        return {"nanoseconds": taken}

    def expect(self, result, good):
        if result != good:
            self.engine.explain(result)
            raise RuntimeError("a transfer returned %r where %r is success" % (result, good))

    def release(self):
        for transfer in self.prepared:
            self.engine.release(transfer)
        self.prepared = []


def serve(agent, lines, out):
    for line in lines:
        message = json.loads(line)
        action = getattr(agent, "do_" + message.pop("do"))
        try:
            answer = {"ok": action(**message)}
        except Exception as error:  # whatever the engine raises is reported, and the agent continues
            answer = failure(error)
        out.write(json.dumps(answer) + "\n")
        out.flush()


def failure(error):
    kind = "" if isinstance(error, (RuntimeError, Unavailable)) else type(error).__name__ + ": "
    unavailable = isinstance(error, (Unavailable, ImportError))
    return {"error": (kind + str(error)).strip() or type(error).__name__, "unavailable": unavailable}


def main():
    # Engines may print to standard output, so the answers have a descriptor of their own.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # If an agent is stopped when its starter dies, the agent never sees its input end.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        module = importlib.import_module("engine_" + sys.argv[1])
        agent = Agent(module.Engine(json.loads(sys.argv[2])))
        answer = {"ok": {"version": agent.engine.version, "process": os.getpid()}}
    except Exception as error:
        agent, answer = None, failure(error)
    out.write(json.dumps(answer) + "\n")
    out.flush()
    if agent is not None:
        serve(agent, sys.stdin, out)
        agent.release()
        agent.engine.close()
    # Some engines' destructors wait for threads that wait for the peer.
    os._exit(0)


if __name__ == "__main__":
    main()
