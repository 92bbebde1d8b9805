"""What ferry-mooncake promises beyond the module that it stands in for."""

import ctypes
import logging
import os
import secrets
import subprocess
import sys

import pytest

from mooncake import engine as module

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
