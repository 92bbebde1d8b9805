"""The C ABI: the library, the layout of its structs, and the types of its functions.

This module mirrors include/ferry.h, kv/_abi.py mirrors ferry_kv.h, and tests/test_abi.py compares them.
Pointers are declared as void *, so that a computed address can be passed as a plain number.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_char, c_char_p, c_int, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import NamedTuple

FOREVER = 2**64 - 1
NO_INDEX = 2**64 - 1

CHANNELS_MAX = 16

READ = 1
WRITE = 2

QUEUE_TRANSFERS = 1
QUEUE_NOTIFICATIONS = 2
QUEUE_PEERS = 4
QUEUE_PEER_STATES = 8

FLAG_NO_COALESCE = 1
FLAG_ORDERED = 2
FLAG_CHECKSUM = 4
FLAG_ACKED_ONLY = 8
FLAG_DURABLE = 16

RESULTS_ALL = 0
RESULTS_FAILED = 1

DIRECTORY_NO_WAIT = 1


class CError(ctypes.Structure):
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


class CRegionOptions(ctypes.Structure):
    """ferry_region_options and ferry_alloc_options: `extra` is grant_scope or flags."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("access", c_uint32),
        ("kind", c_uint32),
        ("device", c_int32),
        ("extra", c_uint32),
        ("reserved", c_uint32),
        ("name", c_char_p),
    ]


class CPeerInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("state", c_uint32),
        ("engine_id", c_uint8 * 16),
        ("incarnation", c_uint64),
        ("round_trip_ns", c_uint64),
        ("transfers_active", c_uint64),
        ("lanes", c_uint32),
        ("same_host", c_uint32),
        ("address", c_char * 264),
    ]


class CRegionInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("access", c_uint32),
        ("region", c_uint64),
        ("address", c_uint64),
        ("length", c_uint64),
        ("name", c_char * 64),
        ("kind", c_uint32),
        ("device", c_int32),
        ("order", c_uint64),
    ]


class CPathInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("transport", c_uint32),
        ("chosen", c_uint32),
        ("reserved", c_uint32),
        ("why", c_char * 240),
    ]


class CTransferOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("deadline_ns", c_uint64),
        ("user_data", c_uint64),
        ("queue", c_uint64),
        ("notify", c_void_p),
        ("notify_length", c_size_t),
        ("transports_allowed", c_uint64),
        ("priority", c_uint32),
        ("event_kind", c_uint32),
        ("event", c_uint64),
        ("channel", c_uint32),
        ("reserved", c_uint32),
    ]


class CRequestResult(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("status", c_int32),
        ("request_index", c_uint64),
        ("bytes_confirmed", c_uint64),
        ("os_error", c_int32),
        ("vendor_error", c_int32),
        ("transport", c_uint32),
        ("reserved", c_uint32),
    ]


class CResult(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("state", c_uint32),
        ("status", c_int32),
        ("fence", c_uint32),
        ("notification", c_uint32),
        ("transport", c_uint32),
        ("os_error", c_int32),
        ("reserved", c_uint32),
        ("user_data", c_uint64),
        ("bytes_confirmed", c_uint64),
        ("requests_failed", c_uint64),
        ("requests_in", c_uint64),
        ("slices_out", c_uint64),
        ("submitted_ns", c_uint64),
        ("started_ns", c_uint64),
        ("finished_ns", c_uint64),
    ]


class CBlocks(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("id_bytes", c_uint32),
        ("layer_count", c_size_t),
        ("local_base", c_void_p),
        ("remote_base", c_void_p),
        ("local_stride", c_void_p),
        ("remote_stride", c_void_p),
        ("block_bytes", c_void_p),
        ("remote_region", c_void_p),
        ("pair_count", c_size_t),
        ("local_blocks", c_void_p),
        ("remote_blocks", c_void_p),
    ]


class CUniformBlocks(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("id_bytes", c_uint32),
        ("first_layer", c_size_t),
        ("layer_count", c_size_t),
        ("local_base", c_uint64),
        ("remote_base", c_uint64),
        ("local_layer_stride", c_uint64),
        ("remote_layer_stride", c_uint64),
        ("local_stride", c_uint64),
        ("remote_stride", c_uint64),
        ("block_bytes", c_uint64),
        ("remote_region", c_uint64),
        ("pair_count", c_size_t),
        ("local_blocks", c_void_p),
        ("remote_blocks", c_void_p),
    ]


class CEvent(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_uint32),
        ("peer", c_uint64),
        ("transfer", c_uint64),
        ("user_data", c_uint64),
        ("status", c_int32),
        ("os_error", c_int32),
        ("data", c_void_p),
        ("data_length", c_size_t),
        ("region", c_uint64),
        ("address", c_uint64),
        ("length", c_uint64),
        ("channel", c_uint32),
        ("reserved", c_uint32),
    ]


class Stats(NamedTuple):
    """Counters since the engine was opened, and current numbers of objects; ferry_stats in ferry.h says of
    what."""

    transfers_submitted: int
    transfers_done: int
    transfers_failed: int
    transfers_cancelled: int
    transfers_timed_out: int
    requests_in: int
    slices_out: int
    bytes_written: int
    bytes_read: int
    bytes_applied: int
    bytes_served: int
    requests_refused: int
    notifications_received: int
    sessions_up: int
    sessions_lost: int
    lanes_lost: int
    handshakes_refused: int
    late_applies: int
    send_calls: int
    receive_calls: int
    peers_up: int
    regions: int
    transfers: int
    bytes_local: int
    bytes_device: int


