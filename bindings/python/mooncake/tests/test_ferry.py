"""Promises of ferry-mooncake beyond the module that it replaces."""

import ctypes
import gc
import logging
import mmap
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ferry
from mooncake import _notices
from mooncake import engine as module

# The use of devices is shared with ferry's own tests.
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from standin import LIBRARIES, Program  # noqa: E402

PEER = """
import ctypes, sys
from mooncake.engine import TransferEngine
engine = TransferEngine()
assert engine.initialize(sys.argv[1], "P2PHANDSHAKE", "tcp", "") == 0
memory = (ctypes.c_ubyte * 4096)()
assert engine.register_memory(ctypes.addressof(memory), 4096) == 0
print(engine.get_rpc_port(), ctypes.addressof(memory), flush=True)
for line in sys.stdin:
    print(bytes(memory)[:8].hex(), flush=True)
"""

# A plain ferry engine, which can listen where another engine listened before.
PLACE = """
import sys, ferry
engine = ferry.Engine(listen_address=sys.argv[1], lease_ms=60000)
memory = engine.alloc(4096)
print(engine.address, memory.address, flush=True)
for line in sys.stdin:
    print(bytes(memory.view)[:8].hex(), flush=True)
"""


class Peer:
    """An engine in another process."""

    def __init__(self, host="127.0.0.1", **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-c", PEER, host],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        port, address = self.process.stdout.readline().split()
        self.session, self.address = f"{host}:{port}", int(address)

    def begins_with(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return bytes.fromhex(self.process.stdout.readline())

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def opened(host="127.0.0.1"):
    engine = module.TransferEngine()
    assert engine.initialize(host, "P2PHANDSHAKE", "tcp", None) == 0
    memory = (ctypes.c_ubyte * 4096)(*b"ferried!")
    assert engine.register_memory(ctypes.addressof(memory), 4096) == 0
    return engine, memory, ctypes.addressof(memory)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    for name in ("FERRY_SECRET_FILE", "FERRY_SECRET", "FERRY_ALLOW_UNAUTHENTICATED"):
        monkeypatch.delenv(name, raising=False)


def test_other_hosts_need_a_secret_or_the_word_that_none_is_wanted(caplog, monkeypatch):
    with caplog.at_level(logging.ERROR, "mooncake.engine"):
        assert module.TransferEngine().initialize("0.0.0.0", "P2PHANDSHAKE", "tcp", "") < 0
    assert "FERRY_SECRET_FILE" in caplog.text and "FERRY_ALLOW_UNAUTHENTICATED=1" in caplog.text
    monkeypatch.setenv("FERRY_ALLOW_UNAUTHENTICATED", "1")
    assert module.TransferEngine().initialize("0.0.0.0", "P2PHANDSHAKE", "tcp", "") == 0


def test_a_secret_is_read_and_who_has_another_is_refused(tmp_path, monkeypatch):
    names = [tmp_path / "ours", tmp_path / "another"]
    for name in names:
        name.write_bytes(secrets.token_bytes(32))
        name.chmod(0o600)
    monkeypatch.setenv("FERRY_SECRET_FILE", str(names[0]))
    engine, memory, address = opened()
    with Peer() as peer:
        assert engine.transfer_sync_write(peer.session, address, peer.address, 4096) == 0
        assert peer.begins_with() == b"ferried!"
    with Peer(FERRY_SECRET_FILE=str(names[1])) as stranger:
        assert engine.transfer_sync_write(stranger.session, address, stranger.address, 4096) < 0
        assert stranger.begins_with() == bytes(8)


def test_the_first_buffer_is_the_first_registered_that_still_is():
    near, far = module.TransferEngine(), module.TransferEngine()
    for engine in (near, far):
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    session = f"127.0.0.1:{far.get_rpc_port()}"
    memory = (ctypes.c_ubyte * (4 * 4096))()
    third, first, second, fourth = (ctypes.addressof(memory) + 4096 * page for page in range(4))

    def becomes(address):
        end = time.monotonic() + 10
        while (found := near.get_first_buffer_address(session)) != address:
            assert time.monotonic() < end, f"{found:#x}, not {address:#x}"

    assert near.get_first_buffer_address(session) == 0
    assert far.batch_register_memory([first, second], [4096, 4096]) == 0
    assert far.register_memory(third, 4096) == 0
    becomes(first)
    # One of the next two regions takes the first one's handle, and neither takes its place.
    assert far.unregister_memory(first) == 0
    assert far.register_memory(first, 4096) == 0
    assert far.register_memory(fourth, 4096) == 0
    for address in (second, third, first, fourth):
        becomes(address)
        assert far.unregister_memory(address) == 0
    becomes(0)


def test_a_peer_that_is_killed_fails_what_comes_and_its_successor_is_reached():
    engine, memory, address = opened()
    with Peer() as first:
        assert engine.transfer_sync_write(first.session, address, first.address, 4096) == 0
        first.kill()
        assert engine.transfer_sync_write(first.session, address, first.address, 4096) < 0
        assert engine.send_probe(first.session) < 0
    with Peer() as second:
        assert engine.transfer_sync_write(second.session, address, second.address, 4096) == 0
        assert second.begins_with() == b"ferried!"


@pytest.mark.parametrize("proof", ["a secret", "the same user"])
def test_a_session_goes_on_with_who_is_started_anew_in_its_place(proof, tmp_path, monkeypatch):
    """One call may fail with the first process, whether or not this kernel reports its end. The call waits
    neither for a lease nor for the time to reconnect."""
    if proof == "a secret":
        secret = tmp_path / "secret"
        secret.write_bytes(secrets.token_bytes(32))
        secret.chmod(0o600)
        monkeypatch.setenv("FERRY_SECRET_FILE", str(secret))
    monkeypatch.setenv("FERRY_TRANSPORTS", "tcp")
    monkeypatch.setenv("FERRY_LEASE_MS", "60000")
    monkeypatch.setenv("FERRY_RECONNECT_TIMEOUT_MS", "60000")
    engine, memory, address = opened()

    def start(place):
        program = [sys.executable, "-c", PLACE, place]
        process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        session, remote = process.stdout.readline().split()
        return process, session, int(remote)

    def end(process):
        process.kill()
        process.communicate()

    first, session, remote = start("127.0.0.1:0")
    assert engine.transfer_sync_write(session, address, remote, 4096) == 0
    end(first)
    second, again, remote = start(session)
    try:
        assert again == session
        began = time.monotonic()
        outcomes = [engine.transfer_sync_write(session, address, remote, 4096) for _ in range(2)]
        assert outcomes[1] == 0, outcomes
        assert time.monotonic() - began < 30
        second.stdin.write("\n")
        second.stdin.flush()
        assert bytes.fromhex(second.stdout.readline()) == b"ferried!"
    finally:
        end(second)


def test_what_cannot_be_is_said_and_changes_nothing(caplog):
    engine = module.TransferEngine()
    assert engine.initialize("127.0.0.1", "etcd://somewhere", "tcp", "") < 0
    assert "P2PHANDSHAKE" in caplog.text
    assert engine.get_rpc_port() == 0
    assert engine.transfer_sync_write("127.0.0.1:1", 1, 1, 1) < 0
    assert engine.allocate_managed_buffer(64) == 0
    assert engine.initialize("127.0.0.1:1234", "P2PHANDSHAKE", "nvlink", None) == 0
    assert "'nvlink' is not part of this version" in caplog.text
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") < 0


def test_the_log_says_that_it_is_ferry_and_which_way_transfers_take(caplog):
    with caplog.at_level(logging.INFO, "mooncake.engine"):
        engine, memory, address = opened()
        with Peer() as peer:
            assert engine.transfer_sync_write(peer.session, address, peer.address, 4096) == 0
            assert f"{peer.session}: local is used: the best usable path" in caplog.text
            assert f"{peer.session}: tcp is not: the last resort" in caplog.text
    assert (
        f"initialize: ferry {ferry.__version__} at 127.0.0.1:{engine.get_rpc_port()}, "
        "transports local,tcp,cuda,ascend" in caplog.text
    )


def test_memory_that_is_not_the_cpus_is_refused_when_it_is_registered(caplog):
    engine, memory, address = opened()
    with mmap.mmap(-1, 4096, prot=0) as inaccessible:  # as a device's memory is to the CPU
        at = int(
            next(
                line.split("-")[0]
                for line in Path("/proc/self/maps").read_text().splitlines()
                if " ---s " in line
            ),
            16,
        )
        assert engine.register_memory(at, 4096) == ferry.Status.INVALID
        assert engine.batch_register_memory([at], [4096]) == ferry.Status.INVALID
        assert len(inaccessible) == 4096
    assert f"4096 bytes at {at:#x} are not mapped in this process, or are memory of a device" in caplog.text


@pytest.fixture(params=LIBRARIES, ids=lambda library: library.name)
def program(request, monkeypatch):
    for setting, value in request.param.settings().items():
        monkeypatch.setenv(f"FERRY_{setting.upper()}", value)
    made = Program(request.param)
    yield made
    gc.collect()
    assert made.close() == 0


DEVICE_BYTES = (2 << 20) + 4096


def words(length, seed):
    """Each 8 bytes encode where they belong."""
    return b"".join((seed << 40 | place).to_bytes(8, "little") for place in range(length // 8))


@pytest.mark.parametrize("locations", [("*", "*"), ("{}:0", "{}:1"), ("", "cpu:0")])
@pytest.mark.parametrize("protocol", ["tcp", "rdma", "ascend"])
def test_memory_of_devices_is_registered_and_moved(program, caplog, locations, protocol):
    ends = []
    with caplog.at_level(logging.WARNING, "mooncake.engine"):
        for device, location in enumerate(locations):
            engine = module.TransferEngine()
            assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", protocol, "") == 0
            address = program.alloc(DEVICE_BYTES, device)
            location = location.format(program.library.word)
            assert engine.register_memory(address, DEVICE_BYTES, location) == 0
            ends.append((engine, address))
    assert not caplog.records
    (near, here), (far, there) = ends
    session = f"127.0.0.1:{far.get_rpc_port()}"
    assert near.get_first_buffer_address(session) == there
    program.write(here, words(DEVICE_BYTES, 1))
    assert near.transfer_sync_write(session, here, there, DEVICE_BYTES) == 0
    assert program.read(there, DEVICE_BYTES) == words(DEVICE_BYTES, 1)
    program.write(there, words(DEVICE_BYTES, 2))
    half = DEVICE_BYTES // 2
    columns = [[at, at + half] for at in (here, there)]
    assert near.batch_transfer_sync_read(session, *columns, [half, half]) == 0
    assert program.read(here, DEVICE_BYTES) == words(DEVICE_BYTES, 2)
    for engine, address in ends:
        assert engine.unregister_memory(address) == 0
        program.free(address)


def test_a_location_that_is_wrong_is_refused(program, caplog):
    engine = module.TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    address = program.alloc(4096, 1)
    plain = (ctypes.c_ubyte * 4096)()
    name, word = program.library.name, program.library.word
    assert engine.register_memory(address, 4096, f"{word}:0") == ferry.Status.INVALID
    assert f"address is memory of {name} device 1" in caplog.text
    batch = engine.batch_register_memory([address, ctypes.addressof(plain)], [4096, 4096], f"{word}:1")
    assert batch == ferry.Status.INVALID
    assert f"address is no memory of a {name} device" in caplog.text
    for location in ("cuda", "cuda:", "cuda:x", "cuda:-1", "npu:2147483648"):
        assert engine.register_memory(address, 4096, location) == ferry.Status.INVALID
        assert f"location {location!r} names no device" in caplog.text
    assert engine.register_memory(address, 4096, f"{word}:1") == 0
    assert engine.unregister_memory(address) == 0
    program.free(address)
    caplog.clear()  # The errors in it hold the engine.


def test_memory_that_was_freed_is_refused_and_said(program, caplog):
    engine = module.TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    target, memory, there = opened()
    here = program.alloc(4096)
    assert engine.register_memory(here, 4096) == 0
    program.free(here)
    assert engine.transfer_sync_write(f"127.0.0.1:{target.get_rpc_port()}", here, there, 4096) < 0
    assert "1 of 1 requests failed, the first with INVALID" in caplog.text
    assert bytes(memory[:8]) == b"ferried!"
    assert engine.unregister_memory(here) == 0
    assert engine.register_memory(here, 4096) == ferry.Status.INVALID
    assert f"4096 bytes at {here:#x} are not mapped in this process" in caplog.text
    caplog.clear()  # The errors in it hold the engine.


def test_what_is_supported():
    assert module.SUPPORT_CUDA and module.SUPPORT_ASCEND
    assert not module.SUPPORT_HIP


def test_a_failed_batch_registration_registers_none_of_it():
    engine, memory, address = opened()
    spare = (ctypes.c_ubyte * 4096)()
    assert engine.batch_register_memory([ctypes.addressof(spare), address], [4096, 4096]) == -7
    assert engine.unregister_memory(ctypes.addressof(spare)) == -3


def test_the_status_of_a_batch_can_be_asked_for_again_and_unknown_ones_failed():
    engine, memory, address = opened()
    with Peer() as peer:
        number = engine.transfer_submit_write(peer.session, address, peer.address, 4096)
        assert engine.get_batch_transfer_status([number]) == 0
        assert engine.transfer_check_status(number) == 1
    assert engine.transfer_check_status(12345) == -1


@pytest.mark.parametrize(
    ("hostname", "host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1:12345", "127.0.0.1"),
        ("localhost:1", "localhost"),
        ("::1", "::1"),
        ("[::1]:12345", "::1"),
    ],
)
def test_a_port_in_the_name_is_ignored(hostname, host):
    assert module.host_of(hostname) == host
    engine = module.TransferEngine()
    assert engine.initialize(hostname, "P2PHANDSHAKE", "rdma", "") == 0
    assert engine.get_rpc_port() not in (0, 12345)


def test_memory_of_devices_through_the_c_interface(program):
    if "MOONCAKE_C_LIBRARY" not in os.environ:
        pytest.skip("MOONCAKE_C_LIBRARY names no library")
    c = ctypes.CDLL(os.environ["MOONCAKE_C_LIBRARY"])
    c.createTransferEngine.restype = c.installTransport.restype = ctypes.c_void_p
    c.allocateBatchID.restype = ctypes.c_uint64
    there = ctypes.c_void_p(c.createTransferEngine(b"P2PHANDSHAKE", b"127.0.0.1", b"", ctypes.c_uint64(0), 0))
    assert c.installTransport(there, b"ascend", None) and not c.installTransport(there, b"nvlink", None)
    length = ctypes.c_size_t(DEVICE_BYTES)
    theirs = program.alloc(DEVICE_BYTES, 1)
    at = ctypes.c_void_p(theirs)
    word = program.library.word.encode()
    for location in (b"cuda:0", b"npu:0", b"cuda:", b"cuda:x", b"cuda:-1", b"cuda:2147483648"):
        assert c.registerLocalMemory(there, at, length, location, 1) < 0, location
    assert c.registerLocalMemory(there, at, length, None, 1) == 0
    assert c.unregisterLocalMemory(there, at) == 0
    entries = (ctypes.c_uint64 * 2)(theirs, DEVICE_BYTES)
    assert c.registerLocalMemoryBatch(there, entries, ctypes.c_size_t(1), b"%s:0" % word) < 0
    assert c.registerLocalMemoryBatch(there, entries, ctypes.c_size_t(1), b"%s:1" % word) == 0

    engine, memory, _ = opened()
    ours = program.alloc(DEVICE_BYTES)
    assert engine.register_memory(ours, DEVICE_BYTES) == 0
    segment = c.openSegment(there, f"127.0.0.1:{engine.get_rpc_port()}".encode())
    for opcode, source, target in ((1, theirs, ours), (0, ours, theirs)):
        program.write(source, words(DEVICE_BYTES, 3 + opcode))
        batch = ctypes.c_uint64(c.allocateBatchID(there, ctypes.c_size_t(1)))
        request = Request(opcode, theirs, segment, ours, DEVICE_BYTES)
        assert c.submitTransfer(there, batch, ctypes.byref(request), ctypes.c_size_t(1)) == 0
        status = TaskStatus()
        while status.status == 0:  # At most as long as the deadline.
            assert c.getTransferStatus(there, batch, ctypes.c_size_t(0), ctypes.byref(status)) == 0
        assert (status.status, status.transferred_bytes) == (4, DEVICE_BYTES)
        assert program.read(target, DEVICE_BYTES) == words(DEVICE_BYTES, 3 + opcode)
        assert c.freeBatchID(there, batch) == 0
    assert c.unregisterLocalMemoryBatch(there, ctypes.byref(at), ctypes.c_size_t(1)) == 0
    c.destroyTransferEngine(there)
    assert engine.unregister_memory(ours) == 0
    program.free(ours)
    program.free(theirs)


class Notice(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("msg", ctypes.c_char_p)]


class Request(ctypes.Structure):
    _fields_ = [
        ("opcode", ctypes.c_int),
        ("source", ctypes.c_void_p),
        ("target_id", ctypes.c_int32),
        ("target_offset", ctypes.c_uint64),
        ("length", ctypes.c_uint64),
    ]


class TaskStatus(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int), ("transferred_bytes", ctypes.c_uint64)]


def test_the_c_interface_and_the_module_understand_each_other():
    """Bytes and notices, each way, with libferry_mooncake.so at the other end."""
    if "MOONCAKE_C_LIBRARY" not in os.environ:
        pytest.skip("MOONCAKE_C_LIBRARY names no library")
    c = ctypes.CDLL(os.environ["MOONCAKE_C_LIBRARY"])
    c.createTransferEngine.restype = ctypes.c_void_p
    c.allocateBatchID.restype = ctypes.c_uint64
    c.getNotifsFromEngine.restype = ctypes.POINTER(Notice)
    there = ctypes.c_void_p(c.createTransferEngine(b"P2PHANDSHAKE", b"127.0.0.1", b"", ctypes.c_uint64(0), 1))
    buffer = ctypes.create_string_buffer(4096)
    assert c.registerLocalMemory(there, buffer, ctypes.c_size_t(4096), b"*", 1) == 0
    session = ctypes.create_string_buffer(64)
    assert c.getLocalIpAndPort(there, session, ctypes.c_size_t(64)) == 0

    engine, memory, address = opened()
    notice = module.TransferNotify("läyer", "17")
    peer = session.value.decode()
    write = module.TransferOpcode.Write
    assert engine.transfer_sync(peer, address, ctypes.addressof(buffer), 4096, write, notice) == 0
    assert buffer.raw[:8] == b"ferried!"
    size = ctypes.c_int()
    notices = c.getNotifsFromEngine(there, ctypes.byref(size))
    assert [(one.name.decode(), one.msg) for one in notices[: size.value]] == [("läyer", b"17")]
    assert c.freeNotifsMsgBuf(notices, size) == 0

    segment = c.openSegment(there, f"127.0.0.1:{engine.get_rpc_port()}".encode())
    batch = ctypes.c_uint64(c.allocateBatchID(there, ctypes.c_size_t(1)))
    buffer[:8] = b"returned"
    back = Request(1, ctypes.addressof(buffer), segment, address, 4096)
    text = Notice("zurück".encode(), b"18")
    assert c.submitTransferWithNotify(there, batch, ctypes.byref(back), ctypes.c_size_t(1), text) == 0
    status = TaskStatus()
    while status.status == 0:
        assert c.getTransferStatus(there, batch, ctypes.c_size_t(0), ctypes.byref(status)) == 0
    assert (status.status, status.transferred_bytes) == (4, 4096)
    assert bytes(memory)[:8] == b"returned"
    assert [(one.name, one.msg) for one in engine.get_notifies()] == [("zurück", "18")]
    c.destroyTransferEngine(there)


def test_notices_that_nobody_asks_for_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_notices, "KEPT_MAX", 8)
    here, there = opened(), opened()
    session = f"127.0.0.1:{here[0].get_rpc_port()}"
    for number in range(20):
        notice = module.TransferNotify("notice", str(number))
        assert there[0].batch_transfer_sync(session, [], [], [], module.TransferOpcode.Write, notice) == 0
    with caplog.at_level(logging.WARNING, "mooncake.engine"):
        assert [one.msg for one in here[0].get_notifies()] == [str(number) for number in range(12, 20)]
    assert "the oldest are dropped" in caplog.text
