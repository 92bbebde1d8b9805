"""Finds the bytes of Python objects in host memory, and pins them. _devices.py does so for device memory."""

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_ssize_t, c_void_p, py_object, pythonapi
from typing import TYPE_CHECKING, Any, Protocol, Union

from ._errors import invalid

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from ._devices import SupportsCudaArray, SupportsDataPtr


class SupportsDlpack(Protocol):
    """An array of another library, in host memory or in memory of a CUDA device."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> tuple[int, int]: ...


class SupportsArrayInterface(Protocol):
    """numpy's arrays; their type declares the buffer protocol only from Python 3.12 on."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


Registrable = Union["Buffer", SupportsArrayInterface, SupportsDlpack, "SupportsCudaArray", "SupportsDataPtr"]


class _PyBuffer(ctypes.Structure):
    """Py_buffer of CPython."""

    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("suboffsets", c_void_p),
        ("internal", c_void_p),
    ]


_get_buffer = pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [py_object, POINTER(_PyBuffer), c_int]
_get_buffer.restype = c_int
_release_buffer = pythonapi.PyBuffer_Release
_release_buffer.argtypes = [POINTER(_PyBuffer)]
_release_buffer.restype = None


def host_buffer(source: Any, name: str) -> Any:
    """Returns `source`, or an array on its memory, with the buffer protocol."""
    try:
        memoryview(source)
        return source
    except (TypeError, BufferError, ValueError):
        if not hasattr(source, "__dlpack__"):
            raise invalid(f"{name} has no buffer protocol: {type(source).__name__}") from None
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise invalid(f"{name} has DLPack but no buffer protocol: import numpy first, which ferry uses")
    return numpy.from_dlpack(source)


class Pin:
    """Keeps a buffer in place until `release`. Has no finaliser: memory that a peer may still touch must
    leak rather than move."""

    __slots__ = ("_view", "address", "length")

    def __init__(self, source: Any, name: str, writable: bool = False) -> None:
        self._view = _PyBuffer()
        try:
            _get_buffer(source, byref(self._view), 1 if writable else 0)
        except (TypeError, BufferError, ValueError) as error:
            raise invalid(f"{name}: {error}") from None
        self.address: int = self._view.buf or 0
        self.length: int = self._view.len

    @property
    def readonly(self) -> bool:
        return bool(self._view.readonly)

    def release(self) -> None:
        _release_buffer(byref(self._view))


_NUMBERS = frozenset("iIlLqQ")


def numbers(source: Any, name: str, item_bytes: tuple[int, ...] = (8,)) -> memoryview:
    """Returns a one-dimensional, contiguous buffer of integers without a copy; copies other sequences."""
    try:
        view = memoryview(source)
    except TypeError:
        return memoryview(integers(source, name))
    letter = view.format.lstrip("@=<")
    if letter not in _NUMBERS or view.itemsize not in item_bytes or view.ndim != 1 or not view.c_contiguous:
        wanted = " or ".join(str(8 * size) for size in item_bytes)
        raise invalid(
            f"{name} must be one-dimensional, contiguous integers of {wanted} bits, "
            f"not format {view.format!r} in {view.ndim} dimensions with strides {view.strides}"
        )
    return view


def integers(source: Sequence[int], name: str) -> array[int]:
    try:
        # "Q" is as wide, but takes more than twice as long.
        return array("L", source)
    except (TypeError, OverflowError) as error:
        raise invalid(f"{name}: {error}") from None
