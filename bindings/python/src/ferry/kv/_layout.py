"""Layouts: what one rank holds of a paged KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_void_p, sizeof
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from .._abi import library
from .._errors import Error, call, encoded, invalid, items_of, member, text, unsigned
from ._abi import CGroup, CLayer, CLayoutDesc, CLayoutInfo
from ._handle import Handle, opened
from ._numbers import Arrangement, GroupKind
from ._tensor import Tensor, c_tensor, tensor_of


@dataclass(frozen=True)
class Group:
    """Layers that share their block ids."""

    block_tokens: int
    """Tokens of this rank in one block. 1 for a state."""
    kind: int | str = GroupKind.FULL
    window_tokens: int = 0
    """The window of a GroupKind.WINDOW; 0 otherwise."""


@dataclass(frozen=True)
class Layer:
    """One tensor of the cache: of a layer, or of a sub-cache of a layer. `Layer.of` reads it from a tensor
    of a framework. See ferry_kv_layer in ferry_kv.h."""

    name: str
    """The same on all ranks and both sides."""
    heads: int
    """KV heads of the whole model, of which tensor parallel ranks have their part; 1 for a latent."""
    elements: int
    """Elements of one row: of one token, head, and key or value."""
    element_bytes: int
    blocks: int
    """How many blocks the tensor has."""
    address: int = 0
    """The address of block 0 in this process; 0 for a layer of another stage."""
    group: int = 0
    """Index into the groups of the layout."""
    stage: int = 0
    """The pipeline stage that holds this layer."""
    pairs: int = 2
    """2 for keys and values, 1 for a tensor with one kind of row."""
    arrangement: int | str | None = None
    """The order of the dimensions of a contiguous tensor, an `Arrangement`."""
    strides: tuple[int, int, int, int, int] | None = None
    """Bytes from one (block, pair, head, token, element) to the next, in place of `arrangement`."""
    tensor: Tensor | None = field(default=None, repr=False)
    """Of `of`: where the layer lies."""

    @classmethod
    def of(
        cls,
        tensor: Any,
        name: str,
        order: str = "block pair token head element",
        group: int = 0,
        stage: int = 0,
        heads: int = 0,
    ) -> Layer:
        """Describes a layer that lies in a tensor: of torch, or an array with numpy's or CUDA's array
        interface.

        `order` names the tensor's dimensions from the outermost; pair, token and head may be missing, for a
        size of 1. The layout checks them against its groups and ranks, and reads elements, pairs, blocks
        and strides from the tensor. `heads` are those of the whole model, by default the tensor's times the
        tensor parallel ranks: state them if ranks replicate heads, and as 1 for a latent.
        """
        placed = tensor_of(tensor, order)
        return cls(name, heads, 0, placed.element_bytes, 0, placed.address, group, stage, tensor=placed)


class Layout:
    """What one rank holds of a paged KV cache. It never changes; any thread may use it.

    `groups` are the groups of layers that share their block ids, `layers` all layers of the model in their
    order: those of other pipeline stages without an address. `model`, `revision`, `cache` and `rope` must be
    equal on both sides of a handoff. `tp`, `pp` and `pcp` are pairs of this rank's number and how many there
    are. The memory that a layout names is not touched by it.
    """

    def __init__(
        self,
        *,
        model: str,
        groups: Sequence[Group],
        layers: Sequence[Layer],
        revision: str = "",
        cache: str = "",
        rope: str = "",
        tp: tuple[int, int] = (0, 1),
        pp: tuple[int, int] = (0, 1),
        pcp: tuple[int, int] = (0, 1),
        dcp_size: int = 1,
        turn_tokens: int = 1,
    ) -> None:
        desc = CLayoutDesc(struct_size=sizeof(CLayoutDesc))
        texts = {"model": model, "revision": revision, "cache": cache, "rope": rope}
        for name, value in texts.items():
            setattr(desc, name, encoded(value, name))
        for name, pair in {"tp": tp, "pp": pp, "pcp": pcp}.items():
            rank, size = _two(pair, name)
            setattr(desc, name + "_rank", rank)
            setattr(desc, name + "_size", size)
        desc.dcp_size = unsigned(dcp_size, "dcp_size")
        desc.turn_tokens = unsigned(turn_tokens, "turn_tokens")
        items_of(groups, "groups", " of Groups")
        items_of(layers, "layers", " of Layers")
        c_groups = (CGroup * len(groups))(*(_group(group, at) for at, group in enumerate(groups)))
        desc.groups, desc.group_count = addressof(c_groups), len(groups)
        c_layers = (CLayer * len(layers))(*(_layer(desc, layer, at) for at, layer in enumerate(layers)))
        desc.layers, desc.layer_count = addressof(c_layers), len(layers)
        pointer = c_void_p()
        call(library.ferry_kv_layout_new, addressof(desc), addressof(pointer))
        self._own(pointer)

    def _own(self, pointer: c_void_p) -> None:
        self._handle: Handle | None = Handle(pointer.value or 0, library.ferry_kv_layout_free)
        info = CLayoutInfo(struct_size=sizeof(CLayoutInfo))
        call(library.ferry_kv_layout_get_info, self._handle.pointer, addressof(info))
        self.rank: int = info.rank
        """Number of this rank in its instance: (pp * pcp_size + pcp) * tp_size + tp."""
        self.ranks: int = info.ranks
        """How many ranks the instance has."""
        self.group_count: int = info.group_count
        self.layer_count: int = info.layer_count

    @classmethod
    def load(cls, exported: bytes | bytearray) -> Layout:
        """Makes a layout from the bytes of `export`, which are checked and need not be trusted."""
        data = bytes(exported)
        pointer = c_void_p()
        call(library.ferry_kv_layout_import, data, len(data), addressof(pointer))
        made = cls.__new__(cls)
        made._own(pointer)
        return made

    def export(self) -> bytes:
        """Returns the layout as at most 64 KiB, for the other ranks."""
        handle = opened(self._handle, "layout")
        return text(library.ferry_kv_layout_export, handle.pointer)

    def close(self) -> None:
        """Frees the layout; plans and caches that were made from it stay valid. Does nothing for a closed
        one."""
        self._handle = None

    def __enter__(self) -> Layout:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        return Layout.load, (self.export(),)

    def __repr__(self) -> str:
        closed = ", closed" if self._handle is None else ""
        return f"<ferry.kv.Layout of rank {self.rank} of {self.ranks}, {self.layer_count} layers{closed}>"


def _two(pair: tuple[int, int], name: str) -> tuple[int, int]:
    try:
        rank, size = pair
    except (TypeError, ValueError):
        raise invalid(f"{name} must be (rank, size), not {pair!r}") from None
    # The library takes a size of 0 for 1 in some fields.
    if unsigned(size, f"{name}[1]") == 0:
        raise invalid(f"{name}[1] is 0: a rank is one of at least 1")
    return unsigned(rank, f"{name}[0]"), unsigned(size, f"{name}[1]")


def _group(group: Group, at: int) -> CGroup:
    made = CGroup(sizeof(CGroup), member(GroupKind, group.kind, f"groups[{at}].kind"))
    for name in ("block_tokens", "window_tokens"):
        setattr(made, name, unsigned(getattr(group, name), f"groups[{at}].{name}"))
    return made


_FIELDS = {"address": 64, "blocks": 64} | dict.fromkeys(
    ("group", "stage", "heads", "pairs", "elements", "element_bytes"), 32
)


def _layer(desc: CLayoutDesc, layer: Layer, at: int) -> CLayer:
    """Returns a layer as the library's struct, with its strides. `desc` has its ranks and groups."""
    where = f"layers[{at}]"
    made = CLayer(struct_size=sizeof(CLayer), name=encoded(layer.name, f"{where}.name"))
    for name, bits in _FIELDS.items():
        setattr(made, name, unsigned(getattr(layer, name), f"{where}.{name}", bits))
    if layer.tensor is not None or (layer.strides is None and layer.address != 0):
        try:
            if layer.tensor is not None:
                tensor, _held = c_tensor(layer.tensor)
                call(library.ferry_kv_layer_of, addressof(desc), addressof(tensor), addressof(made))
            elif layer.arrangement is None:
                raise invalid("arrangement is missing: the order of the tensor's dimensions; or use Layer.of")
            else:
                arrangement = member(Arrangement, layer.arrangement, "arrangement")
                call(library.ferry_kv_layer_arrange, addressof(desc), arrangement, addressof(made))
        except Error as error:
            raise type(error)(error.status, f"{where}: {error.message}") from None
    if layer.strides is None:
        return made
    names = ("block_stride", "pair_stride", "head_stride", "token_stride", "element_stride")
    if len(layer.strides) != len(names):
        raise invalid(f"{where}.strides must be five numbers, not {layer.strides!r}")
    for name, stride in zip(names, layer.strides, strict=True):
        setattr(made, name, unsigned(stride, f"{where}.strides: {name}", 64))
    return made
