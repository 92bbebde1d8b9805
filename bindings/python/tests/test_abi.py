"""The structs, numbers and functions of _abi.py are those of ferry.h."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

import ferry
from ferry import _abi, _errors, _results

HEADER = Path(__file__).resolve().parents[3] / "include" / "ferry.h"
TEXT = re.sub(r"/\*.*?\*/", "", re.sub(r"///.*", "", HEADER.read_text()), flags=re.DOTALL)

TYPES: dict[str, object] = {
    "uint8_t": ctypes.c_uint8,
    "uint32_t": ctypes.c_uint32,
    "int32_t": ctypes.c_int32,
    "ferry_status": ctypes.c_int32,
    "uint64_t": ctypes.c_uint64,
    "ferry_region": ctypes.c_uint64,
    "ferry_peer": ctypes.c_uint64,
    "ferry_transfer": ctypes.c_uint64,
    "ferry_queue": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "char": ctypes.c_char,
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
    "ferry_layers": _abi.CLayers,
    "ferry_event": _abi.CEvent,
    "ferry_stats": _abi.CStats,
    "ferry_setting_info": _abi.CSetting,
}


def declared(name: str) -> list[tuple[str, int]]:
    """The fields of a struct in the header, with their sizes."""
    body = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", TEXT, re.DOTALL)
    assert body, name
    fields = []
    for line in filter(None, (line.strip() for line in body[1].split(";"))):
        found = re.fullmatch(r"(?:const )?(\w+) (\*?)(\w+)(?:\[(\d+)\])?", line)
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
            if field in ("grant_scope", "flags") and "options" in name and "transfer" not in name
            else field,
            size,
        )
        for field, size in declared(name)
    ]
    assert ours == theirs


def test_every_struct_of_the_header_is_here() -> None:
    in_header = set(re.findall(r"typedef struct (\w+) \{", TEXT))
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
    }.items():
        of_header = {
            name.removeprefix(prefix): value for name, value in numbers.items() if name.startswith(prefix)
        }
        assert of_header == {item.name: item.value for item in kind}, prefix
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
        "RESULTS_ALL": "RESULTS_ALL",
        "RESULTS_FAILED": "RESULTS_FAILED",
        "CHANNELS_MAX": "CHANNELS_MAX",
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
            found += {"uint32_t": "u", "size_t": "z"}.get(parameter.split()[0], "i")
    return found


def test_functions_have_the_header_s_parameters() -> None:
    functions = dict(
        re.findall(r"^(?:ferry_status|void) ferry_(\w+)\(([^;]*?)\);", TEXT, re.DOTALL | re.MULTILINE)
    )
    for name, ours in {**_abi._FALLIBLE, **_abi._PLAIN}.items():
        theirs = letters(functions.pop(name))
        assert theirs == (ours + "p" if name in _abi._FALLIBLE else ours), name
    # Nothing calls back into the interpreter from ferry's threads, who waits has no need to try, and each
    # queue has a channel.
    assert set(functions) == {"queue_callback", "transfer_try", "queue_create"}


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
