"""Parts of chunks: what engines that are sharded differently put and get."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_size_t, c_void_p, sizeof
from typing import TYPE_CHECKING

from .._abi import library
from .._errors import call, invalid, items_of, member, unsigned
from ..kv._blocks import Lists
from ..kv._handle import Handle, opened
from ..kv._numbers import Arrangement
from ._abi import CCut, CKey, CResult
from ._keys import CHUNK_TOKENS, Key
from ._results import Result, results_of
from ._values import Keys

if TYPE_CHECKING:
    from ..kv._blocks import BlocksLike
    from ..kv._layout import Layout


class PartValues:
    """Values whose memory is that of blocks, from `Parts.values`. `Pool.put` and `Pool.get` take them in
    place of a list. `len` says how many they are."""

    __slots__ = ("_handle", "address", "count")

    def __init__(self, pointer: c_void_p) -> None:
        self._handle = Handle(pointer.value or 0, library.ferry_pool_value_list_free)
        values, count = c_void_p(), c_size_t()
        call(library.ferry_pool_value_list_get, self._handle.pointer, addressof(values), addressof(count))
        self.address: int = values.value or 0
        self.count: int = count.value

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        return f"<ferry.pool.PartValues, {self.count} values>"


class Parts:
    """The parts of a chunk of a model, and what of them one rank of an engine holds. Engines with other
    numbers of ranks, other blocks or another order of dimensions get by it what this one has put. Any thread
    may use it.

    `layout` is the rank's `ferry.kv.Layout`, of which parts keep what they need. The rest is the cut, which
    must be equal wherever values are shared. `chunk_tokens` are those of the `Keyspace`. The heads of a layer
    are divided into `head_parts`: a common multiple of the tensor parallel sizes of the engines. The layers
    are divided into `layer_parts`, none of which may have layers of two pipeline stages. `arrangement` is the
    order of the bytes of a layer in a part; that of most engines makes the fewest pieces.
    """

    def __init__(
        self,
        layout: Layout,
        *,
        chunk_tokens: int = CHUNK_TOKENS,
        head_parts: int = 1,
        layer_parts: int = 1,
        arrangement: int | str = Arrangement.BLOCK_PAIR_TOKEN_HEAD,
    ) -> None:
        cut = CCut(struct_size=sizeof(CCut), arrangement=member(Arrangement, arrangement, "arrangement"))
        numbers = {"chunk_tokens": chunk_tokens, "head_parts": head_parts, "layer_parts": layer_parts}
        for name, value in numbers.items():
            setattr(cut, name, unsigned(value, name))
            if value == 0:  # The library takes it for the default.
                raise invalid(f"{name} is 0; it must be at least 1")
        self._group_count = layout.group_count
        pointer = c_void_p()
        handle = opened(layout._handle, "layout")
        call(library.ferry_pool_parts_new, handle.pointer, addressof(cut), addressof(pointer))
        self._handle = Handle(pointer.value or 0, library.ferry_pool_parts_free)

    def keys(self, chunks: Sequence[bytes]) -> list[Key]:
        """Returns the keys of all parts of chunks, those of other ranks too, for `Pool.exists` and
        `Pool.remove`: all of the first chunk, then all of the second, and so on."""
        items, count = Keys(chunks, "chunks"), c_size_t()
        where = self._handle.pointer, items.address, items.count
        call(library.ferry_pool_parts_keys, *where, None, 0, addressof(count))
        keys = (CKey * count.value)()
        call(library.ferry_pool_parts_keys, *where, addressof(keys), len(keys), addressof(count))
        return [Key(bytes(key.bytes)) for key in keys]

    def values(self, chunks: Sequence[bytes], blocks: BlocksLike, *, first_chunk: int = 0) -> PartValues:
        """Returns the values of the parts that this rank holds, for `Pool.put` and `Pool.get`: all of the
        first chunk, then all of the second, and so on.

        `chunks` are the keys of consecutive chunks of a sequence, of which the first is chunk `first_chunk`.
        `blocks` are the ids of the sequence's blocks, a list for each group of the layout, from the first
        token on (`ferry.kv.BlockList` for another one); a layout of one group takes the list itself. Each
        layer's memory lies in one registered region.
        """
        items, first, made = Keys(chunks, "chunks"), unsigned(first_chunk, "first_chunk", 64), c_void_p()
        with Lists(blocks, self._group_count) as lists:
            call(
                library.ferry_pool_parts_values,
                self._handle.pointer,
                items.address,
                items.count,
                first,
                lists.address,
                lists.count,
                addressof(made),
            )
        return PartValues(made)

    @staticmethod
    def fold(results: Sequence[Result], chunks: int) -> list[Result]:
        """Returns a result for each of so many chunks, of the results of a call with `keys` or `values`: OK
        only if all parts of the chunk are, HERE if all were, otherwise as the first part that was neither."""
        rows = (CResult * len(items_of(results, "results", " of Results")))(
            *(CResult(it.outcome, 0, it.bytes, it.node) for it in results)
        )
        found = (CResult * unsigned(chunks, "chunks"))()
        call(library.ferry_pool_results_fold, addressof(rows), len(rows), len(found), addressof(found))
        return results_of(bytes(found))
