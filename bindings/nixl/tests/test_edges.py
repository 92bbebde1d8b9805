"""Unusual use: other registrations, handles released early, bad input.

test_plugin.py has the usual way.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
from nixl_cu12 import _bindings as nixl
from nixl_cu12._api import nixl_agent
from peer import BACKEND, Peer, agent, finish, ranges, registered

WORDS = 1 << 10
OVERWRITTEN = 1 << 63
only_ferry = pytest.mark.skipif(BACKEND != "FERRY", reason="only ferry promises this")

# Prints the metadata of an agent over the wheel's own UCX.
OF_UCX = """
import os, numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config
own, memory = nixl_agent("ucx", nixl_agent_config(backends=["UCX"])), np.zeros(64, dtype="u8")
own.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
print(own.get_agent_metadata().hex(), flush=True)
os._exit(0)  # UCX may crash at the end of a process
"""


def pair() -> tuple[nixl_agent, nixl_agent]:
    """Two agents of this process."""
    return agent("here"), agent("there")


def pair_with_memory() -> tuple[nixl_agent, nixl_agent, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two agents, of which the first knows the second, and what each has registered: words, and zeros."""
    here, there = pair()
    source, target = np.arange(1, WORDS + 1, dtype="u8"), np.zeros(WORDS, dtype="u8")
    registered(here, source)
    registered(there, target)
    here.add_remote_agent(there.get_agent_metadata())
    return here, there, source, target


def prepared(
    own: nixl_agent, here: np.ndarray[Any, Any], there: np.ndarray[Any, Any], message: bytes = b""
) -> Any:
    local, remote = (own.get_xfer_descs(ranges(memory), "DRAM") for memory in (here, there))
    return own.initialize_xfer("WRITE", local, remote, "there", message)


def test_memory_is_registered_by_lists_and_arrays_and_moved_within_one_process() -> None:
    here, there = pair()
    source = [np.full(WORDS, value, dtype="u8") for value in (1, 2)]
    target = [np.zeros(WORDS, dtype="u8") for _ in range(2)]
    array = np.array([(memory.ctypes.data, memory.nbytes, 0) for memory in source], dtype="u8")
    of_array = here.register_memory(array, "DRAM")
    of_list = there.register_memory([(memory.ctypes.data, memory.nbytes, 0, "") for memory in target], "DRAM")
    here.add_remote_agent(there.get_agent_metadata())
    for own, other in zip(source, target, strict=True):
        handle = prepared(here, own, other, b"moved")
        assert finish(here, handle, here.transfer(handle)) == "DONE"
        assert np.array_equal(own, other)
        here.release_xfer_handle(handle)
    here.deregister_memory(of_array)
    there.deregister_memory(of_list)
    with pytest.raises(nixl.nixlNotFoundError):
        prepared(here, source[1], target[1])


def test_a_transfer_is_found_by_its_tag() -> None:
    here, there, source, target = pair_with_memory()
    assert not there.check_remote_xfer_done("here", b"block")
    handle = prepared(here, source, target, b"block 7")
    assert finish(here, handle, here.transfer(handle)) == "DONE"
    last = time.monotonic() + 30
    while not there.check_remote_xfer_done("here", b"block"):
        assert time.monotonic() < last, "the notification does not come"
    assert np.array_equal(source, target)
    assert not there.check_remote_xfer_done("here", b"block")


def test_handles_are_released_unposted_and_twice() -> None:
    here, there, source, target = pair_with_memory()
    unposted = prepared(here, source, target)
    here.release_xfer_handle(unposted)
    here.release_xfer_handle(unposted)
    handle = prepared(here, source, target)
    assert finish(here, handle, here.transfer(handle)) == "DONE"
    here.release_xfer_handle(handle)
    here.release_xfer_handle(handle)
    assert np.array_equal(source, target)


