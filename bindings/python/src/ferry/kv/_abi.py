"""The part of the C ABI that is in ferry_kv.h: structs, and the types of functions.

tests/test_abi.py compares this module with the header. ferry/_abi.py has the library and the rules.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int32, c_uint8, c_uint32, c_uint64, c_void_p
from typing import NamedTuple

from .._abi import declare, library

ALL_LAYERS = 2**32 - 1
NO_RANK = 2**32 - 1
TAKE_LAYERS = 1
MARK_COMPUTE = 1


class CGroup(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_uint32),
        ("block_tokens", c_uint32),
        ("window_tokens", c_uint32),
    ]


class CLayer(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("group", c_uint32),
        ("name", c_char_p),
        ("stage", c_uint32),
        ("heads", c_uint32),
        ("pairs", c_uint32),
        ("elements", c_uint32),
        ("element_bytes", c_uint32),
        ("reserved", c_uint32),
        ("address", c_uint64),
        ("blocks", c_uint64),
        ("block_stride", c_uint64),
        ("pair_stride", c_uint64),
        ("head_stride", c_uint64),
        ("token_stride", c_uint64),
        ("element_stride", c_uint64),
    ]


class CTensor(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("element_bytes", c_uint32),
        ("address", c_uint64),
        ("order", c_char_p),
        ("dimension_count", c_uint64),
        ("shape", c_void_p),
        ("strides", c_void_p),
    ]


class CLayoutDesc(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("model", c_char_p),
        ("revision", c_char_p),
        ("cache", c_char_p),
        ("rope", c_char_p),
        ("tp_rank", c_uint32),
        ("tp_size", c_uint32),
        ("pp_rank", c_uint32),
        ("pp_size", c_uint32),
        ("pcp_rank", c_uint32),
        ("pcp_size", c_uint32),
        ("dcp_size", c_uint32),
        ("turn_tokens", c_uint32),
        ("groups", c_void_p),
        ("group_count", c_uint64),
        ("layers", c_void_p),
        ("layer_count", c_uint64),
    ]


class CLayoutInfo(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("rank", c_uint32),
        ("ranks", c_uint32),
        ("group_count", c_uint32),
        ("layer_count", c_uint32),
        ("reserved", c_uint32),
    ]


class CBlockPairs(ctypes.Structure):
    """ferry_kv_block_pairs."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("source_blocks", c_void_p),
        ("source_count", c_uint64),
        ("source_first_token", c_uint64),
        ("target_blocks", c_void_p),
        ("target_count", c_uint64),
        ("target_first_token", c_uint64),
    ]


class CPart(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("first_token", c_uint64),
        ("end_token", c_uint64),
        ("first_layer", c_uint32),
        ("end_layer", c_uint32),
        ("blocks", c_void_p),
        ("group_count", c_uint64),
    ]


class CMove(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("layer", c_uint32),
        ("source", c_uint64),
        ("target", c_uint64),
        ("source_stride", c_uint64),
        ("target_stride", c_uint64),
        ("bytes", c_uint64),
        ("counts", c_uint64 * 4),
        ("source_steps", c_uint64 * 4),
        ("target_steps", c_uint64 * 4),
        ("pair_count", c_uint64),
        ("source_blocks", c_void_p),
        ("target_blocks", c_void_p),
    ]


class CId(ctypes.Structure):
    _fields_ = [("bytes", c_uint8 * 16)]


class CMemory(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("region", c_uint64),
        ("address", c_uint64),
        ("length", c_uint64),
    ]


class CCacheOptions(ctypes.Structure):
    _fields_ = [("struct_size", c_uint32), ("silence_ms", c_uint32), ("leased_blocks_max", c_uint64)]


class CBlockList(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        ("first_token", c_uint64),
        ("blocks", c_void_p),
        ("block_count", c_uint64),
    ]


class COfferOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("takers", c_uint32),
        ("blocks", c_void_p),
        ("group_count", c_uint64),
        ("only", c_void_p),
        ("only_count", c_uint64),
        ("lease_ms", c_uint32),
        ("reserved", c_uint32),
    ]


class CTakeOptions(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("mode", c_uint32),
        ("producers", c_void_p),
        ("producer_count", c_uint64),
        ("taker", c_uint64),
        ("blocks", c_void_p),
        ("group_count", c_uint64),
        ("skip_tokens", c_uint64),
        ("tokens", c_uint64),
        ("deadline_ns", c_uint64),
        ("flags", c_uint32),
        ("reserved", c_uint32),
    ]


