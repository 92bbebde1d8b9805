"""Ranks of prefill and decode workers, with caches whose every element encodes its place in the model.

As a program it is one producer in a process of its own: kv_workers.py RANK SIZE HEX_ID TOKENS. It prints its
address, makes a layer ready for each line that it reads, and prints how the offer ended.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import ferry
from ferry import kv

LAYERS, HEADS, ELEMENTS, BLOCKS = 3, 4, 8, 12
UNTOUCHED = 0xFFFFFFFF

Words = NDArray[np.uint32]

# By arrangement: the axes of (block, pair, head, token, element) in the tensor.
AXES = {
    kv.PAIR_BLOCK_TOKEN_HEAD: (1, 0, 3, 2, 4),
    kv.PAIR_BLOCK_HEAD_TOKEN: (1, 0, 2, 3, 4),
    kv.BLOCK_PAIR_TOKEN_HEAD: (0, 1, 3, 2, 4),
    kv.BLOCK_PAIR_HEAD_TOKEN: (0, 1, 2, 3, 4),
    kv.BLOCK_HEAD_PAIR_TOKEN: (0, 2, 1, 3, 4),
}


def code(layer: int, pair: Any, head: Any, token: Any, element: Any) -> Any:
    """Returns an element's value, which encodes its place in the model and the sequence and is unique."""
    return ((((layer * 2 + pair) * 64 + head) * 4096 + token) * 64 + element).astype(np.uint32)


class Tensors:
    """The layers of one rank in any memory; `layers[l]` is indexed by (block, pair, head, token, element).
    The layout says that they begin at `address`, if the cache lies elsewhere."""

    def __init__(
        self,
        memory: Any,
        *,
        address: int | None = None,
        tp: tuple[int, int] = (0, 1),
        block_tokens: int = 16,
        arrangement: kv.Arrangement = kv.BLOCK_PAIR_HEAD_TOKEN,
        kind: kv.GroupKind = kv.FULL,
        window_tokens: int = 0,
    ) -> None:
        heads, pairs = (1, 1) if kind == kv.LATENT else (HEADS, 2)
        rank, size = tp
        self.first_head = rank * heads // size
        own = max(heads // size, 1)
        self.block_tokens = block_tokens
        axes = AXES[arrangement]
        sizes = np.empty(5, int)
        sizes[list(axes)] = (BLOCKS, pairs, own, block_tokens, ELEMENTS)
        words: Words = np.frombuffer(memory, np.uint32, LAYERS * int(sizes.prod()))
        words[:] = UNTOUCHED
        flat = words.reshape(LAYERS, -1)
        base = flat.ctypes.data if address is None else address
        self.layers = [layer.reshape(sizes).transpose(axes) for layer in flat]
        self.layout = kv.Layout(
            model="test",
            tp=tp,
            groups=[kv.Group(block_tokens=block_tokens, kind=kind, window_tokens=window_tokens)],
            layers=[
                kv.Layer(
                    name=f"layers.{at}",
                    heads=heads,
                    pairs=pairs,
                    elements=ELEMENTS,
                    element_bytes=4,
                    blocks=BLOCKS,
                    address=base + at * layer.nbytes,
                    arrangement=arrangement,
                )
                for at, layer in enumerate(flat)
            ],
        )

    @staticmethod
    def size(block_tokens: int) -> int:
        """Enough bytes for the tensors of any rank."""
        return LAYERS * BLOCKS * 2 * HEADS * block_tokens * ELEMENTS * 4

    def places(self, ids: Sequence[int], tokens: range, first_token: int = 0) -> Any:
        """Returns for each token its (block, place in the block)."""
        offsets = np.arange(tokens.start, tokens.stop) - first_token
        return np.asarray(ids)[offsets // self.block_tokens], offsets % self.block_tokens

    def codes(self, layer: int, tokens: range) -> Words:
        """Returns a layer's values of the tokens, by (token, pair, head, element)."""
        shape: Any = self.layers[layer].shape
        _, pairs, heads, _, elements = shape
        token, pair, head, element = np.ix_(tokens, range(pairs), range(heads), range(elements))
        found: Words = code(layer, pair, head + self.first_head, token, element)
        return found

    def fill(self, layer: int, ids: Sequence[int], tokens: range, first_token: int = 0) -> None:
        blocks, offsets = self.places(ids, tokens, first_token)
        self.layers[layer][blocks, :, :, offsets] = self.codes(layer, tokens)

    def check(self, ids: Sequence[int], tokens: range, layers: int = LAYERS, first_token: int = 0) -> None:
        """Checks that each element of the tokens is in its place, and that all other memory is untouched."""
        for at, layer in enumerate(self.layers):
            expected = np.full(layer.shape, UNTOUCHED, np.uint32)
            if at < layers:
                blocks, offsets = self.places(ids, tokens, first_token)
                expected[blocks, :, :, offsets] = self.codes(at, tokens)
            assert np.array_equal(layer, expected), f"layer {at}"


class Rank:
    """A cache on an engine of its own. `silence_ms` is longer than a busy machine keeps a process waiting."""

    def __init__(
        self,
        *,
        settings: dict[str, Any] | None = None,
        silence_ms: int = 20_000,
        leased_blocks_max: int = 0,
        **shape: Any,
    ) -> None:
        self.engine = ferry.Engine(**settings or {})
        self.memory = self.engine.alloc(Tensors.size(shape.get("block_tokens", 16)))
        self.tensors = Tensors(self.memory.view, **shape)
        limits = {"silence_ms": silence_ms, "leased_blocks_max": leased_blocks_max}
        self.cache = kv.Cache(self.engine, self.tensors.layout, self.memory, **limits)

    def __enter__(self) -> Rank:
        return self

    def __exit__(self, *_: object) -> None:
        self.cache.close(20)
        self.engine.close(20)

    def offer(self, id: bytes, ids: Sequence[int], tokens: int, **options: Any) -> None:
        """Offers a whole sequence."""
        for layer in range(LAYERS):
            self.tensors.fill(layer, ids, range(tokens))
        self.cache.offer(id, ids, **options)
        self.cache.ready(id, tokens)
        self.cache.seal(id, tokens)

    def end(self, id: bytes) -> kv.Event:
        """Waits for the terminal event."""
        while (event := self.cache.wait(20)) is not None:
            if event.terminal:
                assert event.id == id
                return event
        raise AssertionError("no terminal event came")


def produce(rank: int, size: int, id: bytes, tokens: int) -> None:
    with Rank(tp=(rank, size), arrangement=kv.PAIR_BLOCK_TOKEN_HEAD) as producer:
        print(producer.engine.address, flush=True)
        ids = [7 - rank, 2, 9 + rank]
        producer.cache.offer(id, ids)
        for layer in range(LAYERS):
            sys.stdin.readline()
            producer.tensors.fill(layer, ids, range(tokens))
            producer.cache.ready(id, tokens, layer)
        producer.cache.seal(id, tokens)
        print(producer.end(id).kind.name, flush=True)


if __name__ == "__main__":
    produce(int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3]), int(sys.argv[4]))
