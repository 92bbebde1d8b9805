"""Lists of block ids: one for each group of a layout, pinned for the length of a call."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import addressof, sizeof
from types import TracebackType
from typing import TYPE_CHECKING, Any, Union

from .._buffers import Pin, numbers
from .._errors import invalid, unsigned
from ._abi import CBlockList

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from .._buffers import SupportsArrayInterface

    Ids = Union[Sequence[int], Buffer, SupportsArrayInterface]
    BlocksLike = Union["BlockList", Ids, Sequence[Union["BlockList", Ids]]]


class BlockList:
    """The blocks of one group that hold a sequence, in its order.

    `first_token` is the position of the first block's first token among the tokens that the rank holds, a
    multiple of the group's `block_tokens`: 0, unless earlier tokens have left a window, or a take skips them.
    """

    __slots__ = ("ids", "first_token")

    def __init__(self, ids: Ids, first_token: int = 0) -> None:
        self.ids: Ids = ids
        self.first_token: int = first_token

    def __repr__(self) -> str:
        return f"ferry.kv.BlockList({self.ids!r}, first_token={self.first_token})"


def by_group(blocks: BlocksLike, group_count: int, name: str) -> list[BlockList]:
    """Returns one list for each group. With one group, `blocks` may be the list itself."""
    if isinstance(blocks, BlockList):
        blocks = [blocks]
    elif _is_flat(blocks, name):
        if group_count != 1:
            raise invalid(f"{name} must have one list of blocks for each of the {group_count} groups")
        blocks = [BlockList(blocks)]  # type: ignore[arg-type]
    return [item if isinstance(item, BlockList) else BlockList(item) for item in blocks]  # type: ignore[union-attr, arg-type]


def _is_flat(blocks: Any, name: str) -> bool:
    """True for ids, false for lists of ids."""
    try:
        return memoryview(blocks).ndim == 1
    except TypeError:
        pass
    try:
        return not any(isinstance(item, BlockList) or hasattr(item, "__len__") for item in blocks)
    except TypeError:
        raise invalid(f"{name} must be block ids, not {blocks!r}") from None


class Lists:
    """The lists as the library's structs. A `with` block holds the arrays in place until its end."""

    __slots__ = ("address", "count", "_items", "_pins")

    def __init__(self, blocks: BlocksLike, group_count: int, name: str = "blocks") -> None:
        lists = by_group(blocks, group_count, name)
        self._pins: list[Pin] = []
        self._items = (CBlockList * len(lists))()
        self.address, self.count = addressof(self._items), len(lists)
        try:
            for at, (item, found) in enumerate(zip(self._items, lists, strict=True)):
                label = name if group_count == 1 else f"{name}[{at}]"
                item.struct_size = sizeof(CBlockList)
                item.first_token = unsigned(found.first_token, f"{label}.first_token", 64)
                item.blocks, item.block_count = self._pin(found.ids, label)
        except BaseException:
            self._release()
            raise

    def __getitem__(self, at: int) -> CBlockList:
        return self._items[at]

    def _pin(self, ids: Any, name: str) -> tuple[int, int]:
        """Pins ids and returns their address and count. 32-bit integers are used in place."""
        view = numbers(ids, name, (4, 8))
        if view.itemsize != 4:
            try:
                view = memoryview(array("I", view))
            except OverflowError:
                wrong = next(block for block in view if not 0 <= block < 2**32)
                raise invalid(f"{name}: {wrong} is no id of a block") from None
        self._pins.append(Pin(view, name))
        return self._pins[-1].address, len(view)

    def _release(self) -> None:
        while self._pins:
            self._pins.pop().release()

    def __enter__(self) -> Lists:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()


def layer_range(layers: tuple[int, int] | int | None, all_layers: int) -> tuple[int, int]:
    """Returns the first layer, and the layer after the last."""
    if layers is None:
        return 0, all_layers
    if isinstance(layers, tuple):
        if len(layers) != 2:
            raise invalid(f"layers must be None, a layer, or (first, end), not {layers!r}")
        return unsigned(layers[0], "layers[0]"), unsigned(layers[1], "layers[1]")
    first = unsigned(layers, "layers")
    return first, first + 1
