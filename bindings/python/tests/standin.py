"""A program's use of a CUDA driver: the stand-in of tests/standin, as ferry opens it.

FERRY_TEST_STANDIN names the folder that tests/standin/build.sh made; test.sh sees to that.
"""

from __future__ import annotations

import ctypes
import os
import time
from ctypes import addressof, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

NOT_READY = 600
PATIENCE_S = 30


def library() -> str:
    """Its path, as the setting cuda_library takes it."""
    folder = os.environ.get("FERRY_TEST_STANDIN")
    assert folder, "FERRY_TEST_STANDIN names no folder: tests/standin/build.sh FOLDER makes one"
    path = os.path.join(folder, "cuda-12.8", "libcuda.so.1")
    assert os.path.exists(path), f"there is no {path}"
    return path


class Cuda:
    """Devices, their memory, streams and events; copies by the driver itself. For one thread."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL(library())
        self._contexts: dict[int, c_void_p] = {}
        # What `close` is to call, and with what.
        self._made: list[tuple[str, c_void_p]] = []
        self("cuInit", c_uint(0))
        self.use(0)

    def __call__(self, function: str, *arguments: Any, allowed: tuple[int, ...] = (0,)) -> int:
        code: int = getattr(self._driver, function)(*arguments)
        assert code in allowed, f"{function}: {code}"
        return code

    def use(self, device: int) -> None:
        """What is made from here on is of this device."""
        if device not in self._contexts:
            context = c_void_p()
            self("cuDevicePrimaryCtxRetain", byref(context), c_int(device))
            self._contexts[device] = context
        self("cuCtxSetCurrent", self._contexts[device])

    def keep(self, made: c_void_p, undo: str) -> int:
        self._made.append((undo, made))
        return made.value or 0

    def close(self) -> None:
        """Gives back everything that was made here, and nothing else."""
        for undo, made in reversed(self._made):
            self(undo, made)
        # A thread whose context is gone can't ask the driver anything.
        self("cuCtxSetCurrent", None)
        for device in self._contexts:
            self("cuDevicePrimaryCtxRelease_v2", c_int(device))

    def complaints(self) -> int:
        """How many things have not been given back to the driver in this process, and what else it saw."""
        return int(self._driver.standin_audit())

    def alloc(self, length: int, device: int = 0) -> int:
        address = c_uint64()
        self.use(device)
        self("cuMemAlloc_v2", byref(address), c_size_t(length))
        return address.value

    def managed(self, length: int) -> int:
        address = c_void_p()
        self("cuMemAllocManaged", byref(address), c_size_t(length), c_uint(1))
        return self.keep(address, "cuMemFree_v2")

    def pinned(self, length: int) -> int:
        address = c_void_p()
        self("cuMemHostAlloc", byref(address), c_size_t(length), c_uint(0))
        return self.keep(address, "cuMemFreeHost")

    def free(self, address: int) -> None:
        self("cuMemFree_v2", c_uint64(address))

    def write(self, address: int, data: bytes) -> None:
        self("cuMemcpyHtoD_v2", c_uint64(address), c_char_p(data), c_size_t(len(data)))

    def read(self, address: int, length: int) -> bytes:
        into = ctypes.create_string_buffer(length)
        self("cuMemcpyDtoH_v2", into, c_uint64(address), c_size_t(length))
        return into.raw

    def event(self) -> int:
        event = c_void_p()
        self("cuEventCreate", byref(event), c_uint(2))
        return self.keep(event, "cuEventDestroy_v2")

    def calls(self, function: str) -> int:
        """How often it was called in this process, by whomever."""
        return int(self._driver.standin_calls(function.encode()))


class Stream:
    """A stream that can be held up, and what it is to do then."""

    def __init__(self, cuda: Cuda, length: int = 4096) -> None:
        self._cuda = cuda
        made = c_void_p()
        cuda("cuStreamCreate", byref(made), c_uint(1))
        self.handle = cuda.keep(made, "cuStreamDestroy_v2")
        self._gate = cuda.pinned(4096)
        self._staged = cuda.pinned(length)
        ctypes.memset(self._gate, 0, 4096)
        ctypes.memset(self._staged, 0, length)

    def block(self) -> None:
        """What is given to the stream from here on waits for `go`."""
        self._cuda(
            "cuStreamWaitValue32_v2", c_void_p(self.handle), c_uint64(self._gate), c_uint(1), c_uint(0)
        )

    def go(self) -> None:
        ctypes.c_uint32.from_address(self._gate).value = 1

    def write(self, address: int, data: bytes) -> None:
        """Has the stream copy data to a device."""
        ctypes.memmove(self._staged, data, len(data))
        staged, stream = c_void_p(self._staged), c_void_p(self.handle)
        self._cuda("cuMemcpyHtoDAsync_v2", c_uint64(address), staged, c_size_t(len(data)), stream)

    def read(self, address: int, length: int) -> None:
        """Has the stream copy from a device; `staged` has it when the stream is done."""
        staged, stream = c_void_p(self._staged), c_void_p(self.handle)
        self._cuda("cuMemcpyDtoHAsync_v2", staged, c_uint64(address), c_size_t(length), stream)

    def staged(self, length: int) -> bytes:
        return ctypes.string_at(self._staged, length)

    def record(self) -> int:
        """An event behind all that the stream was given so far."""
        event = self._cuda.event()
        self._cuda("cuEventRecord", c_void_p(event), c_void_p(self.handle))
        return event

    def is_done(self) -> bool:
        return self._cuda("cuStreamQuery", c_void_p(self.handle), allowed=(0, NOT_READY)) == 0

    def wait(self) -> None:
        until = time.monotonic() + PATIENCE_S
        while not self.is_done():
            assert time.monotonic() < until, "the stream is stuck"
            os.sched_yield()


# --- What other libraries' objects look like ----------------------------------------------------------------


class CudaArray:
    """As CuPy's and Numba's arrays."""

    def __init__(self, address: int, length: int, **changed: Any) -> None:
        said = {"data": (address, False), "shape": (length,), "typestr": "|u1", "version": 3, "stream": 1}
        self.__cuda_array_interface__ = {**said, **changed}


class Tensor:
    """As torch's, of any device."""

    def __init__(self, address: int, length: int, contiguous: bool = True) -> None:
        self.nbytes = length
        self._address = address
        self._contiguous = contiguous

    def data_ptr(self) -> int:
        return self._address

    def is_contiguous(self) -> bool:
        return self._contiguous

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        raise RuntimeError("a tensor that requires grad has none")


