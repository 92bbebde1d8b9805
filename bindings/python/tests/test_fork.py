"""Processes that inherit an engine by fork, and processes of their own."""

from __future__ import annotations

import gc
import multiprocessing
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import LENGTH, Pair, positions

import ferry

FORK = multiprocessing.get_context("fork")
EXCHANGE = Path(__file__).resolve().parents[1] / "examples" / "exchange.py"


def in_child(work: Callable[[], object]) -> None:
    """Runs `work` in a forked child, which must end well and soon."""
    child = FORK.Process(target=work)
    child.start()
    child.join(30)
    if child.exitcode is None:
        child.kill()
        raise AssertionError("the child hangs")
    assert child.exitcode == 0


def each_is_refused(calls: list[Callable[[], Any]]) -> None:
    """Ends the child if a call of an inherited engine is not refused."""
    for place, use in enumerate(calls):
        try:
            use()
        except ferry.ClosedError:
            continue
        sys.exit(f"call {place} was not refused")


def still_works(pair: Pair) -> None:
    pair.local.view[:] = positions(LENGTH, 9)
    pair.remote.view[:] = bytes(LENGTH)
    pair.peer.write([pair.request()])
    assert bytes(pair.remote.view) == positions(LENGTH, 9)
    pair.peer.probe(10)


def test_every_call_in_a_child_is_refused(pair: Pair) -> None:
    queue = pair.source.queue(transfers=True)
    transfer = pair.peer.submit_write([pair.request(64)])
    transfer.wait(10)
    region = pair.source.register(bytearray(64))
    calls: list[Callable[[], Any]] = [
        lambda: pair.source.address,
        lambda: pair.source.descriptor,
        lambda: pair.source.alloc(64),
        lambda: pair.source.register(bytearray(64)),
        lambda: pair.source.connect("127.0.0.1:1"),
        lambda: pair.source.peers(),
        lambda: pair.source.queue(peers=True),
        lambda: pair.source.wait_any([transfer]),
        lambda: pair.source.stats(),
        lambda: pair.source.metrics(),
        lambda: pair.peer.info(),
        lambda: pair.peer.regions(),
        lambda: pair.peer.paths(),
        lambda: pair.peer.probe(),
        lambda: pair.peer.fence(),
        lambda: pair.peer.notify(b""),
        lambda: pair.peer.write([pair.request(64)]),
        lambda: pair.peer.read([pair.request(64), pair.request(64)]),
        lambda: pair.peer.submit_write([pair.request(64)]),
        lambda: transfer.wait(),
        lambda: transfer.poll(),
        lambda: transfer.results(),
        lambda: transfer.cancel(),
        lambda: queue.drain(),
        lambda: queue.fileno(),
    ]

    def child() -> None:
        each_is_refused(calls)
        # The end of what the child inherited does nothing, and is no error.
        for held in (transfer, queue, region, pair.local, pair.peer, pair.source):
            held.close()
            repr(held)

    in_child(child)
    still_works(pair)


def test_finalisers_in_a_child_disturb_nobody() -> None:
    """The child drops everything that it inherited; the parent's transfer in progress ends well."""
    source, target = ferry.Engine(), ferry.Engine()
    local, remote = source.alloc(LENGTH), target.alloc(LENGTH, name="inbox")
    peer = source.connect(target.address, 10)
    pair = Pair(source, target, peer, local, remote, peer.region("inbox"))
    queue = source.queue(transfers=True)
    transfer = peer.submit_write([pair.request()], queue=queue)
    del source, target, local, remote, peer

    # By hand, and not through multiprocessing, so that the child has no other references.
    process = os.fork()
    if process == 0:
        status = 1
        try:
            pair.source.close()
            del pair, queue, transfer
            gc.collect()
            alive = [thing for thing in gc.get_objects() if isinstance(thing, ferry.Engine)]
            status = 2 if alive else 0
        finally:
            os._exit(status)
    _, how = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(how) == 0
    transfer.wait(10)
    still_works(pair)
    queue.close()
    pair.source.close()
    pair.target.close()


def test_a_child_has_engines_of_its_own(pair: Pair) -> None:
    address = pair.target.address

    def child() -> None:
        with ferry.Engine() as engine, engine.alloc(LENGTH) as memory:
            peer = engine.connect(address, 10)
            inbox = peer.region("inbox")
            memory.view[:] = positions(LENGTH, 5)
            peer.write([(memory.address, inbox.address, LENGTH, inbox.handle)])

    in_child(child)
    assert bytes(pair.remote.view) == positions(LENGTH, 5)
    still_works(pair)