class CBlock(ctypes.Structure):
    _fields_ = [("group", c_uint32), ("block", c_uint32)]


class CCacheEvent(ctypes.Structure):
    """ferry_kv_event."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_uint32),
        ("id", CId),
        ("status", c_int32),
        ("layers", c_uint32),
        ("valid_tokens", c_uint64),
        ("untrusted", c_void_p),
        ("untrusted_count", c_uint64),
        ("message", c_void_p),
        ("message_length", c_uint64),
        ("peer", c_uint64),
        ("rank", c_uint32),
        ("reserved", c_uint32),
    ]


class CState(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("kind", c_uint32),
        ("is_sealed", c_uint32),
        ("takers", c_uint32),
        ("valid_tokens", c_uint64),
        ("event", c_uint32),
        ("reserved", c_uint32),
    ]


class Stats(NamedTuple):
    """Counters since the cache was opened, and current numbers; ferry_kv_stats in ferry_kv.h says of what."""

    offers: int
    takes: int
    takes_waiting: int
    parts: int
    transfers: int
    leased_blocks: int
    oldest_lease_ns: int
    unfenced_blocks: int
    bytes_sent: int
    bytes_received: int
    ended_sent: int
    ended_received: int
    ended_failed: int
    ended_cancelled: int
    ended_expired_lease: int
    ended_expired_pressure: int
    ended_peer_lost: int
    late_applies: int
    timeline_overwritten: int


class CStats(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("reserved", c_uint32),
        *[(name, c_uint64) for name in Stats._fields],
    ]


class CEntry(ctypes.Structure):
    """ferry_kv_timeline_entry."""

    _fields_ = [
        ("struct_size", c_uint32),
        ("what", c_uint32),
        ("number", c_uint64),
        ("begin_ns", c_uint64),
        ("end_ns", c_uint64),
        ("id", c_uint32),
        ("detail", c_int32),
        ("first_layer", c_uint32),
        ("end_layer", c_uint32),
        ("first_token", c_uint64),
        ("end_token", c_uint64),
        ("bytes", c_uint64),
        ("peer", c_uint64),
        ("transfer", c_uint64),
    ]


# In the letters of ferry/_abi.py.
FALLIBLE = {
    "kv_layer_arrange": "pup",
    "kv_layer_of": "ppp",
    "kv_layout_new": "pp",
    "kv_layout_get_info": "pp",
    "kv_layout_export": "ppzp",
    "kv_layout_import": "pzp",
    "kv_plan_new": "ppp",
    "kv_plan_sources": "pupzp",
    "kv_plan_targets": "pupzp",
    "kv_plan_explain": "ppzp",
    "kv_plan_lower": "ppppp",
    "kv_moves_count": "pp",
    "kv_moves_get": "pzp",
    "kv_id_new": "p",
    "kv_id_parse": "sp",
    "kv_cache_open": "pppzpp",
    "kv_cache_close": "pi",
    "kv_offer": "ppp",
    "kv_offer_extend": "pppz",
    "kv_offer_ready": "ppuui",
    "kv_offer_ready_after": "ppuuiui",
    "kv_offer_seal": "ppi",
    "kv_offer_retract": "ppii",
    "kv_offer_retract_window": "ppuii",
    "kv_offer_cancel": "pp",
    "kv_reclaim": "pzp",
    "kv_take": "ppp",
    "kv_take_cancel": "pp",
    "kv_poll": "pp",
    "kv_wait": "pip",
    "kv_fd": "pp",
    "kv_get_state": "ppp",
    "kv_unfenced_blocks": "pp",
    "kv_get_stats": "pp",
    "kv_ended_failed": "ptp",
    "kv_metrics": "ppzp",
    "kv_timeline_start": "pz",
    "kv_timeline_stop": "p",
    "kv_timeline_mark": "ppuuii",
    "kv_timeline_read": "pipzzp",
    "kv_timeline_svg": "pzpzp",
}
PLAIN = {
    "kv_layout_free": "p",
    "kv_plan_free": "p",
    "kv_moves_free": "p",
    "kv_cache_free": "p",
    "kv_event_release": "p",
}

declare(library, FALLIBLE, PLAIN)
