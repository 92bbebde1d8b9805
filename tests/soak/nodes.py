"""The processes of the soak (soak.py) and the proxies between them. A node runs one command at a time."""

import contextlib
import os
import queue
import random
import re
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

CLK_TCK = os.sysconf("SC_CLK_TCK")
PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024


class Ended(Exception):
    """The node's process has ended."""


class Node:
    """A process that speaks the commands of node.c."""

    def __init__(self, name: str, command: str, slot: int, environment: dict[str, str], errors: Path) -> None:
        self.name, self.slot, self.errors = name, slot, errors
        self.stopped = self.killed = False
        # One thread at a time asks; whoever stops, continues or ends the process takes the other lock.
        self._asking, self._signals = threading.Lock(), threading.Lock()
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with errors.open("ab") as stderr:
            self.process = subprocess.Popen(
                shlex.split(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=os.environ | environment,
            )
        threading.Thread(target=self._read, daemon=True).start()
        word, self.address = self._next(30).split()
        assert word == "ADDRESS", word

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _next(self, seconds: float) -> str:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(f"{self.name} (process {self.process.pid}) gave no answer in {seconds} s") from None
        if line is None:
            self._lines.put(None)
            raise Ended(self.name)
        return line

    def ask(self, command: str, seconds: float = 60) -> str:
        with self._asking:
            try:
                self.process.stdin.write(command + "\n")
                self.process.stdin.flush()
            except BrokenPipeError:
                raise Ended(self.name) from None
            return self._next(seconds)

    def signal(self, number: int) -> None:
        with self._signals:
            if self.process.poll() is None:
                self.process.send_signal(number)

    def stop_for(self, seconds: float) -> None:
        self.signal(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            self.signal(signal.SIGCONT)

    def kill(self) -> None:
        self.killed = True
        self.signal(signal.SIGKILL)
        self.process.wait()

    def finish(self, seconds: float = 40) -> int:
        """Ends the input, and returns the exit status."""
        with self._asking, contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not end in {seconds} s") from None

    def figures(self) -> tuple[int, Counter[str], Counter[str]]:
        """Memory in KiB; how many descriptors of each kind: sockets, eventfds, the names of memory files; and how many
        threads of each name."""
        folder = Path(f"/proc/{self.process.pid}")
        resident = int((folder / "statm").read_text().split()[1]) * PAGE_KIB
        kinds: Counter[str] = Counter()
        for entry in (folder / "fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                kinds[re.sub(r"\d+", "", os.readlink(entry))] += 1
        threads: Counter[str] = Counter()
        for entry in (folder / "task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                threads[re.sub(r"\d+", "", (entry / "comm").read_text().strip())] += 1
        return resident, kinds, threads


class Proxy:
    """Forwards connections to an address; delays and cuts some."""

    def __init__(self, target: str, seed: int) -> None:
        self._random, self.cuts = random.Random(seed), 0
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            try:
                far = socket.create_connection(self._target, 5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open |= {near, far}
                # One connection in three is cut after some bytes, in mid-frame as often as not.
                left = self._random.choice([1 << 62, 1 << 62, self._random.randrange(1 << 22)])
                delay = self._random.choice([0, 0, 0.002, 0.02])
            ends = [2]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(source, sink, left, delay, ends), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, left: int, delay: float, ends: list[int]) -> None:
        with contextlib.suppress(OSError):
            while left > 0 and (piece := source.recv(1 << 16)):
                if delay:
                    time.sleep(delay)
                sink.sendall(piece[:left])
                left -= len(piece)
        with self._lock:
            self.cuts += left <= 0
            ends[0] -= 1
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            if ends[0] == 0:
                self._open -= {source, sink}
                source.close()
                sink.close()

    def cut(self) -> None:
        """Cuts all connections."""
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
