"""Offers that take back tokens or the blocks of a window, and the bound on blocks that nobody takes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from kv_workers import LAYERS, Rank  # noqa: E402

import ferry  # noqa: E402
from ferry import kv  # noqa: E402

SOURCE_IDS, TARGET_IDS = [5, 0, 3], [1, 6, 4]
TOKENS = 40


@pytest.mark.parametrize("mode", [kv.PULL, kv.PUSH])
@pytest.mark.parametrize("is_early", [True, False])
def test_a_sequence_goes_on_in_other_blocks(mode: kv.Mode, is_early: bool) -> None:
    with Rank() as producer, Rank() as consumer:
        peers = [consumer.engine.connect(producer.engine.address, 10)]
        id = kv.new_id()
        cache = producer.cache

        def take() -> None:
            consumer.cache.take(id, peers, TARGET_IDS, TOKENS, mode=mode)

        # The tokens from 16 on are not the sequence's.
        cache.offer(id, SOURCE_IDS)
        for layer in range(LAYERS):
            producer.tensors.fill(layer, SOURCE_IDS, range(16))
            producer.tensors.layers[layer][SOURCE_IDS[1:]] = 1
        cache.ready(id, 32)
        if is_early:
            take()
            while (state := consumer.cache.state(id)).valid_tokens < 32:
                assert state.kind is kv.StateKind.TAKING
                time.sleep(0.001)
        else:
            cache.seal(id, 32)
        cache.retract(id, 16, 20)
        assert not cache.state(id).sealed
        for layer in range(LAYERS):
            producer.tensors.layers[layer][SOURCE_IDS[1:]] = 2  # the caller's again
            producer.tensors.fill(layer, [5, 9, 10], range(16, TOKENS))
        cache.extend(id, [9, 10])
        cache.ready(id, TOKENS)
        cache.seal(id, TOKENS)
        if not is_early:
            take()
        assert consumer.end(id).kind is kv.RECEIVED
        consumer.tensors.check(TARGET_IDS, range(TOKENS))
        assert producer.end(id).kind is kv.SENT


def test_a_take_that_has_told_of_the_tokens_fails() -> None:
    with Rank() as producer, Rank() as consumer:
        id = kv.new_id()
        consumer.cache.take(
            id, [consumer.engine.connect(producer.engine.address, 10)], TARGET_IDS, TOKENS, layers=True
        )
        producer.cache.offer(id, SOURCE_IDS, takers=2)
        producer.cache.ready(id, TOKENS, 0)
        event = consumer.cache.wait(20)
        assert event is not None and event.layers == 1
        producer.cache.retract(id, 16, 20)
        event = consumer.end(id)
        assert (event.kind, event.status) == (kv.FAILED, ferry.Status.STALE)


CONSUMER = f"""
import sys
from kv_workers import Rank
from ferry import kv
with Rank() as consumer:
    peers = [consumer.engine.connect(sys.argv[1], 10)]
    consumer.cache.take(bytes.fromhex(sys.argv[2]), peers, {TARGET_IDS}, {TOKENS})
    print(consumer.end(bytes.fromhex(sys.argv[2])).kind.name, flush=True)
"""


def test_a_taker_that_does_not_answer() -> None:
    """A stopped taker may still read: the tokens are free when it goes on."""
    with Rank() as producer:
        id = kv.new_id()
        producer.cache.offer(id, SOURCE_IDS)
        producer.cache.ready(id, TOKENS, 0)
        assert producer.cache.state(id).takers == 0
        command = [sys.executable, "-c", CONSUMER, producer.engine.address, id.hex()]
        taker = subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True)
        try:
            while producer.cache.state(id).takers == 0:
                time.sleep(0.01)
            taker.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, taker.pid, os.WSTOPPED)
            for timeout in (0, 0.25):
                began = time.monotonic()
                with pytest.raises(ferry.BusyError):
                    producer.cache.retract(id, 16, timeout)
                assert time.monotonic() - began >= timeout
            threading.Timer(0.3, taker.send_signal, [signal.SIGCONT]).start()
            producer.cache.retract(id, 16, 20)
            producer.cache.extend(id, [8, 9])
            producer.cache.ready(id, TOKENS)
            producer.cache.seal(id, TOKENS)
            assert taker.stdout is not None and taker.stdout.readline() == "RECEIVED\n"
            assert producer.end(id).kind is kv.SENT
        finally:
            taker.kill()
            taker.communicate()


def test_a_window_frees_blocks() -> None:
    shape: dict[str, Any] = {"kind": kv.WINDOW, "window_tokens": 16}
    with Rank(**shape) as producer, Rank(**shape) as consumer, Rank(**shape) as early:
        id = kv.new_id()
        for layer in range(LAYERS):
            producer.tensors.fill(layer, SOURCE_IDS, range(48))
        producer.cache.offer(id, SOURCE_IDS, takers=2)
        producer.cache.ready(id, 48)
        producer.cache.retract_window(id, 0, 32, 10)
        for layer in range(LAYERS):
            producer.tensors.layers[layer][SOURCE_IDS[:2]] = 7  # the caller's again
        producer.cache.seal(id, 48)
        for rank, end in ((consumer, 48), (early, 32)):
            blocks = kv.BlockList([4], first_token=end - 16)
            peers = [rank.engine.connect(producer.engine.address, 10)]
            rank.cache.take(id, peers, blocks, end, taker=end)
        assert consumer.end(id).kind is kv.RECEIVED
        consumer.tensors.check([4], range(32, 48), first_token=32)
        # The blocks that this take needs are gone.
        event = early.end(id)
        assert event.kind is kv.FAILED and event.status != ferry.Status.OK, event


def test_a_bound_on_blocks_that_nobody_takes() -> None:
    with Rank(leased_blocks_max=4) as producer:
        ids = [kv.new_id() for _ in range(2)]
        for at, id in enumerate(ids):
            producer.offer(id, [3 * at, 3 * at + 1, 3 * at + 2], 48)
        event = producer.end(ids[0])
        assert (event.kind, event.status) == (kv.EXPIRED, ferry.Status.LIMIT)
        assert producer.cache.state(ids[1]).sealed


def test_errors() -> None:
    with Rank() as producer:
        cache, id = producer.cache, kv.new_id()
        for use, names in (
            (lambda: cache.retract(id, 0, 1), "id"),
            (lambda: cache.retract(b"", 0, 1), "id must be 16 bytes"),
            (lambda: cache.retract(id, -1, 1), "from_token must be 0 to"),
            (lambda: cache.retract(id, 0, -1), "timeout"),
            (lambda: cache.retract_window(id, -1, 0, 1), "group must be 0 to"),
            (lambda: cache.retract_window(id, 0, 2**64, 1), "before_token must be 0 to"),
            (lambda: cache.retract_window(id, 0, 0, 1), "id|group"),
            (lambda: kv.Cache(producer.engine, producer.tensors.layout, [], leased_blocks_max=-1), "leased_"),
        ):
            with pytest.raises(ferry.InvalidError, match=names):
                use()
        cache.offer(id, SOURCE_IDS)
        with pytest.raises(ferry.InvalidError, match="window"):
            cache.retract_window(id, 0, 16, 1)
        cache.cancel_offer(id)
        with pytest.raises(ferry.StaleError):
            cache.retract(id, 0, 1)
        cache.close(10)
        with pytest.raises(ferry.ClosedError):
            cache.retract(id, 0, 1)
        with pytest.raises(ferry.ClosedError):
            cache.retract_window(id, 0, 0, 1)
