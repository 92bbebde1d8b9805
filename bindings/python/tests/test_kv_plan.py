"""Plans: who sends to whom, and the bytes to move against a model that places each element by itself."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

np = pytest.importorskip("numpy")

from kv_workers import LAYERS, UNTOUCHED, Tensors, code  # noqa: E402

import ferry  # noqa: E402
from ferry import kv  # noqa: E402

SOURCE_IDS, TARGET_IDS = [5, 0, 3, 8, 11], [1, 6, 2, 9, 4, 10]


def tensors(**shape: Any) -> Tensors:
    return Tensors(bytearray(Tensors.size(shape.get("block_tokens", 16))), **shape)


def copy(move: kv.Move) -> None:
    """Copies a move's bytes in the way that its documentation says."""
    for source_block, target_block in zip(move.source_blocks, move.target_blocks, strict=True):
        for at in np.ndindex(*move.counts):
            source = move.source + source_block * move.source_stride + int(np.dot(at, move.source_steps))
            target = move.target + target_block * move.target_stride + int(np.dot(at, move.target_steps))
            ctypes.memmove(target, source, move.bytes)


def model(target: Tensors, tokens: range, layers: range) -> list[Any]:
    """What the target must hold, element by element."""
    expected = [np.full(layer.shape, UNTOUCHED, np.uint32) for layer in target.layers]
    for layer in layers:
        _, pairs, heads, _, elements = expected[layer].shape
        for token in tokens:
            block = TARGET_IDS[token // target.block_tokens]
            for pair, head, element in np.ndindex(pairs, heads, elements):
                value = code(layer, pair, target.first_head + head, token, np.uint32(element))
                expected[layer][block, pair, head, token % target.block_tokens, element] = value
    return expected


CASES = [
    # Tensor parallel ranks, tokens of a block, and arrangement: of the source, then of the target.
    ((1, 16, "BLOCK_PAIR_HEAD_TOKEN"), (1, 16, "BLOCK_PAIR_HEAD_TOKEN")),
    ((2, 16, "BLOCK_PAIR_HEAD_TOKEN"), (1, 32, "BLOCK_PAIR_TOKEN_HEAD")),
    ((1, 32, "PAIR_BLOCK_TOKEN_HEAD"), (2, 16, "PAIR_BLOCK_HEAD_TOKEN")),
    ((4, 16, "BLOCK_HEAD_PAIR_TOKEN"), (2, 16, "PAIR_BLOCK_TOKEN_HEAD")),
    ((2, 16, "PAIR_BLOCK_HEAD_TOKEN"), (4, 16, "BLOCK_HEAD_PAIR_TOKEN")),
]


@pytest.mark.parametrize("mine", [{}, {"skip_tokens": 24}, {"layers": 1}, {"layers": (1, 3)}])
@pytest.mark.parametrize(("source", "target"), CASES)
def test_lower_moves_each_element_to_its_place(
    source: tuple[int, int, str], target: tuple[int, int, str], mine: dict[str, Any]
) -> None:
    tokens = 53
    sides = []
    for size, block_tokens, arrangement in (source, target):
        shape = {"block_tokens": block_tokens, "arrangement": kv.Arrangement[arrangement]}
        sides.append([tensors(tp=(rank, size), **shape) for rank in range(size)])
    sources, targets = sides
    for rank in sources:
        for layer in range(LAYERS):
            rank.fill(layer, SOURCE_IDS, range(tokens))
    plan = kv.Plan(sources[-1].layout, targets[-1].layout)
    layers = mine.get("layers", (0, LAYERS))
    first, end = layers if isinstance(layers, tuple) else (layers, layers + 1)
    for number, to in enumerate(targets):
        for sender in plan.sources(number):
            assert number in plan.targets(sender)
            of = sources[sender]
            for move in plan.lower(of.layout, to.layout, SOURCE_IDS, TARGET_IDS, tokens, **mine):
                copy(move)
        expected = model(to, range(mine.get("skip_tokens", 0), tokens), range(first, end))
        for layer, found, wanted in zip(range(LAYERS), to.layers, expected, strict=True):
            assert np.array_equal(found, wanted), f"rank {number}, layer {layer}"


def test_equal_blocks_are_one_piece_each() -> None:
    source, target = tensors(), tensors()
    plan = kv.Plan(source.layout, target.layout)
    moves = plan.lower(source.layout, target.layout, [5, 0], [1, 6], 32)
    assert [move.layer for move in moves] == list(range(LAYERS))
    (block,) = {move.bytes for move in moves}
    assert block == source.layers[0].strides[0] == moves[0].source_stride == moves[0].target_stride
    assert (list(moves[0].source_blocks), list(moves[0].target_blocks)) == ([5, 0], [1, 6])
    assert moves[0].counts == (1, 1, 1, 1)
    assert moves[0].source == source.layers[0].ctypes.data


def test_the_last_tokens_of_a_window() -> None:
    shape: dict[str, Any] = {"kind": kv.WINDOW, "window_tokens": 20}
    source, target = tensors(**shape), tensors(**shape)
    for layer in range(LAYERS):
        source.fill(layer, SOURCE_IDS, range(50))
    plan = kv.Plan(source.layout, target.layout)
    # Tokens 30 to 49 lie in the blocks that begin with tokens 16, 32 and 48.
    of, to = kv.BlockList(SOURCE_IDS[1:4], first_token=16), kv.BlockList([1, 6, 2], first_token=16)
    for move in plan.lower(source.layout, target.layout, [of], [to], 50):
        copy(move)
    target.check([1, 6, 2], range(30, 50), first_token=16)
    assert repr(to) == "ferry.kv.BlockList([1, 6, 2], first_token=16)"


def test_a_latent_goes_to_every_rank() -> None:
    source = tensors(kind=kv.LATENT)
    for layer in range(LAYERS):
        source.fill(layer, SOURCE_IDS, range(40))
    for rank in range(2):
        target = tensors(kind=kv.LATENT, tp=(rank, 2), block_tokens=32)
        target.first_head = 0
        plan = kv.Plan(source.layout, target.layout)
        assert plan.targets(0) == [0, 1]
        for move in plan.lower(source.layout, target.layout, SOURCE_IDS, TARGET_IDS, 40):
            copy(move)
        target.check(TARGET_IDS, range(40))


def test_explain() -> None:
    plan = kv.Plan(tensors(tp=(0, 2)).layout, tensors(block_tokens=32).layout)
    page = plan.explain()
    assert "0 -> 0: " in page and "1 -> 0: " in page and "blocks of 16 tokens to 32" in page
    assert plan.sources(0) == [0, 1] and plan.targets(1) == [0]


def test_many_ranks() -> None:
    """More than the list's first capacity."""

    def wide(size: int) -> kv.Layout:
        shape: dict[str, Any] = {"elements": 8, "element_bytes": 2, "blocks": 4, "address": 4096}
        layer = kv.Layer(name="a", heads=256, arrangement=kv.BLOCK_PAIR_HEAD_TOKEN, **shape)
        return kv.Layout(model="m", groups=[kv.Group(16)], layers=[layer], tp=(0, size))

    plan = kv.Plan(wide(1), wide(256))
    assert plan.targets(0) == list(range(256)) and plan.sources(255) == [0]


def test_errors_of_plans() -> None:
    source, target = tensors(), tensors(block_tokens=32)
    plan = kv.Plan(source.layout, target.layout)
    other = kv.Layout(
        model="other",
        groups=[kv.Group(16)],
        layers=[kv.Layer("a", 4, 8, 4, 4, 4096, arrangement=kv.BLOCK_PAIR_HEAD_TOKEN)],
    )
    with pytest.raises(ferry.InvalidError, match='"other"'):
        kv.Plan(source.layout, other)
    with pytest.raises(ferry.InvalidError, match="rank is 1"):
        plan.sources(1)
    with pytest.raises(ferry.InvalidError, match="rank must be 0 to"):
        plan.targets(2**32)

    def lower(
        source_blocks: Any = (5, 0, 3), target_blocks: Any = (1, 6), tokens: int = 40, **rest: Any
    ) -> None:
        plan.lower(source.layout, target.layout, source_blocks, target_blocks, tokens, **rest)

    lower()
    for wrong, names in (
        ({"source_blocks": [5, 0]}, "the source's list of group 0 is too short"),
        ({"target_blocks": [1]}, "the target's list of group 0 is too short"),
        ({"target_blocks": [1, 1]}, "twice in the target's list of group 0"),
        ({"source_blocks": [5, 0, 12]}, "12"),
        ({"source_blocks": [5, 0, 2**32]}, f"source_blocks: {2**32} is no id of a block"),
        ({"source_blocks": [5, 0, -1]}, "source_blocks"),
        ({"source_blocks": ["a"]}, "source_blocks"),
        ({"source_blocks": 7}, "source_blocks must be block ids"),
        ({"source_blocks": [[5, 0, 3], [1]]}, "source_blocks has 2 lists, target_blocks 1"),
        ({"tokens": -1}, "tokens"),
        ({"skip_tokens": 41}, "token"),
        ({"layers": (2, 1)}, "layer"),
        ({"layers": (0, 1, 2)}, r"layers must be None, a layer, or \(first, end\)"),
        ({"layers": "all"}, "layers must be an integer"),
        ({"source_blocks": kv.BlockList([5, 0, 3], first_token=-16)}, "source_blocks.first_token"),
        ({"source_blocks": kv.BlockList([5, 0, 3], first_token=16)}, "the source's list of group 0"),
    ):
        with pytest.raises(ferry.InvalidError, match=names):
            lower(**wrong)


@pytest.mark.parametrize("kind", ["u4", "i4", "u8", "i8"])
def test_ids_in_arrays(kind: str) -> None:
    source, target = tensors(), tensors()
    plan = kv.Plan(source.layout, target.layout)
    ids = np.array(SOURCE_IDS, kind)
    moves = plan.lower(source.layout, target.layout, ids, [np.array(TARGET_IDS, kind)], 50)
    assert list(moves[0].source_blocks)[:3] == SOURCE_IDS[:3]
    with pytest.raises(ferry.InvalidError, match="one-dimensional, contiguous"):
        plan.lower(source.layout, target.layout, ids[::2], TARGET_IDS, 20)
    with pytest.raises(ferry.InvalidError, match="one-dimensional, contiguous"):
        plan.lower(source.layout, target.layout, ids.astype("f4"), TARGET_IDS, 20)
