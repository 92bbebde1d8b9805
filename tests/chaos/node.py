"""A node of chaos, in Python; host.h documents what it is told and what it says. The argument is the library of host.c."""

import ctypes
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable

import ferry

ARENA, ARENA_BYTES = 0x600000000000, 8 << 20
# The words of a line: the names that Rust's types print.
STATES = {3: "Done", 4: "Failed", 5: "Cancelled", 6: "TimedOut"}
FENCES = {0: "?", 1: "Confirmed", 2: "Dead", 3: "Lease"}
NOTIFICATIONS = {0: "None", 1: "Delivered", 2: "NotSent", 3: "Unknown"}


class Usage(ctypes.Structure):
    """What a process uses."""

    _fields_ = [("descriptors", ctypes.c_int32), ("threads", ctypes.c_int32)]


host = ctypes.CDLL(sys.argv[1])
host.host_map.restype = ctypes.c_void_p
host.host_note.argtypes = ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_uint64)
host.host_note.restype = ctypes.c_int64
host.host_limit.argtypes = ctypes.c_char_p, ctypes.c_int64
host.host_usage_before.restype = Usage
host.host_usage_after.argtypes = (Usage,)
host.host_usage_after.restype = Usage

speaking = threading.Lock()


def tell(*words: object) -> None:
    line = " ".join(map(str, words)).replace("\n", " ")
    with speaking:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def outcome(call: Callable[[], object]) -> str:
    """Makes a call. Keeps no exception: the traceback would keep the engine."""
    try:
        call()
    except ferry.Error as error:
        return error.status_name
    return "OK"


class Node:
    """An engine over the arena."""

    def __init__(self, engine: ferry.Engine) -> None:
        self.engine = engine
        self.region = engine.register((ctypes.c_char * ARENA_BYTES).from_address(ARENA))
        self.queue = engine.queue(transfers=True, notifications=True, peers=True, capacity=16384)
        # Held while a transfer is submitted, so that its end finds it here.
        self.lock = threading.Lock()
        self.transfers: dict[int, ferry.Transfer] = {}
        self.closing = threading.Event()
        self.threads: list[threading.Thread] = []
        self.start(self.take_events)
        tell("opened", self.region.handle, engine.address)

    def start(self, function, *arguments) -> None:
        thread = threading.Thread(target=function, args=arguments)
        thread.start()
        self.threads = [it for it in self.threads if it.is_alive()] + [thread]

    def take_events(self) -> None:
        waiting = select.poll()
        waiting.register(self.queue.fileno(), select.POLLIN)
        while not self.closing.is_set():
            try:
                events = self.queue.drain()
            except ferry.ClosedError:
                return
            for event in events:
                self.take(event)
            waiting.poll(50)

    def take(self, event: ferry.Event) -> None:
        if event.kind == ferry.EventKind.TRANSFER:
            self.final(event.user_data)
        elif event.kind == ferry.EventKind.NOTIFICATION:
            number = ctypes.c_uint64()
            wrong = host.host_note(event.data, len(event.data), ctypes.byref(number))
            tell("note", number.value, "whole" if wrong < 0 else f"broken at {wrong:#x}")
        elif event.kind == ferry.EventKind.LATE_APPLY:
            tell("late", event.address - ARENA, event.length)
        elif event.kind == ferry.EventKind.PEER_LOST:
            tell("lost", event.peer.handle, event.status.name, event.data.decode())

    def final(self, number: int) -> None:
        with self.lock:
            transfer = self.transfers.pop(number, None)
        if transfer is None:
            return tell("again", number)
        result = transfer.poll()
        if result is None:
            raise RuntimeError("a transfer has ended and is not final")
        tell(
            "final",
            number,
            STATES[result.state],
            result.status.name,
            FENCES[result.fence],
            NOTIFICATIONS[result.notification],
            result.transport.name.lower(),
        )

    def obey(self, words: list[str]) -> None:
        match words:
            case ["op", *rest]:
                self.submit(*rest)
            case ["cancel", number]:
                with self.lock:
                    transfer = self.transfers.get(int(number))
                    if transfer is not None:
                        transfer.cancel()
            case ["limit", what, more]:
                host.host_limit(what.encode(), int(more))
            case ["unlimit", what]:
                host.host_limit(what.encode(), -1)
            case ["connect", node, epoch, address]:
                self.start(self.connect, node, epoch, address)
            case ["notify", number, peer, deadline]:
                self.start(self.notify, number, int(peer), int(deadline))
            case ["fence", peer]:
                self.start(self.fence, int(peer))
            case _:
                raise RuntimeError(f"no such command: {words}")

    def connect(self, node: str, epoch: str, address: str) -> None:
        try:
            peer = self.engine.connect(address, timeout=2)
        except ferry.Error as error:
            tell("unconnected", node, epoch, error)
        else:
            tell("connected", node, epoch, peer.handle)

    def notify(self, number: str, peer: int, deadline_ms: int) -> None:
        note, deadline = f"{number} ".encode(), deadline_ms / 1e3
        tell("noted", number, outcome(lambda: ferry.Peer(self.engine, peer).notify(note, deadline=deadline)))

    def fence(self, peer: int) -> None:
        tell("fenced", peer, outcome(lambda: ferry.Peer(self.engine, peer).fence(timeout=5)))

    def submit(self, number: str, op: str, peer: str, region: str, deadline: str, flags: str, *pieces: str) -> None:
        requests, note = [], f"{number} "
        for piece in pieces:
            local, remote, length = map(int, piece.split(":"))
            requests.append((ARENA + local, ARENA + remote, length, int(region)))
            note += f"{remote}:{length} "
        options: ferry.SubmitOptions = {
            "ordered": "o" in flags,
            "checksum": "c" in flags,
            "coalesce": "s" not in flags,
            "deadline": int(deadline) / 1e3,
            "user_data": int(number),
            "queue": self.queue,
        }
        if "n" in flags:
            options["notify"] = note.encode()
        target = ferry.Peer(self.engine, int(peer))
        with self.lock:
            try:
                start = target.submit_write if op == "w" else target.submit_read
                self.transfers[int(number)] = start(requests, **options)
            except ferry.Error as error:
                tell("refused", number, error.status_name, error)

    def close(self) -> None:
        for word, end in (
            ("unregistered", lambda: self.region.unregister(timeout=5)),
            ("closed", lambda: self.engine.close(timeout=10)),
        ):
            began = time.monotonic()
            status = outcome(end)
            took_ms = int(1e3 * (time.monotonic() - began))
            if word == "closed":
                self.closing.set()
                for thread in self.threads:
                    thread.join()
            tell(word, took_ms, status)


def give_up(arguments: threading.ExceptHookArgs) -> None:
    """A node without one of its threads is no node."""
    traceback.print_exception(arguments.exc_value)
    os._exit(1)


def main() -> None:
    threading.excepthook = give_up
    host.host_map()
    settings = dict(word.split("=", 1) for word in sys.stdin.readline().split())
    # Descriptors that the process opens once and keeps do not count as leaked.
    ferry.Engine(**settings | {"listen_address": "127.0.0.1:0"}).close()
    before = host.host_usage_before()
    try:
        node = Node(ferry.Engine(**settings))
    except ferry.Error as error:
        return tell("unopened", error)
    for line in sys.stdin:
        if line.strip() == "close":
            node.close()
            del node
            after = host.host_usage_after(before)
            return tell("usage", before.descriptors, after.descriptors, before.threads, after.threads)
        node.obey(line.split())
    # The parent is gone.
    os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except Exception:
        # Threads that wait would keep the process.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
