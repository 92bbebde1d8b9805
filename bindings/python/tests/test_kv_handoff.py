"""Handoffs between engines of one process and of several: every element of every layer comes to its place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from kv_workers import LAYERS, Rank  # noqa: E402

import ferry  # noqa: E402
from ferry import kv  # noqa: E402

PROGRAM = Path(__file__).with_name("kv_workers.py")
SOURCE_IDS, TARGET_IDS = [5, 0, 3], [1, 6, 4]
TOKENS = 40


def producers_of(consumer: Rank, producers: list[Rank]) -> list[ferry.Peer]:
    return [consumer.engine.connect(producer.engine.address, 10) for producer in producers]


@pytest.mark.parametrize("mode", [kv.PULL, kv.PUSH, kv.AUTO])
@pytest.mark.parametrize(("source_tp", "target_tp"), [(1, 1), (2, 1), (1, 2), (4, 2)])
def test_ranks_of_one_process(mode: kv.Mode, source_tp: int, target_tp: int) -> None:
    with ExitStack() as stack:
        producers = [stack.enter_context(Rank(tp=(rank, source_tp))) for rank in range(source_tp)]
        shape: dict[str, Any] = {"block_tokens": 32, "arrangement": kv.BLOCK_PAIR_TOKEN_HEAD}
        consumers = [stack.enter_context(Rank(tp=(rank, target_tp), **shape)) for rank in range(target_tp)]
        id = kv.new_id()
        for consumer in consumers:
            peers = producers_of(consumer, producers)
            consumer.cache.take(id, peers, np.array([1, 6], np.uint32), TOKENS, taker=7, mode=mode)
        for producer in producers:
            producer.offer(id, SOURCE_IDS, TOKENS)
        for consumer in consumers:
            event = consumer.end(id)
            assert (event.kind, event.status, event.message) == (kv.RECEIVED, ferry.Status.OK, "")
            assert event.valid_tokens == TOKENS and event.untrusted == []
            consumer.tensors.check([1, 6], range(TOKENS))
        for producer in producers:
            assert producer.end(id).kind is kv.SENT


def test_a_cached_prefix_is_left_alone() -> None:
    with Rank() as producer, Rank() as consumer:
        id = kv.new_id()
        peers = producers_of(consumer, [producer])
        consumer.cache.take(id, peers, TARGET_IDS, TOKENS, skip_tokens=20)
        producer.offer(id, SOURCE_IDS, TOKENS)
        assert consumer.end(id).valid_tokens == TOKENS
        consumer.tensors.check(TARGET_IDS, range(20, TOKENS))


def test_chunks_and_blocks_that_come_later() -> None:
    with Rank() as producer, Rank() as consumer:
        id = kv.new_id()
        consumer.cache.take(id, producers_of(consumer, [producer]), TARGET_IDS, TOKENS)
        producer.cache.offer(id, [])
        for block, first, end in zip(SOURCE_IDS, (0, 16, 32), (16, 32, TOKENS), strict=True):
            producer.cache.extend(id, [block])
            for layer in range(LAYERS):
                producer.tensors.fill(layer, SOURCE_IDS, range(first, end))
            producer.cache.ready(id, end, (0, 2))
            producer.cache.ready(id, end, 2)
        assert producer.cache.state(id).kind is kv.StateKind.OFFERED
        assert not producer.cache.state(id).sealed
        producer.cache.seal(id, TOKENS)
        assert consumer.end(id).kind is kv.RECEIVED
        consumer.tensors.check(TARGET_IDS, range(TOKENS))
        assert producer.end(id).kind is kv.SENT
        state = producer.cache.state(id)
        assert (state.kind, state.event) == (kv.StateKind.ENDED, kv.SENT)


def test_two_takers_and_only_these() -> None:
    with Rank() as producer, Rank() as first, Rank() as second, Rank() as third:
        id = kv.new_id()
        consumers = (first, second, third)
        for consumer in consumers:
            producers_of(consumer, [producer])
        peers = {peer.info().address: peer for peer in producer.engine.peers()}
        only = [peers[consumer.engine.address] for consumer in consumers[:2]]
        producer.offer(id, SOURCE_IDS, TOKENS, takers=2, only=only)
        for number, consumer in enumerate(consumers[::-1]):
            consumer.cache.take(id, producers_of(consumer, [producer]), TARGET_IDS, TOKENS, taker=number)
            event = consumer.end(id)
            if consumer is third:
                assert event.kind is kv.FAILED and event.message and event.terminal
                assert event.valid_tokens == 0
                third.tensors.check(TARGET_IDS, range(0))
            else:
                assert event.kind is kv.RECEIVED
                consumer.tensors.check(TARGET_IDS, range(TOKENS))
        assert producer.end(id).kind is kv.SENT


def test_several_groups() -> None:
    """A window beside full attention: each group has a list of its own."""
    ends = []
    with ExitStack() as stack:
        for _ in range(2):
            engine = stack.enter_context(ferry.Engine())
            memory = engine.alloc(2 * 65536)
            rows = np.frombuffer(memory.view, np.uint32).reshape(2, 16, 1024)
            shape: dict[str, Any] = {"heads": 4, "elements": 8, "element_bytes": 4, "blocks": 16}
            shape["arrangement"] = kv.BLOCK_PAIR_HEAD_TOKEN
            layout = kv.Layout(
                model="m",
                groups=[kv.Group(16), kv.Group(16, kv.WINDOW, window_tokens=32)],
                layers=[
                    kv.Layer(name="full", address=memory.address, **shape),
                    kv.Layer(name="window", address=memory.address + 65536, group=1, **shape),
                ],
            )
            ends.append((engine, stack.enter_context(kv.Cache(engine, layout, [memory])), rows))
        (source, offers, sent), (target, takes, received) = ends
        sent[:] = np.arange(sent.size).reshape(sent.shape)
        id = kv.new_id()
        window = kv.BlockList([7, 8], first_token=32)
        takes.take(id, [target.connect(source.address, 10)], [np.array([1, 2, 3, 4]), window], 64)
        lists: list[Any] = [[9, 10, 11, 12], kv.BlockList(np.array([3, 1], "u4"), first_token=32)]
        offers.offer(id, lists)
        offers.ready(id, 64)
        offers.seal(id, 64)
        event = takes.wait(20)
        assert event is not None and event.kind is kv.RECEIVED, event
        assert np.array_equal(received[0, [1, 2, 3, 4]], sent[0, [9, 10, 11, 12]])
        assert np.array_equal(received[1, [7, 8]], sent[1, [3, 1]])
        assert not received[1, [1, 2, 3, 4]].any()
        with pytest.raises(ferry.InvalidError, match="one list of blocks for each of the 2 groups"):
            offers.offer(kv.new_id(), [1, 2, 3])


@contextmanager
def processes(count: int, id: bytes) -> Iterator[list[subprocess.Popen[str]]]:
    """Producers of `count` ranks, each in a process of its own."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    made: list[subprocess.Popen[str]] = []
    try:
        for rank in range(count):
            command = [sys.executable, str(PROGRAM), str(rank), str(count), id.hex(), str(TOKENS)]
            made.append(subprocess.Popen(command, **pipes))  # type: ignore[call-overload]
        yield made
    finally:
        for process in made:
            process.kill()
            process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.parametrize("mode", [kv.PULL, kv.PUSH])
