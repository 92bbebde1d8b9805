"""Engines that are sharded differently share one pool, by parts of chunks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from test_pool import cluster

import ferry
from ferry import kv
from ferry.pool import Keyspace, Outcome, Parts


def test_an_engine_that_is_sharded_differently_gets_what_another_one_has_put() -> None:
    numpy = pytest.importorskip("numpy")
    shape, chunk = (2, 4, 16), 32  # layers, heads, elements; tokens of a chunk
    space = Keyspace("tests", "llama", chunk_tokens=chunk)
    chunks = space.keys_of(range(2 * chunk))
    rows = numpy.arange(2 * 2 * chunk * 2 * 4 * 16, dtype=numpy.uint16)
    # (layer, pair, head, token, element)
    cache = rows.reshape(shape[0], 2, shape[1], 2 * chunk, shape[2])
    cut = {"chunk_tokens": chunk, "head_parts": 2}

    def layout(tensors: Any, order: str, block_tokens: int, tp: tuple[int, int]) -> kv.Layout:
        layers = [kv.Layer.of(it, f"layers.{at}", order) for at, it in enumerate(tensors)]
        return kv.Layout(model="llama", groups=[kv.Group(block_tokens)], layers=layers, tp=tp)

    with cluster(1 << 22, 1 << 22, chunk_tokens=chunk) as (source, target):
        for rank in range(2):
            # Blocks of 8 tokens in order, all keys before all values, tokens outside of heads.
            ours = cache[:, :, 2 * rank : 2 * rank + 2].transpose(0, 1, 3, 2, 4)
            tensors = numpy.ascontiguousarray(ours.reshape(2, 2, 8, 8, 2, 16))
            source.engine.register(tensors)
            made = layout(tensors, "pair block token head element", 8, (rank, 2))
            parts = Parts(made, **cut)
            keys = parts.keys(chunks)
            assert len(keys) == 4
            assert source.pool.prefix(keys) == rank
            values = parts.values(chunks, range(8))
            assert len(values) == 2 and repr(values) == "<ferry.pool.PartValues, 2 values>"
            assert [it.outcome.name for it in source.pool.put(values)] == ["OK", "OK"]
            again = asyncio.run(source.pool.put_async(parts.values(chunks[1:], range(8), first_chunk=1)))
            assert [it.outcome.name for it in again] == ["HERE"]
        assert target.pool.prefix(keys) == len(keys)

        # Three blocks of 32 tokens, of which one is another sequence's, heads outside of tokens.
        tensors = numpy.zeros((2, 3, 2, 4, chunk, 16), dtype=numpy.uint16)
        target.engine.register(tensors)
        made = layout(tensors, "block pair head token element", chunk, (0, 1))
        parts = Parts(made, **cut)
        assert parts.keys(chunks) == keys
        made.close()
        results = target.pool.get(parts.values(chunks, [2, 0]))
        folded = Parts.fold(results, len(chunks))
        assert [(it.outcome, it.bytes) for it in folded] == [(Outcome.OK, rows.nbytes // 2)] * 2
        for at, block in enumerate([2, 0]):
            tokens = slice(at * chunk, (at + 1) * chunk)
            assert (tensors[:, block] == cache[:, :, :, tokens]).all()
        assert not tensors[:, 1].any()

        missing = space.keys_of(range(1, 2 * chunk + 1))
        results = target.pool.get(parts.values(missing, [2, 0]))
        assert [it.outcome.name for it in Parts.fold(results, 2)] == ["ABSENT", "ABSENT"]
        with pytest.raises(ferry.InvalidError, match="ends: 4 are not equally many for each of 3 chunks"):
            Parts.fold(results, 3)
        with pytest.raises(ferry.InvalidError, match="blocks .*list of group 0 is too short"):
            parts.values(chunks, [2])
        with pytest.raises(ferry.InvalidError, match="head_parts is 0"):
            Parts(made, head_parts=0)
        with pytest.raises(ferry.ClosedError, match="the layout is closed"):
            Parts(made, **cut)
