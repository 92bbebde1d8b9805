"""Whole handoffs between the workers of two connectors in one process."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace
from typing import Any

import ferry
import pytest
import torch
from conftest import BLOCK, ELEMENTS, HEADS, LAYERS, Instance, Rank, blocks_of, caches_of, output_of, request_of, until
from ferry import kv
from ferry_vllm.messages import Step
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm.v1.request import RequestStatus

PREFILL = {"do_remote_decode": True, "do_remote_prefill": False}
SOURCE, TARGET = [4, 9, 2], [7, 1, 5]
TOKENS = 2 * BLOCK + 5


def same(producer: Rank, consumer: Rank, tokens: int = TOKENS) -> bool:
    """Whether the tokens of the source's blocks are in the target's: keys, and values after them."""
    for at in range(tokens):
        block, token = divmod(at, BLOCK)
        mine, theirs = consumer.memory[:, TARGET[block]], producer.memory[:, SOURCE[block]]
        for part in (keys, values):
            if not torch.equal(part(mine, token), part(theirs, token)):
                return False
    return True


def keys(block: torch.Tensor, token: int) -> torch.Tensor:
    """A token's keys in a block of some layers: the tokens of an element lie side by side."""
    half = block.reshape(-1, HEADS, 2 * BLOCK * ELEMENTS)[..., : BLOCK * ELEMENTS]
    return half.unflatten(2, (-1, BLOCK))[..., token]


def values(block: torch.Tensor, token: int) -> torch.Tensor:
    """Its values, after the keys: the elements of a token lie side by side."""
    half = block.reshape(-1, HEADS, 2 * BLOCK * ELEMENTS)[..., BLOCK * ELEMENTS :]
    return half.unflatten(2, (BLOCK, -1))[:, :, token]


def by_layer(producer: Rank, consumer: Rank, name: str = "a") -> tuple[Any, Any]:
    """A prompt that both sides know by the proxy's id; the consumer has begun to take, and nothing is computed yet."""
    id = kv.new_id().hex()
    first = request_of(name, TOKENS, **PREFILL, ferry_id=id)
    second = request_of(name, TOKENS, do_remote_prefill=True, ferry_id=id, ferry_producers=producer.scheduler.producers)
    producer.scheduler.update_state_after_alloc(first, None, 0)
    consumer.take(second, TARGET)
    until(lambda: bool(consumer.worker.takes), consumer)
    return first, second


def test_a_computed_prompt_goes_over_and_each_side_is_told_once(pair: tuple[Rank, Rank]) -> None:
    producer, consumer = pair
    first = request_of("a", TOKENS, **PREFILL)
    producer.chunk(first, TOKENS, SOURCE)
    delay, params = producer.finish(first, SOURCE)
    assert delay
    producer.step()
    assert producer.sent == []
    before = consumer.memory.clone()
    second = request_of("b", TOKENS, **params)
    consumer.take(second, TARGET)
    until(lambda: bool(consumer.received and producer.sent), consumer, producer)
    assert same(producer, consumer)
    assert consumer.finish(second, TARGET) == (False, None)
    others = [block for block in range(16) if block not in TARGET]
    assert torch.equal(before[:, others], consumer.memory[:, others])
    for _ in range(20):
        consumer.step()
        producer.step()
    assert (producer.sent, consumer.received, consumer.lost) == (["a"], ["b"], set())


def test_a_prompt_goes_over_by_chunks_and_layers_while_it_is_computed(pair: tuple[Rank, Rank]) -> None:
    producer, consumer = pair
    first, _ = by_layer(producer, consumer)
    producer.begin(producer.chunk_step(first, BLOCK, SOURCE[:1]), layers=1)
    # The first layer of the first chunk arrives although nothing else is computed.
    end = time.monotonic() + 10
    while consumer.memory[0, TARGET[0], 0, 0, 0] != producer.memory[0, SOURCE[0], 0, 0, 0]:
        assert time.monotonic() < end
        time.sleep(0.001)
    assert consumer.memory[1, TARGET[0], 0, 0, 0] < 0
    producer.compute(producer.names[1:])
    producer.end()
    producer.chunk(first, BLOCK, SOURCE[:2])
    producer.chunk(first, 5, SOURCE)
    assert producer.sent == []
    until(lambda: bool(consumer.received), consumer)
    assert same(producer, consumer)
    # The offer may have ended already; the request is told only when vLLM waits for it.
    producer.step()
    assert producer.sent == []
    assert producer.finish(first, SOURCE)[0]
    until(lambda: producer.sent == ["a"], producer)


