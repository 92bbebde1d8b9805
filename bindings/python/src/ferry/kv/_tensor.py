"""Where a tensor of a framework lies: its address, shape and strides, for `Layer.of`."""

from __future__ import annotations

import ctypes
from ctypes import addressof, c_uint64, sizeof
from typing import Any, NamedTuple

from .._devices import ITEM_TYPE
from .._errors import encoded, invalid, unsigned
from ._abi import CTensor


class Tensor(NamedTuple):
    """A tensor, whose dimensions `order` names from the outermost."""

    order: str
    address: int
    element_bytes: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """Bytes from one element of a dimension to the next; None for a contiguous tensor."""


def tensor_of(source: Any, order: str) -> Tensor:
    """Reads a tensor of torch, or an array with numpy's or CUDA's array interface."""
    # First, because the other protocols of a torch tensor may raise.
    if callable(getattr(source, "data_ptr", None)) and callable(getattr(source, "stride", None)):
        size = source.element_size()
        strides = tuple(size * step for step in source.stride())
        return Tensor(order, source.data_ptr(), size, tuple(source.shape), strides)
    said = getattr(source, "__array_interface__", None) or getattr(source, "__cuda_array_interface__", None)
    item = ITEM_TYPE.match(said["typestr"]) if said else None
    if said is None or item is None:
        raise invalid(
            "tensor must be a tensor of torch, or have __array_interface__ or __cuda_array_interface__, "
            f"not {type(source).__name__}"
        )
    return Tensor(order, said["data"][0], int(item[1]), tuple(said["shape"]), said.get("strides"))


def c_tensor(tensor: Tensor) -> tuple[CTensor, object]:
    """Returns the library's struct, and what must live as long."""
    shape = _numbers(tensor.shape, "tensor.shape")
    strides = None if tensor.strides is None else _numbers(tensor.strides, "tensor.strides")
    made = CTensor(
        sizeof(CTensor),
        tensor.element_bytes,
        tensor.address,
        encoded(tensor.order, "order"),
        len(shape),
        addressof(shape),
        None if strides is None else addressof(strides),
    )
    return made, (shape, strides)


def _numbers(values: tuple[int, ...], name: str) -> ctypes.Array[c_uint64]:
    return (c_uint64 * len(values))(*(unsigned(value, name, 64) for value in values))