class _DlTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int),
        ("device_id", c_int),
        ("ndim", c_int),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", c_uint64),
        ("manager", c_void_p),
        ("deleter", c_void_p),
    ]


class _DlVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _DlTensor),
    ]


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.argtypes = [c_void_p, c_char_p, c_void_p]
_new_capsule.restype = ctypes.py_object


class DlpackArray:
    """As any library's that has DLPack: elements of 4 bytes, at `offset` from the pointer it tells."""

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        *,
        kind: int = 2,
        strides: tuple[int, ...] | None = None,
        offset: int = 0,
        bits: int = 32,
        version: int | None = 1,
        readonly: bool = False,
    ) -> None:
        self.kind, self.version = kind, version
        self._shape = (ctypes.c_int64 * len(shape))(*shape)
        self._strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        tensor = _DlTensor(data=address - offset, device_type=kind, ndim=len(shape), bits=bits)
        tensor.code, tensor.lanes, tensor.shape = 2, 1, self._shape
        if self._strides is not None:
            tensor.strides = self._strides
        tensor.byte_offset = offset
        self._made: Any = tensor
        if version is not None:
            self._made = _DlVersioned(major=version, flags=int(readonly), tensor=tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0

    def __dlpack__(self, **options: Any) -> Any:
        if self.version is None and "max_version" in options:
            raise TypeError("unexpected keyword argument 'max_version'")
        # Whoever only registers wants nothing done in a stream; locked memory of the host knows none.
        assert options.get("stream", 0) == (0 if self.kind == 3 else -1), options
        name = b"dltensor" if self.version is None else b"dltensor_versioned"
        return _new_capsule(addressof(self._made), name, None)
