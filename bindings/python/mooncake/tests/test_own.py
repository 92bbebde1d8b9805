"""Transfers of an engine with itself: the target is the engine's own session."""

import ctypes
import time

import pytest
from mooncake._own import is_own

import ferry
from mooncake import engine as module

WORDS = 1 << 16
BYTES = 8 * WORDS
Read, Write = module.TransferOpcode.Read, module.TransferOpcode.Write


class Own:
    """An engine with two registered buffers; each 8 bytes of the first encode where they belong."""

    def __init__(self):
        self.engine = module.TransferEngine()
        assert self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        self.session = f"127.0.0.1:{self.engine.get_rpc_port()}"
        self.source, self.target = (
            (ctypes.c_uint64 * WORDS)(*range(1, WORDS + 1)),
            (ctypes.c_uint64 * WORDS)(),
        )
        self.ours, self.theirs = ctypes.addressof(self.source), ctypes.addressof(self.target)
        assert self.engine.batch_register_memory([self.ours, self.theirs], [BYTES, BYTES]) == 0

    def holds(self, at=0, count=WORDS):
        return self.target[at : at + count] == self.source[at : at + count]


@pytest.fixture
def own():
    return Own()


def test_a_write_and_a_read(own):
    assert own.engine.transfer_sync_write(own.session, own.ours, own.theirs, BYTES) == 0
    assert own.holds()
    ctypes.memset(own.theirs, 0, BYTES)
    assert own.engine.transfer_sync_read(own.session, own.theirs, own.ours, 4096) == 0
    assert own.holds(0, 512) and own.target[512:] == [0] * (WORDS - 512)


def test_batches_move_each_block_to_its_place(own):
    blocks = BYTES // 4096
    mirrored = [blocks - 1 - block for block in range(blocks)]
    sources = [own.ours + 4096 * block for block in range(blocks)]
    targets = [own.theirs + 4096 * block for block in mirrored]
    for call, pair in [
        (own.engine.batch_transfer_sync_write, (sources, targets)),
        (own.engine.batch_transfer_sync_read, (targets, sources)),
    ]:
        ctypes.memset(own.theirs, 0, BYTES)
        assert call(own.session, *pair, [4096] * blocks) == 0
        for block, place in enumerate(mirrored):
            assert own.target[512 * place : 512 * (place + 1)] == own.source[512 * block : 512 * (block + 1)]


def test_started_batches(own):
    numbers = [
        own.engine.batch_transfer_async(own.session, [own.ours + at], [own.theirs + at], [4096], Write)
        for at in range(0, BYTES, 4096)
    ]
    assert all(numbers) and own.engine.get_batch_transfer_status(numbers) == 0
    assert own.holds()
    ctypes.memset(own.theirs, 0, BYTES)
    number = own.engine.batch_transfer_async_read(own.session, [own.theirs], [own.ours], [BYTES])
    assert number and own.engine.get_batch_transfer_status([number]) == 0
    assert own.engine.transfer_check_status(number) == 1 and own.holds()


def notices(engine, count):
    """Waits for notices, which arrive by another thread."""
    found = []
    end = time.monotonic() + 20
    while len(found) < count:
        found += [(notice.name, notice.msg) for notice in engine.get_notifies()]
        assert time.monotonic() < end, found
    return found


def test_notices_come_back_with_the_data(own):
    notice = module.TransferNotify("layer", "17")
    assert own.engine.transfer_sync(own.session, own.ours, own.theirs, BYTES, Write, notice) == 0
    assert notices(own.engine, 1) == [("layer", "17")]
    assert own.holds()
    assert (
        own.engine.batch_transfer_sync(own.session, [], [], [], Write, module.TransferNotify("a", "b")) == 0
    )
    assert notices(own.engine, 1) == [("a", "b")]


def test_memory_that_is_not_registered_is_refused_and_untouched(own):
    spare = (ctypes.c_uint64 * 512)()
    at = ctypes.addressof(spare)
    assert own.engine.transfer_sync_write(own.session, own.ours, at, 4096) < 0
    assert own.engine.transfer_sync_read(own.session, own.theirs, at, 4096) < 0
    assert own.engine.transfer_sync_write(own.session, at, own.theirs, 4096) < 0
    assert own.engine.transfer_sync_write(own.session, own.ours, own.theirs + BYTES - 8, 16) < 0
    assert spare[:] == [0] * 512 and own.target[:] == [0] * WORDS


