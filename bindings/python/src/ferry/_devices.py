"""Finds device memory in the arrays of other libraries, and reads their events and streams.

_buffers.py does so for host memory. This module opens no device library: the engine detects the device of
an address.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from ctypes import (
    POINTER,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
    pythonapi,
)
from enum import IntEnum
from typing import Any, Protocol

from ._errors import Status, UnsupportedError, invalid
from ._results import MemoryKind


class StartAfter(IntEnum):
    """The kind of the handle that is given to `start_after`."""

    CUDA_EVENT = 1
    ACL_EVENT = 2
    CUDA_STREAM = 3
    ACL_STREAM = 4


class SupportsCudaArray(Protocol):
    """An array in memory of a CUDA device."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class SupportsDataPtr(Protocol):
    """A tensor of torch, or an object with its attributes."""

    @property
    def nbytes(self) -> int: ...

    def data_ptr(self) -> int: ...


class Held:
    """Device memory whose object is kept alive until `release`; ferry trusts the object's address."""

    __slots__ = ("_source", "address", "length", "readonly")

    def __init__(self, source: Any, address: int, length: int, readonly: bool) -> None:
        self._source = source
        self.address = address
        self.length = length
        self.readonly = readonly

    def release(self) -> None:
        self._source = None


def held(source: Any, name: str, writable: bool) -> Held | None:
    """Returns the memory of a device array or of a tensor; None if `source` is neither."""
    found = of_tensor(source, name) or of_cuda_array(source, name) or of_dlpack(source, name)
    if found is not None and writable and found.readonly:
        raise invalid(f"{name}: it is read-only, but access has REMOTE_WRITE")
    return found


def of_tensor(source: Any, name: str) -> Held | None:
    """Reads a torch tensor on any device. Comes first, because a tensor's other protocols may raise."""
    length = getattr(source, "nbytes", None)
    if not callable(getattr(source, "data_ptr", None)) or not isinstance(length, int):
        return None
    contiguous = getattr(source, "is_contiguous", None)
    if callable(contiguous) and not contiguous():
        raise invalid(f"{name}: it is not contiguous")
    return Held(source, source.data_ptr(), length, False)


ITEM_TYPE = re.compile(r"[<>|=][a-zA-Z](\d+)")


def of_cuda_array(source: Any, name: str) -> Held | None:
    """Reads versions 2 and 3 of the CUDA array interface. Does not wait for `stream`: nothing moves yet."""
    said = getattr(source, "__cuda_array_interface__", None)
    if said is None:
        return None
    of = f"{name}.__cuda_array_interface__"
    try:
        version, (address, readonly), shape = said["version"], said["data"], tuple(said["shape"])
        item = ITEM_TYPE.match(said["typestr"])
    except (KeyError, TypeError, ValueError) as error:
        raise invalid(f"{of}: {type(error).__name__}: {error}") from None
    if version not in (2, 3):
        raise invalid(f"{of} has version {version!r}, not 2 or 3")
    if item is None:
        raise invalid(f"{of} has typestr {said['typestr']!r}")
    if said.get("mask") is not None:
        raise invalid(f"{of} has a mask")
    if not isinstance(address, int) or not all(isinstance(count, int) and count >= 0 for count in shape):
        raise invalid(f"{of} has data {said['data']!r} and shape {shape!r}")
    strides = said.get("strides")
    length = dense_bytes(shape, None if strides is None else tuple(strides), int(item[1]), 1, name)
    return Held(source, address, length, bool(readonly))


def dense_bytes(
    shape: Sequence[int], strides: Sequence[int] | None, item_bytes: int, stride_bytes: int, name: str
) -> int:
    """Returns the length of a dense array in C order (the last index changes fastest); refuses any other.

    `strides` are in units of `stride_bytes`.
    """
    if strides is not None and len(strides) != len(shape):
        raise invalid(f"{name}: {len(strides)} strides for {len(shape)} dimensions")
    if 0 in shape:
        return 0
    length = item_bytes
    for index in reversed(range(len(shape))):
        # A dimension of length 1 has no step.
        if strides is not None and shape[index] > 1 and strides[index] * stride_bytes != length:
            raise invalid(f"{name}: it is not contiguous: shape {tuple(shape)}, strides {tuple(strides)}")
        length *= shape[index]
    return length


