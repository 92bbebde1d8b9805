"""The part of the C ABI that is in ferry_pool.h: structs, and the types of functions.

tests/test_abi.py compares this module with the header. ferry/_abi.py has the library and the rules.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_char_p, c_int64, c_uint8, c_uint32, c_uint64, c_void_p
from typing import NamedTuple

from .._abi import declare, library

PREFIX = 1
EXTRA_LORA = 1
EXTRA_SALT = 2
EXTRA_IMAGE = 3


class CKey(ctypes.Structure):
    _fields_ = [("bytes", c_uint8 * 32)]


class CHash(ctypes.Structure):
    _fields_ = [("bytes", c_uint8 * 32)]


class CPair(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("value", c_char_p), ("value_length", c_uint64)]


class CIdentity(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("tenant", c_char_p),
        ("model", c_char_p),
        ("revision", c_char_p),
        ("dtype", c_char_p),
        ("scales", c_char_p),
        ("scales_length", c_uint64),
        ("rope", c_char_p),
        ("rope_length", c_uint64),
        ("pairs", c_void_p),
        ("pair_count", c_uint64),
        ("secret", c_char_p),
        ("secret_length", c_uint64),
    ]


class CExtra(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_uint32),
        ("bytes", c_char_p),
        ("length", c_uint64),
        ("first_token", c_int64),
        ("token_count", c_uint32),
        ("reserved", c_uint32),
    ]


class CChainOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("chunk_tokens", c_uint32),
        ("parent", c_char_p),
        ("extras", c_void_p),
        ("extra_count", c_uint64),
    ]


class CQuota(ctypes.Structure):
    _fields_ = [
        ("tenant", c_char_p),
        ("secret", c_char_p),
        ("secret_length", c_uint64),
        ("bytes", c_uint64),
    ]


class COptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("chunk_tokens", c_uint32),
        ("name", c_char_p),
        ("cluster", c_char_p),
        ("nodes", c_void_p),
        ("node_count", c_uint64),
        ("memory_bytes", c_uint64),
        ("unit_bytes", c_uint64),
        ("replicas", c_uint32),
        ("redial_ms", c_uint32),
        ("file", c_char_p),
        ("file_bytes", c_uint64),
        ("directory", c_char_p),
        ("directory_ttl_s", c_uint32),
        ("directory_timeout_ms", c_uint32),
        ("quotas", c_void_p),
        ("quota_count", c_uint64),
    ]


class CNodeInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("is_member", c_uint32),
        ("id", c_uint64),
        ("capacity", c_uint64),
        ("free", c_uint64),
        ("name", c_char * 264),
        ("address", c_char * 264),
        ("why", c_char * 240),
    ]


class CRange(ctypes.Structure):
    _fields_ = [("address", c_uint64), ("length", c_uint64)]


class CValue(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("key", CKey),
        ("memory", c_void_p),
        ("memory_count", c_uint64),
    ]


class CCallOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("user_data", c_uint64),
        ("preferred", c_char_p),
        ("replicas", c_uint32),
        ("reserved", c_uint32),
    ]


class CResult(ctypes.Structure):
    _fields_ = [("outcome", c_uint32), ("reserved", c_uint32), ("bytes", c_uint64), ("node", c_uint64)]


class CEvent(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("user_data", c_uint64),
        ("results", c_void_p),
        ("result_count", c_uint64),
    ]


class CCut(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("chunk_tokens", c_uint32),
        ("head_parts", c_uint32),
        ("layer_parts", c_uint32),
        ("arrangement", c_uint32),
        ("reserved", c_uint32),
    ]


class CCostOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("chunk_tokens", c_uint32),
        ("value_bytes", c_uint64),
        ("prefill_tokens_per_s", c_uint64),
    ]


class CCost(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("is_known", c_uint32),
        ("keys", c_uint64),
        ("bytes", c_uint64),
        ("get_ns", c_uint64),
        ("load_keys", c_uint64),
        ("best_ns", c_uint64),
    ]


class Stats(NamedTuple):
    """Counters since the pool was opened, and current numbers; ferry_pool_stats in ferry_pool.h says of
    what."""

    gets: int
    hits: int
    hits_here: int
    got_bytes: int
    puts: int
    put_bytes: int
    silent_nodes: int
    values_stored: int
    bytes_stored: int
    bytes_served: int
    evictions: int
    corrupt: int
    values: int
    capacity: int
    free: int
    index_entries: int
    index_bytes: int
    nodes: int
    file_values: int
    file_capacity: int
    file_free: int
    file_saved: int
    file_loaded: int
    file_evictions: int
    file_failures: int
    repaired: int
    repair_failures: int
    drained: int
    drained_here: int
    is_draining: int


class CDrained(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("moved", c_uint64),
        ("here", c_uint64),
        ("left", c_uint64),
    ]


class CStats(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        *[(name, c_uint64) for name in Stats._fields],
    ]


# In the letters of ferry/_abi.py.
FALLIBLE = {
    "pool_key_parse": "sp",
    "pool_keyspace_new": "pp",
    "pool_key_of": "ppzp",
    "pool_chain": "pppzpzpp",
    "pool_open": "ppp",
    "pool_close": "pi",
    "pool_drain": "pip",
    "pool_nodes": "ppzzp",
    "pool_wait_nodes": "pzi",
    "pool_get": "ppzpip",
    "pool_put": "ppzpip",
    "pool_exists": "ppzpip",
    "pool_remove": "ppzpip",
    "pool_prefetch": "ppzpip",
    "pool_submit_get": "ppzp",
    "pool_submit_put": "ppzp",
    "pool_submit_exists": "ppzp",
    "pool_submit_remove": "ppzp",
    "pool_submit_prefetch": "ppzp",
    "pool_estimate": "pppzpp",
    "pool_poll": "pp",
    "pool_wait": "pip",
    "pool_fd": "pp",
    "pool_parts_new": "ppp",
    "pool_parts_keys": "ppzpzp",
    "pool_parts_values": "ppzipip",
    "pool_value_list_get": "ppp",
    "pool_results_fold": "pzzp",
    "pool_get_stats": "pp",
    "pool_gets_ended": "pup",
    "pool_puts_ended": "pup",
    "pool_metrics": "ppzp",
}
PLAIN = {
    "pool_keyspace_free": "p",
    "pool_free": "p",
    "pool_event_release": "p",
    "pool_parts_free": "p",
    "pool_value_list_free": "p",
}

declare(library, FALLIBLE, PLAIN)