def test_a_pool_of_processes(pair: Pair) -> None:
    with FORK.Pool(2) as pool:
        assert pool.map(abs, range(-4, 4)) == [4, 3, 2, 1, 0, 1, 2, 3]
    still_works(pair)


PARENT = """
import multiprocessing, os, signal, sys
import ferry

def child(peer, requests, ready, go):
    ready.set()
    go.wait(20)
    try:
        peer.write(requests)
    except ferry.ClosedError:
        print("refused", flush=True)

engine = ferry.Engine()
memory = engine.alloc(4096)
peer = engine.connect(sys.argv[1], 10)
inbox = peer.region("inbox")
requests = [(memory.address, inbox.address, 4096, inbox.handle)]
peer.write(requests)
fork = multiprocessing.get_context("fork")
ready, go = fork.Event(), fork.Event()
heir = fork.Process(target=child, args=(peer, requests, ready, go))
heir.start()
ready.wait(20)
print("forked", flush=True)
sys.stdin.readline()
go.set()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_parent_that_is_killed_is_lost_although_its_child_lives(pair: Pair) -> None:
    with pair.target.queue(peers=True, peer_states=True) as queue:
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, pair.target.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert parent.stdout is not None and parent.stdin is not None
        assert parent.stdout.readline() == "forked\n"
        engines = pair.target.peers()
        parent.stdin.write("die\n")
        parent.stdin.flush()
        assert parent.wait(20) == -signal.SIGKILL
        *_, down, lost = until(queue, ferry.EventKind.PEER_LOST)
        assert down.kind == ferry.EventKind.PEER_DOWN and down.status < 0 and down.data, down
        assert lost.peer in engines and lost.peer == down.peer
        # The pipe ends with the child, which was refused and exited by itself.
        assert parent.stdout.read() == "refused\n"
        parent.stdin.close()
        parent.stdout.close()
    still_works(pair)


LEFT_OPEN = """
import asyncio, math, threading
import ferry

target = ferry.Engine()
inbox = target.alloc(4096, name="inbox")
engine = ferry.Engine()
buffer = bytearray(4096)
region = engine.register(buffer)
peer = engine.connect(target.address, 10)
there = peer.region("inbox")
request = [(region.address, there.address, 4096, there.handle)]
queue = engine.queue(transfers=True)
# More than the peer has room for.
transfers = [peer.submit_write(request, notify=b"x", deadline=math.inf, queue=queue) for _ in range(1020)]
transfers += [peer.submit_write(request, notify=b"x", deadline=math.inf) for _ in range(1000)]
threading.Thread(target=transfers[-1].wait, args=(60,), daemon=True).start()
asyncio.run(peer.read_async(request))
view = inbox.view[:8]
print("end", flush=True)
"""


def test_an_interpreter_ends_with_everything_left_open() -> None:
    ended = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, timeout=40)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")


def next_of(queue: ferry.Queue, kind: int) -> ferry.Event:
    return until(queue, kind)[-1]


def until(queue: ferry.Queue, kind: int) -> list[ferry.Event]:
    """Returns the events up to the next of a kind; polls as a program without an event loop does."""
    poller = select.poll()
    poller.register(queue, select.POLLIN)
    events = []
    while True:
        for event in queue.drain():
            events.append(event)
            if event.kind == kind:
                return events
        assert poller.poll(20_000), "nothing came in 20 seconds"


def start(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXCHANGE), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_the_example_in_two_processes() -> None:
    server = start("serve")
    assert server.stdout is not None
    word, address = server.stdout.readline().split()
    assert word == "ADDRESS"
    client = start("connect", address)
    assert client.communicate(timeout=60) == ("OK\n", "")
    assert client.returncode == 0
    assert server.communicate(timeout=60) == ("OK\n", "")
    assert server.returncode == 0


def test_the_example_tells_wrong_bytes_from_right(pair: Pair) -> None:
    server = start("serve")
    assert server.stdout is not None
    _, address = server.stdout.readline().split()
    peer = pair.source.connect(address, 10)
    there = peer.region("exchange")
    second = bytearray((place * 11 + 5) & 255 for place in range(there.length))
    second[777_777] ^= 1
    region = pair.source.register(second)
    peer.write([(region.address, there.address, there.length, there.handle)], notify=b"done")
    _, reason = server.communicate(timeout=60)
    assert server.returncode == 1 and "byte 777777" in reason
    assert start("connect").wait(20) == 1

    pair.target.alloc(1 << 20, name="exchange")
    client = start("connect", pair.target.address)
    _, reason = client.communicate(timeout=60)
    assert client.returncode == 1 and "byte 0 is 0, not 3" in reason