def test_a_cached_prefix_is_not_written(pair: tuple[Rank, Rank]) -> None:
    producer, consumer = pair
    first = request_of("a", TOKENS, **PREFILL)
    _, params = producer.finish(first, SOURCE)
    producer.step()
    before = consumer.memory[:, TARGET[0]].clone()
    consumer.take(request_of("b", TOKENS, **params), TARGET, computed=BLOCK)
    until(lambda: bool(consumer.received), consumer, producer)
    assert torch.equal(before, consumer.memory[:, TARGET[0]])
    assert consumer.memory[0, TARGET[1], 0, 0, 0] == producer.memory[0, SOURCE[1], 0, 0, 0]


def test_a_request_that_needs_nothing_frees_the_producer(pair: tuple[Rank, Rank]) -> None:
    producer, consumer = pair
    _, params = producer.finish(request_of("a", TOKENS, **PREFILL), SOURCE)
    producer.step()
    consumer.take(request_of("b", TOKENS, **params), TARGET, computed=TOKENS)
    until(lambda: producer.sent == ["a"], consumer, producer, seconds=3)
    assert consumer.received == []


def test_a_request_that_is_aborted_before_it_has_blocks_frees_the_producer(pair: tuple[Rank, Rank]) -> None:
    producer, consumer = pair
    _, params = producer.finish(request_of("a", TOKENS, **PREFILL), SOURCE)
    producer.step()
    aborted = consumer.finish(request_of("b", TOKENS, **params), [], status=RequestStatus.FINISHED_ABORTED)
    assert aborted == (False, None)
    until(lambda: producer.sent == ["a"], consumer, producer, seconds=3)
    assert consumer.received == []


def test_an_abort_of_the_producer_loses_the_blocks_that_are_not_whole(pair: tuple[Rank, Rank]) -> None:
    producer, consumer = pair
    first, _ = by_layer(producer, consumer)
    producer.chunk(first, BLOCK, SOURCE[:1])
    end = time.monotonic() + 10
    while consumer.memory[LAYERS - 1, TARGET[0], 1, -1, -1] != producer.memory[LAYERS - 1, SOURCE[0], 1, -1, -1]:
        assert time.monotonic() < end
        time.sleep(0.001)
    time.sleep(0.2)
    assert producer.finish(first, SOURCE[:1], status=RequestStatus.FINISHED_ABORTED)[0]
    until(lambda: bool(consumer.received and producer.sent), consumer, producer, seconds=3)
    assert consumer.lost == set(TARGET[1:])
    assert (producer.sent, consumer.received) == (["a"], ["a"])


def test_an_abort_before_the_first_chunk_ends_the_consumers_wait(pair: tuple[Rank, Rank]) -> None:
    producer, consumer = pair
    first, _ = by_layer(producer, consumer)
    assert producer.finish(first, [], status=RequestStatus.FINISHED_ABORTED)[0]
    until(lambda: bool(consumer.received and producer.sent), consumer, producer, seconds=3)
    assert consumer.lost == set(TARGET)


def test_an_abort_of_the_consumer_is_told_once_and_nothing_is_written_after_it(pair: tuple[Rank, Rank]) -> None:
    producer, consumer = pair
    first, second = by_layer(producer, consumer)
    producer.chunk(first, BLOCK, SOURCE[:1])
    # A take that ends before its producer has heard of it leaves the offer to its lease.
    id = bytes.fromhex(first.kv_transfer_params["ferry_id"])
    until(lambda: producer.worker.cache.state(id).takers == 1, consumer)
    assert consumer.finish(second, TARGET, status=RequestStatus.FINISHED_ABORTED) == (False, None)
    until(lambda: consumer.received == ["a"], consumer, producer, seconds=3)
    consumer.memory.fill_(-5.0)
    producer.chunk(first, TOKENS - BLOCK, SOURCE)
    producer.finish(first, SOURCE)
    until(lambda: producer.sent == ["a"], consumer, producer, seconds=3)
    assert bool((consumer.memory == -5.0).all())
    assert consumer.received == ["a"]


