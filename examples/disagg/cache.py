"""The paged cache of one worker: for each tensor parallel rank an engine, memory, a layout and a kv.Cache."""

from dataclasses import dataclass

import numpy as np

import ferry
from ferry import kv

# By arrangement: where (block, pair, head, token, element) are among the dimensions of the tensor.
AXES = {
    "PAIR_BLOCK_TOKEN_HEAD": (1, 0, 3, 2, 4),
    "PAIR_BLOCK_HEAD_TOKEN": (1, 0, 2, 3, 4),
    "BLOCK_PAIR_TOKEN_HEAD": (0, 1, 3, 2, 4),
    "BLOCK_PAIR_HEAD_TOKEN": (0, 1, 2, 3, 4),
    "BLOCK_HEAD_PAIR_TOKEN": (0, 2, 1, 3, 4),
}


@dataclass(frozen=True)
class Side:
    """How a worker divides and arranges its cache."""

    tp: int = 1
    block_tokens: int = 16
    arrangement: str = "BLOCK_PAIR_TOKEN_HEAD"
    tokens: int = 1024  # room for so many
    seed: int = 1  # of the order of the blocks


class Rank:
    """One rank: its part of the heads, of every layer. `tensors[layer]` is indexed by (block, pair, head,
    token, element), however the memory is arranged."""

    def __init__(self, shape, side, number, with_engine):
        pairs, heads, elements = shape.rows
        own = max(heads // side.tp, 1)  # every rank has the whole latent
        blocks = side.tokens // side.block_tokens
        self.heads = slice(0, 1) if shape.latent else slice(number * own, (number + 1) * own)
        sizes, axes = np.empty(5, int), AXES[side.arrangement]
        sizes[list(axes)] = blocks, pairs, own, side.block_tokens, elements
        length = shape.layers * int(sizes.prod()) * 4
        if with_engine:
            self.engine = ferry.Engine()
            memory = self.engine.alloc(length)
        tensors = np.frombuffer(memory.view if with_engine else bytearray(length), "f4").reshape(
            shape.layers, *sizes
        )
        self.tensors = [tensor.transpose(axes) for tensor in tensors]
        if with_engine:
            # A busy machine may keep a worker from its processor for longer than the second of the default.
            layout = self.layout(shape, side, number, tensors)
            self.cache = kv.Cache(self.engine, layout, memory, silence_ms=10_000)
            self.cache.timeline.start()  # for the picture

    @staticmethod
    def layout(shape, side, number, tensors):
        """Tells ferry what the model's cache is, and where this rank has its part of it."""
        pairs, heads, elements = shape.rows
        return kv.Layout(
            model="small transformer",
            cache="fp32",
            rope="rotated at reading",
            tp=(number, side.tp),
            groups=[kv.Group(side.block_tokens, kv.LATENT if shape.latent else kv.FULL)],
            layers=[
                kv.Layer(
                    name=f"layers.{at}.attention",
                    heads=heads,
                    pairs=pairs,
                    elements=elements,
                    element_bytes=4,
                    blocks=side.tokens // side.block_tokens,
                    address=tensor.ctypes.data,
                    arrangement=kv.Arrangement[side.arrangement],
                )
                for at, tensor in enumerate(tensors)
            ],
        )


class Paged:
    """The cache of one sequence, whose blocks lie in any order."""

    def __init__(self, shape, side, with_engines=True):
        self.side = side
        self.ranks = [Rank(shape, side, number, with_engines) for number in range(side.tp)]
        blocks = side.tokens // side.block_tokens
        self.table = np.random.default_rng(side.seed).permutation(blocks).astype(np.uint32)

    def blocks(self, tokens):
        """The ids of the blocks that hold the first tokens."""
        return self.table[: -(-tokens // self.side.block_tokens)]

    def places(self, first, end):
        positions = np.arange(first, end)
        return self.table[positions // self.side.block_tokens], positions % self.side.block_tokens

    def write(self, layer, first, rows):
        """Writes rows (token, pair, head, element) of the tokens from `first` on."""
        blocks, offsets = self.places(first, first + len(rows))
        for rank in self.ranks:
            rank.tensors[layer][blocks, :, :, offsets] = rows[:, :, rank.heads]

    def read(self, layer, end):
        """Returns each rank's rows of the tokens before `end`."""
        blocks, offsets = self.places(0, end)
        return [rank.tensors[layer][blocks, :, :, offsets].astype("f8") for rank in self.ranks]

    def timeline(self):
        """What was recorded of the handoff."""
        return [entry for rank in self.ranks for entry in rank.cache.timeline.read()]

    def close(self):
        for rank in self.ranks:
            rank.cache.close(timeout=10)
            rank.engine.close(timeout=10)