class CStats(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        *[(name, c_uint64) for name in Stats._fields],
    ]


class CSetting(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("key", c_char_p),
        ("variable", c_char_p),
        ("default_value", c_char_p),
        ("valid", c_char_p),
        ("description", c_char_p),
    ]


class CDirectoryOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("ttl_s", c_uint32),
        ("open_timeout_ms", c_uint32),
        ("flags", c_uint32),
        ("user", c_char_p),
        ("password", c_char_p),
        ("ca_file", c_char_p),
        ("cert_file", c_char_p),
        ("key_file", c_char_p),
    ]


class CDirectoryEntry(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("has_identity", c_uint32),
        ("engine_id", c_uint8 * 16),
        ("incarnation", c_uint64),
        ("name", c_char * 264),
        ("address", c_char * 264),
    ]


class CDirectoryInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("is_connected", c_uint32),
        ("cut_off_ms", c_uint64),
        ("entries", c_uint64),
        ("ignored", c_uint64),
        ("names", c_uint32),
        ("names_published", c_uint32),
        ("sessions", c_uint64),
        ("why", c_char * 240),
    ]


# The arguments of each function, one letter each: p a pointer, s a text, u 32 bits, i 64 bits, z a size_t,
# t a status.
# Functions of the first list return a status and take the error last, which the letters omit.
_FALLIBLE = {
    "config_new": "p",
    "config_set": "pss",
    "config_get": "pspzp",
    "config_settings": "pzzp",
    "engine_open": "pp",
    "engine_close": "pi",
    "engine_address": "ppzp",
    "engine_own_peer": "pp",
    "engine_warnings": "ppzp",
    "engine_get_stats": "pp",
    "engine_metrics": "ppzp",
    "region_register": "ppzpp",
    "region_register_batch": "pppzpp",
    "region_register_file": "piiippp",
    "region_unregister": "pii",
    "memory_alloc": "pzppp",
    "memory_free": "pii",
    "peer_get_info": "pip",
    "peer_regions": "pipzzp",
    "peer_region": "pisp",
    "peer_paths": "pipzzp",
    "peer_connect": "psip",
    "peer_connect_async": "psiii",
    "peer_list": "ppzp",
    "peer_probe": "piip",
    "peer_fence": "pii",
    "peer_close": "pii",
    "descriptor_export": "ppzp",
    "descriptor_import": "ppzip",
    "transfer_results": "piupzzp",
    "transfer_submit": "piupzpp",
    "transfer_submit_blocks": "piuppp",
    "transfer_submit_uniform": "piuppp",
    "transfer_wait": "piip",
    "transfer_wait_any": "ppzip",
    "transfer_wait_all": "ppzip",
    "transfer_progress": "pipp",
    "transfer_cancel": "pi",
    "transfer_release": "pi",
    "transfer_stream_wait": "piiu",
    "transfer_run": "piupzpipp",
    "queue_create_channel": "puzup",
    "queue_fd": "pip",
    "queue_drain": "pipzzp",
    "queue_wait": "piipzzp",
    "queue_destroy": "pi",
    "directory_open": "pspp",
    "directory_register": "psi",
    "directory_unregister": "psi",
    "directory_lookup": "psp",
    "directory_connect": "psip",
    "directory_list": "pspzzp",
    "directory_poll": "ppp",
    "directory_fd": "pp",
    "directory_get_info": "pp",
    "directory_close": "p",
}
_PLAIN = {"config_free": "p", "engine_free": "p", "event_release": "p", "directory_free": "p"}
_LETTERS = {"p": c_void_p, "s": c_char_p, "u": c_uint32, "i": c_uint64, "z": c_size_t, "t": c_int32}


_AT_SECURE = 23


def _is_privileged() -> bool:
    """True if this process has more rights than its caller, who must then not choose the library."""
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
    return bool(getauxval(_AT_SECURE))


def _path() -> str:
    """Returns the path of the library: beside this file, or the one that FERRY_LIBRARY names."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libferry.so")
    return beside if _is_privileged() else os.environ.get("FERRY_LIBRARY") or beside


def declare(opened: ctypes.CDLL, fallible: dict[str, str], plain: dict[str, str]) -> None:
    """Tells ctypes the types of functions; the letters are those of _FALLIBLE and _PLAIN."""
    for name, letters in fallible.items():
        function = getattr(opened, "ferry_" + name)
        function.argtypes = [_LETTERS[letter] for letter in letters] + [c_void_p]
        function.restype = c_int
    for name, letters in plain.items():
        function = getattr(opened, "ferry_" + name)
        function.argtypes = [_LETTERS[letter] for letter in letters]
        function.restype = None


def _load() -> ctypes.CDLL:
    """Opens the library. CDLL releases the interpreter's lock during each call."""
    opened = ctypes.CDLL(_path())
    declare(opened, _FALLIBLE, _PLAIN)
    opened.ferry_status_name.argtypes = [c_int32]
    opened.ferry_status_name.restype = c_char_p
    opened.ferry_version.argtypes = []
    opened.ferry_version.restype = c_char_p
    return opened


library = _load()
