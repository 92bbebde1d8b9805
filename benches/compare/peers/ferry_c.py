"""The part of include/ferry.h that the benchmark uses, in ctypes. test_peers.py compares the structs with the
header as a C compiler sees it."""

import ctypes
from ctypes import POINTER, c_char, c_char_p, c_int32, c_size_t, c_uint32, c_uint64, c_void_p

OK = 0
FOREVER = 2**64 - 1
OP = {"READ": 1, "WRITE": 2}
ERR_UNAVAILABLE = -402
ERR_UNSUPPORTED = -107
TRANSPORTS = {0: "none", 1: "tcp", 2: "local", 3: "rdma", 4: "cuda", 5: "ascend"}


class Error(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("status", c_int32),
        ("os_error", c_int32),
        ("vendor_error", c_int32),
        ("request_index", c_uint64),
        ("transport", c_uint32),
        ("reserved", c_uint32),
        ("message", c_char * 256),
    ]


class Request(ctypes.Structure):
    _fields_ = [("local", c_uint64), ("remote", c_uint64), ("length", c_uint64), ("remote_region", c_uint64)]


class PathInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("transport", c_uint32),
        ("chosen", c_uint32),
        ("reserved", c_uint32),
        ("why", c_char * 240),
    ]


STRUCTS = {"ferry_error": Error, "ferry_request": Request, "ferry_path_info": PathInfo}

engine_t, config_t, error_t = c_void_p, c_void_p, POINTER(Error)
SIGNATURES = {
    "ferry_config_new": [POINTER(config_t), error_t],
    "ferry_config_set": [config_t, c_char_p, c_char_p, error_t],
    "ferry_config_free": [config_t],
    "ferry_engine_open": [config_t, POINTER(engine_t), error_t],
    "ferry_engine_close": [engine_t, c_uint64, error_t],
    "ferry_engine_free": [engine_t],
    "ferry_engine_address": [engine_t, c_char_p, c_size_t, POINTER(c_size_t), error_t],
    "ferry_region_register": [engine_t, c_void_p, c_size_t, c_void_p, POINTER(c_uint64), error_t],
    "ferry_memory_alloc": [engine_t, c_size_t, c_void_p, POINTER(c_void_p), POINTER(c_uint64), error_t],
    "ferry_peer_connect": [engine_t, c_char_p, c_uint64, POINTER(c_uint64), error_t],
    "ferry_peer_paths": [engine_t, c_uint64, c_void_p, c_size_t, c_size_t, POINTER(c_size_t), error_t],
    "ferry_transfer_submit": [
        engine_t, c_uint64, c_uint32, c_void_p, c_size_t, c_void_p, POINTER(c_uint64), error_t,
    ],
    "ferry_transfer_wait": [engine_t, c_uint64, c_uint64, c_void_p, error_t],
    "ferry_transfer_release": [engine_t, c_uint64, error_t],
    "ferry_write": [engine_t, c_uint64, c_void_p, c_size_t, c_void_p, c_void_p, error_t],
    "ferry_read": [engine_t, c_uint64, c_void_p, c_size_t, c_void_p, c_void_p, error_t],
}
NOTHING_RETURNED = ("ferry_config_free", "ferry_engine_free")


def load(path):
    """Returns the library, with the types of the functions that are called."""
    library = ctypes.CDLL(path)
    for name, arguments in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = None if name in NOTHING_RETURNED else c_int32
    library.ferry_status_name.argtypes = [c_int32]
    library.ferry_status_name.restype = c_char_p
    library.ferry_version.restype = c_char_p
    return library


def new_error():
    error = Error()
    error.struct_size = ctypes.sizeof(Error)
    return error
