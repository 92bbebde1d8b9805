"""The structs, numbers and functions of _abi.py are those of ferry.h and of directories in ferry_kv.h, those
of kv/_abi.py are those of the rest of ferry_kv.h, and those of pool/_abi.py are those of ferry_pool.h."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

import ferry
from ferry import _abi, _errors, _results, kv, pool
from ferry.kv import _abi as kv_abi
from ferry.pool import _abi as pool_abi

INCLUDE = Path(__file__).resolve().parents[3] / "include"
HEADERS = "".join((INCLUDE / name).read_text() for name in ("ferry.h", "ferry_kv.h", "ferry_pool.h"))
TEXT = re.sub(r"/\*.*?\*/", "", re.sub(r"///.*", "", HEADERS), flags=re.DOTALL)

TYPES: dict[str, object] = {
    "uint8_t": ctypes.c_uint8,
    "uint32_t": ctypes.c_uint32,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "ferry_status": ctypes.c_int32,
    "uint64_t": ctypes.c_uint64,
    "ferry_region": ctypes.c_uint64,
    "ferry_peer": ctypes.c_uint64,
    "ferry_transfer": ctypes.c_uint64,
    "ferry_queue": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "char": ctypes.c_char,
    "ferry_kv_id": kv_abi.CId,
    "ferry_pool_key": pool_abi.CKey,
}

STRUCTS = {
    "ferry_error": _abi.CError,
    "ferry_region_options": _abi.CRegionOptions,
    "ferry_alloc_options": _abi.CRegionOptions,
    "ferry_peer_info": _abi.CPeerInfo,
    "ferry_region_info": _abi.CRegionInfo,
    "ferry_path_info": _abi.CPathInfo,
    "ferry_transfer_options": _abi.CTransferOptions,
    "ferry_request_result": _abi.CRequestResult,
    "ferry_result": _abi.CResult,
    "ferry_blocks": _abi.CBlocks,
    "ferry_uniform_blocks": _abi.CUniformBlocks,
    "ferry_event": _abi.CEvent,
    "ferry_stats": _abi.CStats,
    "ferry_setting_info": _abi.CSetting,
    "ferry_kv_group": kv_abi.CGroup,
    "ferry_kv_layer": kv_abi.CLayer,
    "ferry_kv_tensor": kv_abi.CTensor,
    "ferry_kv_layout_desc": kv_abi.CLayoutDesc,
    "ferry_kv_layout_info": kv_abi.CLayoutInfo,
    "ferry_kv_block_pairs": kv_abi.CBlockPairs,
    "ferry_kv_part": kv_abi.CPart,
    "ferry_kv_move": kv_abi.CMove,
    "ferry_kv_id": kv_abi.CId,
    "ferry_kv_memory": kv_abi.CMemory,
    "ferry_kv_cache_options": kv_abi.CCacheOptions,
    "ferry_kv_block_list": kv_abi.CBlockList,
    "ferry_kv_offer_options": kv_abi.COfferOptions,
    "ferry_kv_take_options": kv_abi.CTakeOptions,
    "ferry_kv_block": kv_abi.CBlock,
    "ferry_kv_event": kv_abi.CCacheEvent,
    "ferry_kv_state": kv_abi.CState,
    "ferry_kv_stats": kv_abi.CStats,
    "ferry_kv_timeline_entry": kv_abi.CEntry,
    "ferry_directory_options": _abi.CDirectoryOptions,
    "ferry_directory_entry": _abi.CDirectoryEntry,
    "ferry_directory_info": _abi.CDirectoryInfo,
    "ferry_pool_key": pool_abi.CKey,
    "ferry_pool_hash": pool_abi.CHash,
    "ferry_pool_pair": pool_abi.CPair,
    "ferry_pool_identity": pool_abi.CIdentity,
    "ferry_pool_extra": pool_abi.CExtra,
    "ferry_pool_chain_options": pool_abi.CChainOptions,
    "ferry_pool_quota": pool_abi.CQuota,
    "ferry_pool_options": pool_abi.COptions,
    "ferry_pool_node_info": pool_abi.CNodeInfo,
    "ferry_pool_range": pool_abi.CRange,
    "ferry_pool_value": pool_abi.CValue,
    "ferry_pool_call_options": pool_abi.CCallOptions,
    "ferry_pool_result": pool_abi.CResult,
    "ferry_pool_cost_options": pool_abi.CCostOptions,
    "ferry_pool_cost": pool_abi.CCost,
    "ferry_pool_drained": pool_abi.CDrained,
    "ferry_pool_event": pool_abi.CEvent,
    "ferry_pool_cut": pool_abi.CCut,
    "ferry_pool_stats": pool_abi.CStats,
}


def declared(name: str) -> list[tuple[str, int]]:
    """The fields of a struct in the header, with their sizes."""
    body = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", TEXT, re.DOTALL)
    assert body, name
    fields = []
    for line in filter(None, (line.strip() for line in body[1].split(";"))):
        found = re.fullmatch(r"(?:const )?(\w+) (\*?(?:const \*)?)(\w+)(?:\[(\d+)\])?", line)
        assert found, line
        kind, pointer, field, count = found.groups()
        bytes_ = 8 if pointer else ctypes.sizeof(TYPES[kind])  # type: ignore[arg-type]
        fields.append((field, bytes_ * int(count or 1)))
    return fields


@pytest.mark.parametrize("name", STRUCTS)
def test_structs_have_the_header_s_fields(name: str) -> None:
    ours = [(field, ctypes.sizeof(kind)) for field, kind in STRUCTS[name]._fields_]  # type: ignore[misc]
    theirs = [
        (
            "extra"
            if field in ("grant_scope", "flags") and name in ("ferry_region_options", "ferry_alloc_options")
            else field,
            size,
        )
        for field, size in declared(name)
    ]
    assert ours == theirs


def test_every_struct_of_the_header_is_here() -> None:
    in_header = set(re.findall(r"typedef struct (ferry_(?!kv_)\w+) \{", TEXT))
    assert in_header - set(STRUCTS) == {"ferry_request"}
    assert declared("ferry_request") == [(name, 8) for name, _ in ferry.REQUEST_DTYPE]


def test_numbers_are_the_header_s() -> None:
    numbers = {name: int(value) for name, value in re.findall(r"#define FERRY_(\w+) \(?(-?\d+)\)?", TEXT)}
    statuses = {
        name.removeprefix("ERR_"): value
        for name, value in numbers.items()
        if name in ("OK", "PENDING", "DRAINING") or name.startswith("ERR_")
    }
    assert statuses == {status.name: status.value for status in ferry.Status}
    for prefix, kind in {
        "ACCESS_": ferry.Access,
        "TRANSPORT_": ferry.Transport,
        "STATE_": ferry.State,
        "FENCE_": ferry.Fence,
        "NOTIFICATION_": ferry.NotificationState,
        "PEER_": ferry.PeerState,
        "EVENT_": ferry.EventKind,
        "MEMORY_": ferry.MemoryKind,
        "START_AFTER_": ferry.StartAfter,
        "KV_GROUP_": kv.GroupKind,
        "KV_MODE_": kv.Mode,
        "KV_EVENT_": kv.EventKind,
        "KV_STATE_": kv.StateKind,
        "KV_TIMELINE_": kv.EntryKind,
        "DIRECTORY_": ferry.ChangeKind,
        "POOL_OUTCOME_": pool.Outcome,
    }.items():
        of_header = {
            name.removeprefix(prefix): value
            for name, value in numbers.items()
            if name.startswith(prefix) and name != "DIRECTORY_NO_WAIT"
        }
        assert of_header == {item.name: item.value for item in kind}, prefix
    arrangements = {
        name.removeprefix("KV_"): value
        for name, value in numbers.items()
        if name.startswith(("KV_PAIR_", "KV_BLOCK_"))
    }
    assert arrangements == {item.name: item.value for item in kv.Arrangement}
    takes = {name for name in numbers if name.startswith("KV_TAKE_")}
    assert takes == {"KV_TAKE_LAYERS"} and kv_abi.TAKE_LAYERS == numbers["KV_TAKE_LAYERS"]
    assert kv.COMPUTE == numbers["KV_MARK_COMPUTE"]
    for ours in ("PREFIX", "EXTRA_LORA", "EXTRA_SALT", "EXTRA_IMAGE"):
        assert getattr(pool_abi, ours) == numbers[f"POOL_{ours}"], ours
    for ours, theirs in {
        "READ": "OP_READ",
        "WRITE": "OP_WRITE",
        "QUEUE_TRANSFERS": "QUEUE_TRANSFERS",
        "QUEUE_NOTIFICATIONS": "QUEUE_NOTIFICATIONS",
        "QUEUE_PEERS": "QUEUE_PEERS",
        "FLAG_NO_COALESCE": "TRANSFER_NO_COALESCE",
        "FLAG_ORDERED": "TRANSFER_ORDERED",
        "FLAG_CHECKSUM": "TRANSFER_CHECKSUM",
        "FLAG_ACKED_ONLY": "TRANSFER_ACKED_ONLY",
        "FLAG_DURABLE": "TRANSFER_DURABLE",
        "RESULTS_ALL": "RESULTS_ALL",
        "RESULTS_FAILED": "RESULTS_FAILED",
        "CHANNELS_MAX": "CHANNELS_MAX",
        "DIRECTORY_NO_WAIT": "DIRECTORY_NO_WAIT",
    }.items():
        assert getattr(_abi, ours) == numbers[theirs], ours


def letters(parameters: str) -> str:
    """The parameters of a function of the header, in the letters of _abi.py."""
    found = ""
    for parameter in re.split(r",\s*", parameters.strip()):
        if re.match(r"const char \*", parameter):
            found += "s"
        elif "*" in parameter:
            found += "p"
        else:
            found += {"uint32_t": "u", "size_t": "z", "ferry_status": "t"}.get(parameter.split()[0], "i")
    return found


def test_functions_have_the_header_s_parameters() -> None:
    functions = dict(
        re.findall(r"^(?:ferry_status|void) ferry_(\w+)\(([^;]*?)\);", TEXT, re.DOTALL | re.MULTILINE)
    )
    fallible = {**_abi._FALLIBLE, **kv_abi.FALLIBLE, **pool_abi.FALLIBLE}
    for name, ours in {**fallible, **_abi._PLAIN, **kv_abi.PLAIN, **pool_abi.PLAIN}.items():
        theirs = letters(functions.pop(name))
        assert theirs == (ours + "p" if name in fallible else ours), name
    # The package does without these: nothing calls back into the interpreter from ferry's threads, a caller
    # that waits need not try, each queue has a channel, waits are made in turns, and bytes have hex().
    others = {"queue_callback", "transfer_try", "queue_create", "write", "read", "notify", "kv_id_format"}
    others.add("pool_key_format")
    assert set(functions) == others


def test_names_and_classes_of_statuses() -> None:
    for status in ferry.Status:
        assert _errors.status_name(status) == status.name
    assert _errors.error_class(-199) is ferry.CallerError
    assert _errors.error_class(-299) is ferry.TransferError
    assert _errors.error_class(-301) is ferry.PeerLostError
    assert _errors.error_class(-399) is ferry.PeerError
    assert _errors.error_class(-499) is ferry.EngineError
    assert _results.RESULT_BYTES == ctypes.sizeof(_abi.CResult)


def test_a_process_with_more_rights_than_its_caller_runs_the_library_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FERRY_LIBRARY", "/tmp/evil.so")
    assert not _abi._is_privileged() and _abi._path() == "/tmp/evil.so"
    monkeypatch.setattr(_abi, "_is_privileged", lambda: True)
    assert _abi._path() == str(Path(_abi.__file__).resolve().with_name("libferry.so"))
