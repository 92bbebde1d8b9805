"""A program's use of a device library: one of the stand-ins of tests/standin, as ferry opens it.

FERRY_TEST_STANDIN names the folder that tests/standin/build.sh made; test.sh sets it.
"""

from __future__ import annotations

import ctypes
import os
import time
from ctypes import POINTER, addressof, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from types import SimpleNamespace
from typing import Any, NamedTuple

from ferry import MemoryKind, StartAfter, Transport

PATIENCE_S = 30


class Library(NamedTuple):
    """A device library, and the names that belong to it."""

    folder: str
    file: str
    kind: MemoryKind
    transport: Transport
    event: StartAfter
    stream: StartAfter
    # The word in attributes of torch's events and streams, and in locations.
    word: str

    @property
    def name(self) -> str:
        return self.kind.name.lower()

    def path(self, file: str) -> str:
        folder = os.environ.get("FERRY_TEST_STANDIN")
        assert folder, "FERRY_TEST_STANDIN names no folder: tests/standin/build.sh FOLDER makes one"
        path = os.path.join(folder, self.folder, file)
        assert os.path.exists(path), f"there is no {path}"
        return path

    def settings(self) -> dict[str, str]:
        """The settings with which an engine opens the library."""
        return {f"{self.name}_library": self.path(self.file)}


CUDA = Library(
    "cuda-12.8",
    "libcuda.so.1",
    MemoryKind.CUDA,
    Transport.CUDA,
    StartAfter.CUDA_EVENT,
    StartAfter.CUDA_STREAM,
    "cuda",
)
ASCEND = Library(
    "cann-9.1",
    "libascendcl.so",
    MemoryKind.ASCEND,
    Transport.ASCEND,
    StartAfter.ACL_EVENT,
    StartAfter.ACL_STREAM,
    "npu",
)
LIBRARIES = (CUDA, ASCEND)


class _Stream(ctypes.Structure):
    """program_stream of tests/standin/program/program.h."""

    _fields_ = [("handle", c_void_p), ("event", c_void_p), ("staged", c_void_p)]


class Program:
    """Devices and their memory; the library itself copies. For one thread."""

    def __init__(self, library: Library) -> None:
        self.library = library
        # The program's functions, and those of the device library that it is linked with.
        self.functions: Any = ctypes.CDLL(library.path("libprogram.so"))
        self.functions.program_alloc.restype = c_uint64
        self.functions.program_end.restype = ctypes.c_long
        self.functions.program_stream_make.restype = POINTER(_Stream)
        self._streams: list[Stream] = []
        self.functions.program_begin()

    def close(self) -> int:
        """Frees everything made here except memory. Returns the number of the library's complaints: objects
        that were not freed in this process, and other errors."""
        for stream in self._streams:
            stream.close()
        return int(self.functions.program_end())

    def alloc(self, length: int, device: int = 0) -> int:
        return int(self.functions.program_alloc(c_int(device), c_size_t(length)))

    def free(self, address: int) -> None:
        self.functions.program_free(c_uint64(address))

    def write(self, address: int, data: bytes) -> None:
        self.functions.program_put(c_uint64(address), c_char_p(data), c_size_t(len(data)))

    def read(self, address: int, length: int) -> bytes:
        into = ctypes.create_string_buffer(length)
        self.functions.program_get(into, c_uint64(address), c_size_t(length))
        return into.raw

    def stream(self, length: int = 4096) -> Stream:
        made = Stream(self.functions, length)
        self._streams.append(made)
        return made

    def set(self, knob: str, value: str) -> None:
        """Changes a knob of the stand-in; tests/standin/README.md lists them."""
        assert self.functions.standin_set(knob.encode(), value.encode()) == 0

    def calls(self, function: str) -> int:
        """Returns how often the function was called in this process, by any caller."""
        return int(self.functions.standin_calls(function.encode()))


class Stream:
    """A stream of device 0 whose later work can be held up."""

    def __init__(self, functions: Any, length: int) -> None:
        self._functions = functions
        self._made = functions.program_stream_make(c_size_t(length))
        self.handle: int = self._made.contents.handle

    def close(self) -> None:
        self._functions.program_stream_end(self._made)

    def block(self) -> None:
        """Makes the work that the stream is given from now on wait for `go`."""
        self._functions.program_stream_block(self._made)

    def go(self) -> None:
        self._functions.program_stream_go(self._made)

    def write(self, address: int, data: bytes) -> None:
        """Makes the stream copy data of the stream's length to a device."""
        ctypes.memmove(self._made.contents.staged, data, len(data))
        self._functions.program_stream_write(self._made, c_uint64(address))

    def read(self, address: int) -> None:
        """Makes the stream copy from a device; `staged` has the data when the stream is done."""
        self._functions.program_stream_read(self._made, c_uint64(address))

    def staged(self, length: int) -> bytes:
        return ctypes.string_at(self._made.contents.staged, length)

    def record(self) -> int:
        """Returns the stream's event, recorded after all work that the stream was given so far."""
        self._functions.program_stream_record(self._made)
        return int(self._made.contents.event)

    def is_done(self) -> bool:
        return bool(self._functions.program_stream_is_done(self._made))

    def wait(self) -> None:
        until = time.monotonic() + PATIENCE_S
        while not self.is_done():
            assert time.monotonic() < until, "the stream is stuck"
            os.sched_yield()


# --- Objects that look like those of other libraries
# ---------------------------------------------------------


class CudaArray:
    """Looks like an array of CuPy or Numba."""

    def __init__(self, address: int, length: int, **changed: Any) -> None:
        said = {"data": (address, False), "shape": (length,), "typestr": "|u1", "version": 3, "stream": 1}
        self.__cuda_array_interface__ = {**said, **changed}


class Tensor:
    """Looks like a torch tensor, on any device."""

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


class NpuTensor(Tensor):
    """Looks like a torch_npu tensor: its device is npu, which DLPack counts as an extension."""

    device = SimpleNamespace(type="npu", index=0)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 12, self.device.index

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("no DLPack of an NPU's tensor")


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
    """Looks like an array of any library with DLPack: elements of 4 bytes, at `offset` from its pointer."""

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
        # Registration needs no work in a stream; pinned host memory has no stream.
        assert options.get("stream", 0) == (0 if self.kind == 3 else -1), options
        name = b"dltensor" if self.version is None else b"dltensor_versioned"
        return _new_capsule(addressof(self._made), name, None)
