"""Errors name what is wrong, and carry what is known."""

from __future__ import annotations

import contextlib
import errno
import gc
import pickle
import threading
import warnings
from typing import Any

import pytest
from conftest import LENGTH, Pair

import ferry


def test_settings_are_checked_by_name() -> None:
    with pytest.raises(ferry.InvalidError, match="lanes"):
        ferry.Engine(lanes=0)
    with pytest.raises(ferry.InvalidError, match="lanes"):
        ferry.Engine(lane=1)
    with ferry.Engine(lanes=1, same_user=True, listen_address="") as engine:
        assert engine.address == ""
        with pytest.raises(ferry.Error) as caught:
            engine.descriptor
        assert caught.value.status == ferry.Status.UNAVAILABLE
    keys = [setting.key for setting in ferry.settings()]
    assert "listen_address" in keys and len(keys) > 16


def test_connecting() -> None:
    with ferry.Engine(connect_timeout_ms=500) as engine:
        with pytest.raises(ferry.InvalidError, match="nowhere"):
            engine.connect("nowhere")
        with pytest.raises(ferry.UnreachableError) as caught:
            engine.connect("127.0.0.1:1", timeout=5)
        assert isinstance(caught.value, ConnectionError)
        assert caught.value.errno == errno.ECONNREFUSED
        assert caught.value.status_name == "UNREACHABLE"
        for wrong in (-1, float("nan")):
            with pytest.raises(ferry.InvalidError, match="timeout"):
                engine.connect("127.0.0.1:1", timeout=wrong)
        with pytest.raises(ferry.InvalidError):
            engine.connect_descriptor(b"none")
    with pytest.raises(ferry.ClosedError):
        engine.connect("127.0.0.1:1")


def test_descriptors_find_the_engine(pair: Pair) -> None:
    assert pair.source.connect_descriptor(pair.target.descriptor, timeout=10) == pair.peer
    damaged = bytearray(pair.target.descriptor)
    damaged[-1] ^= 1
    with pytest.raises(ferry.Error) as caught:
        pair.source.connect_descriptor(bytes(damaged))
    assert caught.value.status == ferry.Status.CORRUPT


def test_requests_are_checked_by_index(pair: Pair) -> None:
    good = pair.request(64)
    with pytest.raises(ferry.InvalidError) as caught:
        pair.peer.write([good, (*good[:1], pair.inbox.address + LENGTH, 64, pair.inbox.handle)])
    assert caught.value.request_index == 1 and "requests[1]" in str(caught.value)
    with pytest.raises(ferry.Error) as caught_local:
        pair.peer.write([(4096, *good[1:])])
    assert caught_local.value.status == ferry.Status.NOT_REGISTERED
    assert caught_local.value.request_index == 0
    for wrong in [(1, 2), (1, 2, 3, 4, 5), (-1, 2, 3), ("a", 2, 3), 7]:
        with pytest.raises(ferry.InvalidError, match=r"requests\[1\]") as shaped:
            pair.peer.write([good, wrong])  # type: ignore[list-item]
        assert shaped.value.request_index == 1
    with pytest.raises(ferry.InvalidError, match="length"):
        pair.peer.write([(*good[:2], 0)])


def test_options_that_do_not_fit_are_refused(pair: Pair) -> None:
    wrong: list[tuple[str, Any]] = [
        ("transports", []),
        ("transports", [ferry.Transport.TCP, 64]),
        ("transports", [-1]),
        ("priority", 2**32),
        ("priority", -1),
        ("user_data", 2**64),
        ("user_data", -1),
    ]
    for name, value in wrong:
        with pytest.raises(ferry.InvalidError, match=name):
            pair.peer.write([pair.request(64)], **{name: value})
        with pytest.raises(ferry.InvalidError, match=name):
            pair.peer.submit_write([pair.request(64)], **{name: value})
    greatest = pair.peer.submit_write([pair.request(64)], priority=2**32 - 1, user_data=2**64 - 1)
    assert greatest.wait(10).user_data == 2**64 - 1


def test_results_of_each_request() -> None:
    """The target unregisters one of three regions while transfers to all of them run."""
    with ferry.Engine(transports="tcp") as source, ferry.Engine(transports="tcp") as target:
        local = source.alloc(1 << 20)
        peer = source.connect(target.address)
        for _ in range(20):
            regions = [target.register(bytearray(1 << 20)) for _ in range(3)]
            requests = [(local.address, region.address, 1 << 20, region.handle) for region in regions]
            transfers = [peer.submit_write(requests) for _ in range(100)]
            regions[1].unregister()
            failures = [(transfer, error) for transfer in transfers if (error := failure(transfer))]
            if failures:
                break
        # Otherwise each transfer had ended before the region was gone, each time.
        transfer, failed = failures[-1]
        assert failed.result is not None and failed.result.requests_failed == 1
        assert [(row.request_index, row.status) for row in failed.results] == [(1, ferry.Status.STALE)]
        every = transfer.results()
        assert [row.status for row in every] == [ferry.Status.OK, ferry.Status.STALE, ferry.Status.OK]
        assert [row.bytes_confirmed for row in every][::2] == [1 << 20, 1 << 20]
        assert failed.request_index == 1


def failure(transfer: ferry.Transfer) -> ferry.PartialError | None:
    try:
        transfer.wait(30)
    except ferry.PartialError as error:
        return error
    return None


