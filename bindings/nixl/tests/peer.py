"""An agent in a process of its own, driven over a pipe by the tests in this one."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config

BACKEND = os.environ.get("NIXL_TEST_BACKEND", "FERRY")
PATIENCE_S = 30.0
PR_SET_PDEATHSIG = 1


def agent(name: str, parameters: dict[str, str] | None = None) -> nixl_agent:
    """Returns an agent with the backend under test alone."""
    made = nixl_agent(name, nixl_agent_config(backends=[]))
    made.create_backend(BACKEND, parameters or {})
    return made


def ranges(memory: np.ndarray[Any, Any], pieces: int = 1) -> list[tuple[int, int, int]]:
    """Cuts the memory into equal pieces, as NIXL's tuples of address, length and device."""
    step = memory.nbytes // pieces
    return [(memory.ctypes.data + i * step, step, 0) for i in range(pieces)]


def registered(of: nixl_agent, memory: np.ndarray[Any, Any]) -> Any:
    return of.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")


def finish(of: nixl_agent, handle: Any, state: str) -> str:
    """Asks until the transfer is no longer under way."""
    last = time.monotonic() + PATIENCE_S
    while state == "PROC":
        assert time.monotonic() < last, "the transfer does not end"
        state = of.check_xfer_state(handle)
    return state


def told(of: nixl_agent, count: int) -> dict[str, list[bytes]]:
    """Asks until this many notifications have come in total."""
    last = time.monotonic() + PATIENCE_S
    found: dict[str, list[bytes]] = {}
    while sum(map(len, found.values())) < count:
        assert time.monotonic() < last, f"only {found} has come"
        for name, messages in of.get_new_notifs().items():
            found.setdefault(name, []).extend(messages)
    return found


def serve(pipe: Connection, name: str, words: int, parameters: dict[str, str], file: str) -> None:
    """Does what the test asks for until the pipe ends."""
    # A peer that is stopped would outlive tests that are killed: it never sees that the pipe has ended.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    own = agent(name, parameters)
    memory = np.memmap(file, dtype="u8", mode="r+", shape=(words,))
    registration = registered(own, memory)
    pipe.send((own.get_agent_metadata(), ranges(memory)[0][0]))
    while True:
        try:
            word, *arguments = pipe.recv()
        except EOFError:
            return
        answer: Any = None
        if word == "read":
            answer = memory.copy()
        elif word == "fill":
            memory[:] = arguments[0]
        elif word == "know":
            answer = own.add_remote_agent(arguments[0])
        elif word == "tell":
            own.send_notif(*arguments)
        elif word == "told":
            answer = told(own, arguments[0])
        elif word == "deregister":
            own.deregister_memory(registration)
        pipe.send(answer)


class Peer:
    """The other side of `serve`. `memory` is the peer's, shared with this process."""

    def __init__(self, name: str, words: int = 1 << 17, parameters: dict[str, str] | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
            file.truncate(8 * words)
            self.memory = np.memmap(file.name, dtype="u8", mode="r+", shape=(words,))
            self.start(context, name, words, parameters or {}, file.name)

    def start(self, context: Any, name: str, words: int, parameters: dict[str, str], file: str) -> None:
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(
            target=serve, args=(theirs, name, words, parameters, file), daemon=True
        )
        self.process.start()
        theirs.close()
        self.name = name
        self.words = words
        assert self.pipe.poll(PATIENCE_S), "the other process does not start"
        self.metadata, self.address = self.pipe.recv()

    def ask(self, *command: Any) -> Any:
        self.pipe.send(command)
        assert self.pipe.poll(2 * PATIENCE_S), f"no answer to {command[0]}"
        return self.pipe.recv()

    def pieces(self, count: int = 1) -> list[tuple[int, int, int]]:
        step = 8 * self.words // count
        return [(self.address + i * step, step, 0) for i in range(count)]

    def signal(self, number: signal.Signals) -> None:
        """Returns when the signal has had its effect: until then the peer may be written to."""
        pid = self.process.pid
        assert pid is not None
        os.kill(pid, number)
        if number == signal.SIGSTOP:
            os.waitpid(pid, os.WUNTRACED)
        elif number == signal.SIGKILL:
            self.process.join(PATIENCE_S)
            assert self.process.exitcode == -signal.SIGKILL

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
