"""Blocks of layers of equal shape: the places of a cache on both sides, given once."""

from __future__ import annotations

from ctypes import addressof, sizeof
from typing import TYPE_CHECKING, Any

from ._abi import CUniformBlocks
from ._buffers import Pin, numbers
from ._errors import invalid

if TYPE_CHECKING:
    from ._memory import Memory
    from ._peer import RemoteRegion
    from ._requests import Numbers


class LayerBlocks:
    """Blocks of some layers, for one transfer; `UniformBlocks.blocks` makes it."""

    __slots__ = ("_held", "_c", "_address")

    def __init__(self, c: CUniformBlocks, held: list[Any]) -> None:
        self._held = held
        self._c = c
        self._address = addressof(c)

    def __del__(self) -> None:
        for pin in self._held:
            pin.release()


class UniformBlocks:
    """Two caches of equal shape, in which each layer begins `layer_bytes` after the one before; see
    ferry_uniform_blocks in ferry.h.

    `local` is a `Memory` or an address, `remote` a region of the peer; layer 0 begins at the start of each.
    Blocks of `block_bytes` follow each other without gaps. The other arguments are for caches whose strides
    differ: `remote_layer_bytes` for the peer, `local_stride` and `remote_stride` from one block to the next.
    """

    __slots__ = ("_fields",)

    def __init__(
        self,
        local: Memory | int,
        remote: RemoteRegion,
        *,
        layer_bytes: int,
        block_bytes: int,
        remote_layer_bytes: int | None = None,
        local_stride: int = 0,
        remote_stride: int = 0,
    ) -> None:
        self._fields: dict[str, Any] = {
            "local_base": local if isinstance(local, int) else local.address,
            "remote_base": remote.address,
            "local_layer_stride": layer_bytes,
            "remote_layer_stride": layer_bytes if remote_layer_bytes is None else remote_layer_bytes,
            "local_stride": local_stride,
            "remote_stride": remote_stride,
            "block_bytes": block_bytes,
            "remote_region": remote.handle,
        }

    def blocks(self, layers: int | range, local: int | Numbers, remote: Numbers | None = None) -> LayerBlocks:
        """Returns blocks of one layer, or of a range of layers, for `submit_write_blocks` and
        `submit_read_blocks`.

        `local` is a number, for that many blocks from the first on, or a list of ids; `remote` are the ids
        of the peer's blocks, paired with `local`. Arrays of 32 or 64-bit integers are used in place.
        """
        numbered = range(layers, layers + 1) if isinstance(layers, int) else layers
        if numbered.step != 1 or not 0 <= numbered.start <= numbered.stop < 2**63:
            raise invalid(f"layers: {layers!r} is not a number or a range of ascending layers")
        made = CUniformBlocks(
            struct_size=sizeof(CUniformBlocks), first_layer=numbered.start, layer_count=len(numbered)
        )
        for name, value in self._fields.items():
            if not 0 <= value < 2**64:
                raise invalid(f"{name}: {value} is not 0 to 2**64 - 1")
            setattr(made, name, value)
        held: list[Any] = []
        if isinstance(local, int):
            if remote is not None:
                raise invalid("remote: ids of the peer's blocks need a list of ids in local")
            if not 0 <= local < 2**63:
                raise invalid(f"local: {local} is no number of blocks")
            made.pair_count = local
            return LayerBlocks(made, held)
        ids = [numbers(local, "local", (4, 8)), numbers([] if remote is None else remote, "remote", (4, 8))]
        if ids[0].itemsize != ids[1].itemsize or len(ids[0]) != len(ids[1]):
            raise invalid(
                f"local and remote differ: {len(ids[0])} ids of {ids[0].itemsize} bytes, "
                f"{len(ids[1])} of {ids[1].itemsize}"
            )
        made.id_bytes = ids[0].itemsize
        made.pair_count = len(ids[0])
        for name, view in zip(("local_blocks", "remote_blocks"), ids, strict=True):
            pin = Pin(view, name)
            held.append(pin)
            setattr(made, name, pin.address)
        return LayerBlocks(made, held)