def transfers() -> int:
    """How many transfers this process holds, or has yet to collect."""
    return sum(type(held) is ferry.Transfer for held in gc.get_objects())


def test_a_failed_transfer_leaves_nothing_to_the_collector() -> None:
    """An exception and a frame that held each other would keep the transfer, and with it freed memory."""
    gc.collect()
    gc.disable()
    try:
        with ferry.Engine(transports="tcp") as source, ferry.Engine(transports="tcp") as target:
            peer, half = source.connect(target.address), 16 << 20
            here, there = source.alloc(2 * half), target.alloc(2 * half)
            halves = [(here.address + at, there.address + at, half, there.handle) for at in (0, half)]
            before = transfers()
            with contextlib.suppress(ferry.TimeoutError):
                peer.write(halves, deadline=1e-9)
                pytest.fail("the transfer was done in a nanosecond")
            assert transfers() == before
            open_one = peer.submit_write(halves)
            source.close()
            with contextlib.suppress(ferry.ClosedError):
                open_one.poll()
                pytest.fail("a closed engine knows the transfer")
            del open_one
            assert transfers() == before
    finally:
        gc.enable()


def test_a_single_request_has_its_result_too() -> None:
    """Another thread unregisters the region while this thread writes to it again and again."""
    with ferry.Engine(transports="tcp") as source, ferry.Engine(transports="tcp") as target:
        local = source.alloc(1 << 20)
        for _ in range(20):
            region = target.register(bytearray(1 << 20))
            peer = source.connect(target.address)
            peer.probe()
            thread = threading.Thread(target=region.unregister)
            with pytest.raises(ferry.Error) as caught:
                for place in range(1000):
                    if place == 3:
                        thread.start()
                    peer.write([(local.address, region.address, 1 << 20, region.handle)])
            thread.join()
            assert caught.value.status == ferry.Status.STALE
            if caught.value.result is not None:
                break
        # Otherwise this engine already knew, each time.
        assert caught.value.result is not None
        assert [(row.request_index, row.status) for row in caught.value.results] == [(0, ferry.Status.STALE)]


def test_a_lost_peer(pair: Pair) -> None:
    with ferry.Engine() as other:
        peer = pair.source.connect(other.address)
        memory = other.alloc(64, name="there")
        peer.probe()
        there = peer.region("there")
        assert memory.length == there.length
        peer.close(10)
        assert peer.info().state == ferry.PeerState.LOST
        with pytest.raises(ferry.ClosedError):
            peer.write([(pair.local.address, there.address, 64, there.handle)])
    pair.peer.fence(10)
    with pytest.raises(ferry.Error):
        pair.peer.write([pair.request(64)])


def test_a_closed_engine(pair: Pair) -> None:
    transfer = pair.peer.submit_write([pair.request(64)])
    transfer.wait(10)
    pair.source.close()
    pair.source.close()
    for use in (
        lambda: pair.source.address,
        lambda: pair.source.alloc(64),
        lambda: pair.peer.write([pair.request(64)]),
        lambda: pair.peer.info(),
        lambda: pair.source.queue(transfers=True),
        lambda: transfer.wait(),
        lambda: pair.source.stats(),
    ):
        with pytest.raises(ferry.ClosedError):
            use()


def test_closing_the_engine_first_is_no_error() -> None:
    target = ferry.Engine()
    inbox = target.alloc(64, name="inbox")
    with ferry.Engine() as engine, engine.alloc(64) as memory, engine.register(bytearray(64)):
        with engine.connect(target.address) as peer, engine.queue(transfers=True):
            there = peer.region("inbox")
            with peer.submit_write([(memory.address, there.address, 64, there.handle)]):
                engine.close()
    inbox.free()
    target.close()


def test_engines_are_not_pickled(pair: Pair) -> None:
    with pytest.raises(TypeError, match="open one in each process"):
        pickle.dumps(pair.source)


def test_knowing(pair: Pair) -> None:
    info = pair.peer.info()
    assert info.state == ferry.PeerState.UP and info.same_host and info.address == pair.target.address
    assert pair.peer.probe(10) > 0
    paths = {path.transport: path for path in pair.peer.paths()}
    assert sum(path.chosen for path in paths.values()) == 1 and all(path.why for path in paths.values())
    pair.peer.write([pair.request()], transports=[ferry.Transport.TCP])
    assert pair.source.stats().bytes_written == LENGTH
    assert "ferry_transfers_done" in pair.source.metrics()
    assert ferry.version().startswith("0.")
    assert "DONE" in repr(pair.peer.write([pair.request()]))


def test_a_variable_that_is_no_setting_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        with ferry.Engine(listen_address="") as engine:
            assert engine.warnings == []
        assert not issued
        monkeypatch.setenv("FERRY_LANE", "4")
        monkeypatch.setenv("FERRY_BOAT", "yes")
        with ferry.Engine(listen_address="") as engine:
            expected = [
                "FERRY_BOAT is not a setting, and changes nothing",
                "FERRY_LANE is not a setting; did you mean FERRY_LANES?",
            ]
            assert engine.warnings == expected
        assert [str(it.message) for it in issued] == expected
        assert all(it.category is RuntimeWarning and it.filename == __file__ for it in issued)