def test_an_abort_while_the_producer_is_dialled_is_told_at_once(pair: tuple[Rank, Rank]) -> None:
    producer, consumer = pair
    _, params = producer.finish(request_of("a", TOKENS, **PREFILL), SOURCE)
    second = request_of("b", TOKENS, **params)
    consumer.take(second, TARGET)
    consumer.worker.dials.submit(lambda: None).result()
    consumer.worker.lock.acquire()
    try:
        step = consumer.scheduler.build_connector_meta(output_of({}))
        consumer.worker.bind_connector_metadata(step)
        consumer.worker.start_load_kv(None)
        consumer.finish(second, TARGET, status=RequestStatus.FINISHED_ABORTED)
    finally:
        consumer.worker.lock.release()
    until(lambda: consumer.received == ["b"] and producer.sent == ["a"], consumer, producer, seconds=3)


FRESH = [11, 12, 13]


def preempt(producer: Rank, consumer: Rank) -> Any:
    """A prompt that loses its blocks in the second chunk, and is computed again in other blocks."""
    first, _ = by_layer(producer, consumer)
    producer.chunk(first, BLOCK, SOURCE[:1])
    producer.chunk(first, BLOCK, SOURCE[:2])
    first.num_computed_tokens = 0
    producer.step(output_of({}, preempted=["a"]))
    # From here on vLLM overwrites the blocks.
    producer.memory[:, SOURCE] = -7.0
    producer.memory[:, FRESH] += 0.5
    producer.chunk(first, BLOCK, FRESH[:1])
    producer.chunk(first, TOKENS - BLOCK, FRESH)
    assert producer.finish(first, FRESH)[0]
    until(lambda: bool(consumer.received and producer.sent), consumer, producer)
    assert (producer.sent, consumer.received) == (["a"], ["a"])
    return first


def test_a_prompt_that_is_preempted_in_the_second_chunk_is_taken_from_its_new_blocks(pair: tuple[Rank, Rank]) -> None:
    producer, consumer = pair
    preempt(producer, consumer)
    assert consumer.lost == set()
    producer.memory[:, SOURCE] = producer.memory[:, FRESH]
    assert same(producer, consumer)