def test_bad_input_is_refused_and_the_agent_serves_on() -> None:
    here, there, source, target = pair_with_memory()
    one = here.get_xfer_descs(ranges(source), "DRAM")
    two = here.get_xfer_descs(ranges(target, 2), "DRAM")
    for local, remote in ((one, two), (two, one)):
        with pytest.raises((nixl.nixlInvalidParamError, nixl.nixlMismatchError, nixl.nixlNotFoundError)):
            here.initialize_xfer("WRITE", local, remote, "there")
    with pytest.raises(nixl.nixlNotFoundError):
        here.initialize_xfer("WRITE", one, here.get_xfer_descs(ranges(target), "DRAM"), "nobody")
    with pytest.raises(nixl.nixlNotFoundError):
        here.send_notif("nobody", b"lost")
    for metadata in (b"", b"\x00" * 64, there.get_agent_metadata()[:40]):
        with pytest.raises(Exception, match="(?i)mismatch|invalid|not_found|backend|deseriali"):
            agent("third").add_remote_agent(metadata)
    handle = prepared(here, source, target)
    assert finish(here, handle, here.transfer(handle)) == "DONE"
    assert np.array_equal(source, target)


@only_ferry
def test_metadata_of_an_agent_over_ucx_alone() -> None:
    variables = {name: value for name, value in os.environ.items() if name != "NIXL_PLUGIN_DIR"}
    made = subprocess.run(
        [sys.executable, "-c", OF_UCX],
        env={**variables, "UCX_TLS": "tcp"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    metadata = bytes.fromhex(made.stdout.splitlines()[-1])
    here, there = pair()
    # The two have no backend in common.
    with pytest.raises((nixl.nixlBackendError, nixl.nixlNotFoundError, nixl.nixlMismatchError)):
        here.add_remote_agent(metadata)
    here.add_remote_agent(there.get_agent_metadata())
    here.make_connection("there")


@only_ferry
@pytest.mark.parametrize("operation", ["READ", "WRITE"])
def test_a_release_beside_a_stopped_peer_gives_the_memory_back(operation: str) -> None:
    own, words = agent("here", {"transports": "tcp"}), 8 << 20
    memory = np.zeros(words, dtype="u8")
    registered(own, memory)
    peer = Peer("there", words, {"transports": "tcp"})
    try:
        assert own.add_remote_agent(peer.metadata) == b"there"
        local = own.get_xfer_descs(ranges(memory), "DRAM")
        remote = own.get_xfer_descs(peer.pieces(), "DRAM")
        handle = own.initialize_xfer(operation, local, remote, "there")
        assert finish(own, handle, own.transfer(handle)) == "DONE"
        released_while_stopped(own, handle, memory, peer, operation)
    finally:
        peer.close()


def released_while_stopped(
    own: nixl_agent, handle: Any, memory: np.ndarray[Any, Any], peer: Peer, operation: str
) -> None:
    """Posts to a peer that stands still, releases, uses the memory again; lets the peer run on for 2 s.

    The peer stops before it has any of the data: host/suite.cpp releases in the middle of the data.
    """
    source, target = (memory, peer.memory) if operation == "WRITE" else (peer.memory, memory)
    source[:] = 7
    peer.signal(signal.SIGSTOP)
    # More than the sockets hold: the transfer cannot end.
    assert own.transfer(handle) == "PROC" == own.check_xfer_state(handle)
    start = time.monotonic()
    try:
        own.release_xfer_handle(handle)
    except nixl.nixlRepostActiveError:
        own.release_xfer_handle(handle)
    assert time.monotonic() - start < 5
    memory[:] = OVERWRITTEN
    peer.signal(signal.SIGCONT)
    last = time.monotonic() + 2
    while time.monotonic() < last:
        if operation == "READ":
            assert (target == OVERWRITTEN).all()
        else:
            # A stopped peer had nothing of the transfer when the release returned; nothing comes later.
            assert not target.any()
