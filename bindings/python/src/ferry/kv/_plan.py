"""Plans: who sends what between two instances, and the bytes to move."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from ctypes import addressof, c_size_t, c_uint32, c_void_p, sizeof, string_at
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from .._abi import library
from .._errors import call, invalid, text, unsigned
from ._abi import ALL_LAYERS, CBlockPairs, CMove, CPart
from ._blocks import Lists, layer_range
from ._handle import Handle, opened
from ._layout import Layout

if TYPE_CHECKING:
    from ._blocks import BlocksLike


class Move(NamedTuple):
    """Bytes of one layer, by strides; see ferry_kv_move in ferry_kv.h.

    For each pair of blocks, and each step of the four nested loops, `bytes` contiguous bytes go from
    `source` + block * `source_stride` + the sum of index * `source_steps`, and likewise at the target.
    """

    layer: int
    """Index into the target's layers."""
    source: int
    target: int
    source_stride: int
    target_stride: int
    bytes: int
    counts: tuple[int, ...]
    """How often each of the loops runs, the outermost first."""
    source_steps: tuple[int, ...]
    target_steps: tuple[int, ...]
    source_blocks: array[int]
    """Ids of 4 bytes, as `ferry.Blocks` takes them."""
    target_blocks: array[int]


class Plan:
    """Who sends what, from the instance of `source` to the instance of `target`. It never changes.

    Each layout may be that of any rank of its instance: all ranks make the same plan.
    """

    def __init__(self, source: Layout, target: Layout) -> None:
        ends = opened(source._handle, "source layout"), opened(target._handle, "target layout")
        pointer = c_void_p()
        call(library.ferry_kv_plan_new, ends[0].pointer, ends[1].pointer, addressof(pointer))
        self._handle: Handle | None = Handle(pointer.value or 0, library.ferry_kv_plan_free)
        self._ranks = f"from {source.ranks} to {target.ranks} ranks"

    def sources(self, rank: int) -> list[int]:
        """Lists the ranks of the source that send to a rank of the target."""
        return self._listed(library.ferry_kv_plan_sources, rank)

    def targets(self, rank: int) -> list[int]:
        """Lists the ranks of the target to which a rank of the source sends."""
        return self._listed(library.ferry_kv_plan_targets, rank)

    def _listed(self, function: Callable[..., int], rank: int) -> list[int]:
        handle, wanted = opened(self._handle, "plan"), unsigned(rank, "rank")
        count, capacity = c_size_t(), 64
        while True:
            found = (c_uint32 * capacity)()
            call(function, handle.pointer, wanted, addressof(found), capacity, addressof(count))
            if count.value <= capacity:
                return list(found[: count.value])
            capacity = count.value

    def explain(self) -> str:
        """Returns a page for people: who sends how much to whom, and in pieces of what size."""
        handle = opened(self._handle, "plan")
        return text(library.ferry_kv_plan_explain, handle.pointer).decode()

    def lower(
        self,
        source: Layout,
        target: Layout,
        source_blocks: BlocksLike,
        target_blocks: BlocksLike,
        tokens: int,
        *,
        skip_tokens: int = 0,
        layers: tuple[int, int] | int | None = None,
    ) -> list[Move]:
        """Finds the bytes that one rank sends to another for a part of a sequence: the tokens from
        `skip_tokens` to before `tokens`, in all `layers`, one, or those from the first to before the end.

        The layouts are those of the two ranks. Both lists of blocks are as `Cache.offer` takes them, by the
        groups of the target. Nothing is moved.
        """
        plan = opened(self._handle, "plan")
        ends = opened(source._handle, "source layout"), opened(target._handle, "target layout")
        part = CPart(struct_size=sizeof(CPart))
        part.first_token = unsigned(skip_tokens, "skip_tokens", 64)
        part.end_token = unsigned(tokens, "tokens", 64)
        part.first_layer, part.end_layer = layer_range(layers, ALL_LAYERS)
        groups = target.group_count
        with (
            Lists(source_blocks, groups, "source_blocks") as theirs,
            Lists(target_blocks, groups, "target_blocks") as ours,
        ):
            if theirs.count != ours.count:
                raise invalid(f"source_blocks has {theirs.count} lists, target_blocks {ours.count}")
            pairs = (CBlockPairs * ours.count)(*(_paired(theirs, ours, at) for at in range(ours.count)))
            part.blocks, part.group_count = addressof(pairs), ours.count
            found = c_void_p()
            pointers = plan.pointer, ends[0].pointer, ends[1].pointer
            call(library.ferry_kv_plan_lower, *pointers, addressof(part), addressof(found))
        moves = Handle(found.value or 0, library.ferry_kv_moves_free)
        count = c_size_t()
        call(library.ferry_kv_moves_count, moves.pointer, addressof(count))
        return [_move(moves, at) for at in range(count.value)]

    def close(self) -> None:
        """Frees the plan. Does nothing for a closed one."""
        self._handle = None

    def __repr__(self) -> str:
        return f"<ferry.kv.Plan {'closed' if self._handle is None else self._ranks}>"

    def __enter__(self) -> Plan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _paired(theirs: Lists, ours: Lists, at: int) -> CBlockPairs:
    source, target = theirs[at], ours[at]
    return CBlockPairs(
        sizeof(CBlockPairs),
        0,
        source.blocks,
        source.block_count,
        source.first_token,
        target.blocks,
        target.block_count,
        target.first_token,
    )


def _move(moves: Handle, at: int) -> Move:
    found = CMove(struct_size=sizeof(CMove))
    call(library.ferry_kv_moves_get, moves.pointer, at, addressof(found))
    lists = []
    for place in (found.source_blocks, found.target_blocks):
        ids = array("I")
        if found.pair_count:
            ids.frombytes(string_at(place, found.pair_count * ids.itemsize))
        lists.append(ids)
    return Move(
        found.layer,
        found.source,
        found.target,
        found.source_stride,
        found.target_stride,
        found.bytes,
        tuple(found.counts),
        tuple(found.source_steps),
        tuple(found.target_steps),
        lists[0],
        lists[1],
    )