def test_an_offer_that_cannot_be_taken_back_ends_before_its_blocks_are_written(
    pair: tuple[Rank, Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> None:
        raise ferry.BusyError(ferry.Status.BUSY, "a taker has not answered")

    monkeypatch.setattr(kv.Cache, "retract", busy, raising=False)
    producer, consumer = pair
    preempt(producer, consumer)
    # Nothing of the new blocks was sent, and the blocks that are not lost have the earlier contents.
    assert set(TARGET[1:]) - consumer.lost <= {TARGET[1]}
    assert TARGET[2] in consumer.lost
    for block in set(TARGET) - consumer.lost:
        assert not bool((consumer.memory[:, block] == -7.0).any())


def test_a_preemption_waits_for_the_end_of_an_offer_that_is_read(
    pair: tuple[Rank, Rank], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, consumer = pair
    first, _ = by_layer(producer, consumer)
    producer.chunk(first, BLOCK, SOURCE[:1])
    cache, waits = producer.worker.cache, iter([None, None, "its end"])

    def busy(*_: object) -> None:
        raise ferry.BusyError(ferry.Status.BUSY, "a taker has not answered")

    def wait(_: float) -> Any:
        # A taker reads the blocks until the third call.
        return cache.wait(10.0) if next(waits) else None

    slow = SimpleNamespace(retract=busy, cancel_offer=cache.cancel_offer, wait=wait)
    monkeypatch.setattr(producer.worker, "cache", slow)
    producer.worker.handle_preemptions(Step(retracted=["a"]))
    assert next(waits, None) is None
    assert not producer.worker.offers


def test_an_id_that_comes_twice_ends_the_second_request_alone(pair: tuple[Rank, Rank]) -> None:
    producer, consumer = pair
    first, second = by_layer(producer, consumer)
    producer.chunk(first, BLOCK, SOURCE[:1])
    again = request_of("again", TOKENS, **first.kv_transfer_params)
    producer.scheduler.update_state_after_alloc(again, None, 0)
    producer.step(output_of({"again": BLOCK}, {"again": ([11],)}))
    assert producer.finish(again, [11])[0]
    until(lambda: producer.sent == ["again"], producer, consumer)
    twice = request_of("twice", TOKENS, **{**second.kv_transfer_params, "do_remote_prefill": True})
    assert consumer.scheduler.get_num_new_matched_tokens(twice, 0) == (None, False), "the take serves both"
    # Workers that are told to take it nevertheless refuse the second take.
    consumer.scheduler.update_state_after_alloc(twice, blocks_of([10, 11, 12]), TOKENS)
    until(lambda: consumer.received == ["twice"], consumer, producer)
    assert consumer.lost == {10, 11, 12}
    producer.chunk(first, TOKENS - BLOCK, SOURCE)
    producer.finish(first, SOURCE)
    until(lambda: bool(consumer.received == ["twice", "a"] and len(producer.sent) == 2), consumer, producer)
    assert same(producer, consumer)


def test_a_producer_that_is_gone_costs_the_blocks_and_no_step(pair: tuple[Rank, Rank]) -> None:
    producer, consumer = pair
    _, params = producer.finish(request_of("a", TOKENS, **PREFILL), SOURCE)
    producer.worker.shutdown()
    consumer.take(request_of("b", TOKENS, **params), TARGET)
    start = time.monotonic()
    consumer.step()
    assert time.monotonic() - start < 0.5
    until(lambda: consumer.received == ["b"], consumer, seconds=4)
    assert consumer.lost == set(TARGET)


def test_another_model_is_refused_by_name(caplog: pytest.LogCaptureFixture, pair: tuple[Rank, Rank]) -> None:
    producer, _ = pair
    other = Rank({"model": "giant"})
    logging.getLogger("vllm").propagate = True
    _, params = producer.finish(request_of("a", TOKENS, **PREFILL), SOURCE)
    producer.step()
    other.take(request_of("b", TOKENS, **params), TARGET)
    until(lambda: other.received == ["b"], other, producer)
    assert other.lost == set(TARGET)
    assert any("tiny" in record.getMessage() and "giant" in record.getMessage() for record in caplog.records)
    other.worker.shutdown()


def test_ends_and_tokens_are_counted(pair: tuple[Rank, Rank]) -> None:
    producer, consumer = pair
    _, params = producer.finish(request_of("a", TOKENS, **PREFILL), SOURCE)
    consumer.take(request_of("b", TOKENS, **params), TARGET)
    until(lambda: bool(consumer.received and producer.sent), consumer, producer)
    told = consumer.worker.get_kv_connector_stats()
    assert told.data == {"take RECEIVED": 1, "tokens taken": TOKENS}
    assert consumer.worker.get_kv_connector_stats() is None
    both = told.aggregate(producer.worker.get_kv_connector_stats())
    assert both.reduce() == {"take RECEIVED": 1, "offer SENT": 1, "tokens taken": TOKENS}


@pytest.mark.parametrize(("from_ranks", "to_ranks"), [(2, 1), (1, 2), (2, 2)])
def test_ranks_hand_their_heads_over_and_each_is_told_once(from_ranks: int, to_ranks: int) -> None:
    producer, consumer = Instance(from_ranks, 1.0), Instance(to_ranks, -1e6)
    _, params = producer.ranks[0].finish(request_of("a", TOKENS, **PREFILL), SOURCE)
    assert len(params["ferry_producers"]) == from_ranks
    second = request_of("b", TOKENS, **params)
    count, _ = consumer.scheduler.get_num_new_matched_tokens(second, 0)
    consumer.scheduler.update_state_after_alloc(second, SimpleNamespace(get_block_ids=lambda: (TARGET,)), count)
    sent = lambda: [rank.sent for rank in producer.ranks]  # noqa: E731
    received = lambda: [rank.received for rank in consumer.ranks]  # noqa: E731
    until(lambda: all(sent()) and all(received()), producer, consumer)
    for _ in range(10):
        producer.step()
        consumer.step()
    assert (sent(), received()) == ([["a"]] * from_ranks, [["b"]] * to_ranks)
    assert not any(rank.lost for rank in consumer.ranks)
    source = torch.cat([rank.memory for rank in producer.ranks], dim=2)
    target = torch.cat([rank.memory for rank in consumer.ranks], dim=2)
    for at in range(TOKENS):
        block, token = divmod(at, BLOCK)
        for part in (keys, values):
            assert torch.equal(part(source[:, SOURCE[block]], token), part(target[:, TARGET[block]], token))
    for rank in producer.ranks + consumer.ranks:
        rank.worker.shutdown()


WINDOW = 20


@pytest.mark.parametrize("is_whole", [True, False])
def test_of_a_window_the_last_tokens_go_over_and_a_failure_names_the_request(is_whole: bool) -> None:
    shape = {"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": ELEMENTS, "dtype": torch.float32}
    specs = [FullAttentionSpec(**shape), SlidingWindowSpec(**shape, sliding_window=WINDOW)]
    caches = caches_of(specs, 2, groups=2)
    producer, consumer = Rank(first=1.0, caches=caches), Rank(first=-1e6, caches=caches)
    source, target = (SOURCE, [0, 8, 6]), (TARGET, [0, 3, 10])
    _, params = producer.finish(request_of("a", TOKENS, **PREFILL), *source)
    if not is_whole:
        params["ferry_producers"] = [consumer.scheduler.producers[0]]
    second = request_of("b", TOKENS, **params)
    count, _ = consumer.scheduler.get_num_new_matched_tokens(second, 0)
    consumer.scheduler.update_state_after_alloc(second, SimpleNamespace(get_block_ids=lambda: target), count)
    before = consumer.memory.clone()
    until(lambda: bool(consumer.received), producer, consumer)
    assert (consumer.failed, consumer.lost) == (set() if is_whole else {"b"}, set())
    for at in range(TOKENS) if is_whole else ():
        block, token = divmod(at, BLOCK)
        for part in (keys, values):
            mine, theirs = consumer.memory[:2, target[0][block]], producer.memory[:2, source[0][block]]
            assert torch.equal(part(mine, token), part(theirs, token))
            mine, theirs = consumer.memory[2:, target[1][block]], producer.memory[2:, source[1][block]]
            assert torch.equal(part(mine, token), part(theirs, token)) == (at > TOKENS - WINDOW)
    assert torch.equal(before[:, 0], consumer.memory[:, 0])
    consumer.worker.shutdown()
    producer.worker.shutdown()


@pytest.mark.parametrize("tokens", range(WINDOW, WINDOW + BLOCK + 1))
def test_a_window_goes_over_at_every_length(tokens: int) -> None:
    shape = {"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": ELEMENTS, "dtype": torch.float32}
    caches = caches_of([FullAttentionSpec(**shape), SlidingWindowSpec(**shape, sliding_window=WINDOW)], 1, groups=2)
    producer, consumer = Rank(first=1.0, caches=caches), Rank(first=-1e6, caches=caches)
    blocks, gone = -(-tokens // BLOCK), (tokens - WINDOW + 1) // BLOCK
    held = [[*ids[:blocks]] for ids in (SOURCE, [0] * gone + [8, 6, 3][gone:])]
    _, params = producer.finish(request_of("a", tokens, **PREFILL), *held)
    wanted = [[*ids[:blocks]] for ids in (TARGET, [0] * gone + [3, 10, 12][gone:])]
    second = request_of("b", tokens, **params)
    count, _ = consumer.scheduler.get_num_new_matched_tokens(second, 0)
    consumer.scheduler.update_state_after_alloc(second, SimpleNamespace(get_block_ids=lambda: wanted), count)
    until(lambda: bool(consumer.received), producer, consumer)
    assert (consumer.failed, consumer.lost) == (set(), set())
    consumer.worker.shutdown()
    producer.worker.shutdown()