class _Tensor(ctypes.Structure):
    """DLTensor of DLPack."""

    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned of DLPack; the older DLManagedTensor begins with the tensor."""

    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    ]


_READ_ONLY = 1
_MAJOR = 1
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13
# No synchronisation with a stream: the code that moves the data says what to wait for.
_WITHOUT_WAITING = -1

_capsule_pointer = pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes = [py_object, c_char_p]
_capsule_pointer.restype = c_void_p
_is_capsule = pythonapi.PyCapsule_IsValid
_is_capsule.argtypes = [py_object, c_char_p]
_is_capsule.restype = c_int


def of_dlpack(source: Any, name: str) -> Held | None:
    """Reads CUDA memory by DLPack. Only reads the capsule, which stays its producer's."""
    if not hasattr(source, "__dlpack_device__") or not hasattr(source, "__dlpack__"):
        return None
    kind = int(source.__dlpack_device__()[0])
    if kind == _CPU:
        return None
    if kind not in (_CUDA, _CUDA_HOST, _CUDA_MANAGED):
        message = f"{name} is of DLPack device type {kind}; only CPU (1) and CUDA (2, 3, 13) are supported"
        raise UnsupportedError(Status.UNSUPPORTED, message)
    options: dict[str, Any] = {} if kind == _CUDA_HOST else {"stream": _WITHOUT_WAITING}
    try:
        try:
            capsule = source.__dlpack__(max_version=(_MAJOR, 0), **options)
        except TypeError:  # The producer is older than versioned DLPack.
            capsule = source.__dlpack__(**options)
    except BufferError as error:
        raise invalid(f"{name}: {error}") from None
    # The capsule owns the tensor that is read here, and lives until this function returns.
    tensor, readonly = tensor_of(capsule, name)
    ndim = tensor.ndim
    shape = tensor.shape[:ndim] if ndim > 0 else []
    strides = tensor.strides[:ndim] if tensor.strides and ndim > 0 else None
    item_bits = tensor.bits * tensor.lanes
    if item_bits % 8 != 0:
        raise invalid(f"{name}: its elements have {item_bits} bits, which are no whole bytes")
    length = dense_bytes(shape, strides, item_bits // 8, item_bits // 8, name)
    return Held(source, (tensor.data or 0) + tensor.byte_offset, length, readonly)


def tensor_of(capsule: Any, name: str) -> tuple[_Tensor, bool]:
    """Returns the tensor of a capsule, and whether it is read-only."""
    if _is_capsule(capsule, b"dltensor_versioned"):
        found = _Versioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if found.major != _MAJOR:
            raise invalid(f"{name}: its DLPack capsule has version {found.major}.{found.minor}")
        return found.tensor, bool(found.flags & _READ_ONLY)
    if _is_capsule(capsule, b"dltensor"):
        return _Tensor.from_address(_capsule_pointer(capsule, b"dltensor")), False
    raise invalid(f"{name}: __dlpack__ returned {type(capsule).__name__}, not an unused DLPack capsule")


# --- Events and streams -----------------------------------------------------------------------------------

_EVENTS = {"cuda_event": StartAfter.CUDA_EVENT, "npu_event": StartAfter.ACL_EVENT}
_STREAMS = {"cuda_stream": StartAfter.CUDA_STREAM, "npu_stream": StartAfter.ACL_STREAM}


def handle_of(value: Any, name: str) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**64:
        raise invalid(f"{name}: {value!r} is no handle")
    return int(value)


def point_of(source: Any, name: str) -> tuple[StartAfter, int]:
    """Returns the event or stream of `source`, and its kind."""
    if isinstance(source, tuple) and len(source) == 2:
        try:
            kind = StartAfter(source[0])
        except ValueError:
            raise invalid(f"{name}: {source[0]!r} is no StartAfter") from None
        return kind, handle_of(source[1], name)
    for attribute, kind in _EVENTS.items():
        found = getattr(source, attribute, None)
        if found is not None:
            handle = handle_of(found, f"{name}.{attribute}")
            if handle == 0:
                raise invalid(f"{name}.{attribute} is 0: the event has not been recorded")
            return kind, handle
    stream = stream_of(source, name)
    if stream is None:
        raise invalid(
            f"{name} must be an event or a stream (with cuda_event, cuda_stream, __cuda_stream__, npu_event "
            f"or npu_stream), or a StartAfter and a handle, not {type(source).__name__}"
        )
    return stream


def stream_of(source: Any, name: str) -> tuple[StartAfter, int] | None:
    for attribute, kind in _STREAMS.items():
        found = getattr(source, attribute, None)
        if found is not None:
            return kind, handle_of(found, f"{name}.{attribute}")
    protocol = getattr(source, "__cuda_stream__", None)
    if protocol is None:
        return None
    said = protocol() if callable(protocol) else protocol
    if not isinstance(said, tuple) or len(said) != 2 or said[0] != 0:
        raise invalid(f"{name}.__cuda_stream__ gave {said!r}, not version 0 and a handle")
    return StartAfter.CUDA_STREAM, handle_of(said[1], f"{name}.__cuda_stream__")


def stream_and_kind(source: Any, name: str) -> tuple[int, MemoryKind]:
    """Returns a stream that must wait, and its kind. A number is a CUDA stream."""
    if isinstance(source, int):
        return handle_of(source, name), MemoryKind.CUDA
    stream = stream_of(source, name)
    if stream is None:
        raise invalid(
            f"{name} must be a CUDA stream's handle, or have cuda_stream or __cuda_stream__, "
            f"not {type(source).__name__}"
        )
    return stream[1], MemoryKind.CUDA if stream[0] is StartAfter.CUDA_STREAM else MemoryKind.ASCEND