def test_memory_is_a_target_from_its_registration_to_its_end(own):
    assert own.engine.transfer_sync_write(own.session, own.ours, own.theirs, 8) == 0
    for number in range(50):
        spare = (ctypes.c_uint64 * 512)()
        at = ctypes.addressof(spare)
        assert own.engine.register_memory(at, 4096) == 0
        # At once: the engine knows it already.
        assert own.engine.transfer_sync_write(own.session, own.ours, at, 4096) == 0, number
        assert spare[:] == own.source[:512]
        assert own.engine.unregister_memory(at) == 0
        ctypes.memset(at, 0, 4096)
        assert own.engine.transfer_sync_write(own.session, own.ours, at, 4096) < 0
        assert spare[:] == [0] * 512
    address = own.engine.allocate_managed_buffer(4096)
    assert own.engine.transfer_sync_write(own.session, own.ours, address, 4096) == 0
    assert own.engine.read_bytes_from_buffer(address, 4096) == bytes(own.source)[:4096]
    assert own.engine.free_managed_buffer(address, 4096) == 0
    assert own.engine.free_managed_buffer(address, 4096) == -3
    # The memory of the caller is no managed buffer, and a managed buffer no memory of the caller.
    assert own.engine.free_managed_buffer(own.ours, BYTES) == -3
    assert own.engine.unregister_memory(own.ours) == 0


class Refused(ferry.Error):
    pass


def refuse_once(monkeypatch, kind, name):
    """The next call of this method fails; later ones work again."""
    real = getattr(kind, name)

    def fails(*arguments, **settings):
        monkeypatch.setattr(kind, name, real)
        raise Refused(ferry.Status.BUSY, "for the test")

    monkeypatch.setattr(kind, name, fails)


def test_memory_that_cannot_be_unregistered_now_can_be_later(own, monkeypatch):
    assert own.engine.transfer_sync_write(own.session, own.ours, own.theirs, 8) == 0
    refuse_once(monkeypatch, ferry.Region, "unregister")
    assert own.engine.batch_unregister_memory([own.ours, own.theirs]) == ferry.Status.BUSY
    # Nothing is lost: both are registered, here and as targets.
    assert own.engine.transfer_sync_write(own.session, own.ours, own.theirs, BYTES) == 0 and own.holds()
    assert own.engine.batch_unregister_memory([own.ours, own.theirs]) == 0
    assert own.engine.batch_unregister_memory([own.ours]) == -3


def test_an_address_without_brackets_is_not_its_own():
    """ferry refuses it as malformed; read as one IPv6 address it could name another host."""

    class Engine:
        address = "127.0.0.1:5000"

    assert is_own(Engine(), "127.0.0.1:5000") and is_own(Engine(), "[::1]:5000")
    assert not is_own(Engine(), "2001:db8::1:5000") and not is_own(Engine(), "127.0.0.1:5001")


def test_every_name_of_itself_but_no_other(own):
    port = own.engine.get_rpc_port()
    assert own.engine.send_probe(own.session) == 0
    assert own.engine.get_first_buffer_address(own.session) == own.ours
    assert own.engine.transfer_sync_write(f"localhost:{port}", own.ours, own.theirs, BYTES) == 0
    assert own.holds()
    for nobody, code in ((f":{port}", -100), (f"no.such.host.invalid:{port}", -300)):
        assert own.engine.transfer_sync_write(nobody, own.ours, own.theirs, 8) == code
        assert own.engine.send_probe(nobody) == code


def test_others_still_reach_it(own):
    assert own.engine.transfer_sync_write(own.session, own.ours, own.theirs, BYTES) == 0
    other = Own()
    assert other.engine.transfer_sync_read(own.session, other.theirs, own.ours, BYTES) == 0
    assert other.holds()
    assert own.engine.transfer_sync_write(other.session, own.ours, other.theirs, BYTES) == 0
    assert other.holds()