@pytest.mark.parametrize("count", [1, 2])
def test_processes_by_layers(count: int, mode: kv.Mode) -> None:
    id = kv.new_id()
    with processes(count, id) as producers, Rank(block_tokens=32) as consumer:
        peers = [consumer.engine.connect(line(producer), 10) for producer in producers]
        consumer.cache.take(id, peers, [1, 6], TOKENS, layers=True, mode=mode)
        for layer in range(LAYERS):
            assert consumer.cache.poll() is None
            for producer in producers:
                go_on(producer)
            event = consumer.cache.wait(20)
            assert event is not None and (event.kind, event.layers) == (kv.LAYERS, layer + 1)
            assert not event.terminal and event.id == id
            # The layers of LAYERS events may be read, and later layers are not there.
            consumer.tensors.check([1, 6], range(TOKENS), layers=layer + 1)
        assert consumer.end(id).kind is kv.RECEIVED
        assert [line(producer) for producer in producers] == ["SENT"] * count


def test_a_producer_that_is_killed() -> None:
    id = kv.new_id()
    with processes(1, id) as (producer,), Rank() as consumer:
        peers = [consumer.engine.connect(line(producer), 10)]
        consumer.cache.take(id, peers, TARGET_IDS, TOKENS, layers=True)
        go_on(producer)
        event = consumer.cache.wait(20)
        assert event is not None and event.layers == 1
        producer.kill()
        event = consumer.end(id)
        assert event.kind in (kv.PEER_LOST, kv.FAILED) and event.status != ferry.Status.OK
        assert event.valid_tokens == 0 and event.message
        assert set(event.untrusted) == {(0, block) for block in TARGET_IDS}


def test_a_close_that_has_to_wait() -> None:
    """A stopped producer may still write: the blocks are not the caller's until it goes on, or is fenced."""
    id = kv.new_id()
    with processes(1, id) as (producer,), Rank() as consumer:
        peers = [consumer.engine.connect(line(producer), 10)]
        consumer.cache.take(id, peers, TARGET_IDS, TOKENS, layers=True, mode=kv.PUSH)
        go_on(producer)
        event = consumer.cache.wait(20)
        assert event is not None and event.layers == 1
        producer.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, producer.pid, os.WSTOPPED)
        for timeout in (0, 0.25):
            began = time.monotonic()
            with pytest.raises(ferry.BusyError):
                consumer.cache.close(timeout)
            assert time.monotonic() - began >= timeout
        assert consumer.cache.state(id).kind is kv.StateKind.ENDING
        threading.Timer(0.3, producer.send_signal, [signal.SIGCONT]).start()
        consumer.cache.close(20)
        event = consumer.cache.poll()
        assert event is not None and (event.kind, event.status) == (kv.CANCELLED, ferry.Status.CLOSED)
