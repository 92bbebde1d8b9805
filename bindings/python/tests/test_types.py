"""The types that a program sees: members of enums instead of bare numbers, the names under which classes
print, and `with` blocks whose object is gone before their end."""

from __future__ import annotations

import pickle
import select
import traceback

import pytest
from conftest import LENGTH, Pair

import ferry
from ferry._numbers import number


def test_results_have_members_of_enums(pair: Pair) -> None:
    result = pair.peer.write([pair.request()])
    assert result.state is ferry.State.DONE and result.status is ferry.Status.OK
    assert result.fence is ferry.Fence.CONFIRMED
    assert result.notification is ferry.NotificationState.NONE
    assert isinstance(result.transport, ferry.Transport) and result.transport.name in ("TCP", "LOCAL")
    # Programs that compare with numbers continue.
    assert int(result.state) == 3 and int(result.status) == 0
    transfer = pair.peer.submit_write([pair.request()], transports=[ferry.Transport.TCP])
    assert transfer.wait().transport is ferry.Transport.TCP
    (of_request,) = transfer.results()
    assert of_request.status is ferry.Status.OK and of_request.transport is ferry.Transport.TCP


def test_errors_have_members_of_enums(pair: Pair) -> None:
    with pytest.raises(ferry.Error) as caught:
        pair.peer.write([(4096, pair.inbox.address, LENGTH, pair.inbox.handle)])
    assert caught.value.status is ferry.Status.NOT_REGISTERED
    assert caught.value.transport is ferry.Transport.NONE


def test_events_have_members_of_enums(pair: Pair) -> None:
    with pair.source.queue(transfers=True) as queue:
        transfer = pair.peer.submit_write([pair.request()], queue=queue)
        transfer.wait()
        events: list[ferry.Event] = []
        while not events:
            select.select([queue], [], [], 10)
            events = queue.drain()
        assert events[0].kind is ferry.EventKind.TRANSFER and events[0].status is ferry.Status.OK
        assert int(events[0].kind) == 1


def test_a_number_of_a_newer_library_is_a_member_too() -> None:
    unknown = number(ferry.Status, -12345)
    assert isinstance(unknown, ferry.Status) and unknown == -12345 and unknown.name == "-12345"
    assert ferry.Error(-12345, "new").status == unknown
    assert number(ferry.Status, -100) is ferry.Status.INVALID
    with pytest.raises(ValueError):
        ferry.Status(-12345)


def test_types_print_under_the_name_of_the_package() -> None:
    for name in ferry.__all__:
        kind = getattr(ferry, name)
        if isinstance(kind, type):
            assert (kind.__module__, kind.__qualname__) == ("ferry", name)
    assert repr(ferry.Engine) == "<class 'ferry.Engine'>"
    told = traceback.format_exception_only(ferry.BusyError(ferry.Status.BUSY, "in use"))
    assert told == ["ferry.BusyError: BUSY: in use\n"]
    assert pickle.loads(pickle.dumps(ferry.State.DONE)) is ferry.State.DONE


def test_a_block_may_end_what_it_has_opened(pair: Pair) -> None:
    with pair.source.alloc(4096) as memory:
        memory.close()
    with pair.source.register(bytearray(4096)) as region:
        region.close()
    with pair.source.queue(notifications=True) as queue:
        queue.close()
    with pair.source.connect(pair.target.address, timeout=10) as peer:
        peer.close()
    with ferry.Engine() as engine:
        engine.close()


def test_a_block_still_frees_what_is_left(pair: Pair) -> None:
    before = pair.source.stats().regions
    with pair.source.alloc(4096) as memory, pair.source.register(bytearray(4096)):
        assert pair.source.stats().regions == before + 2
    assert pair.source.stats().regions == before and memory.handle == 0
    memory.close()


def test_objects_say_what_they_are_also_when_they_are_closed() -> None:
    with ferry.Engine() as target, ferry.Engine() as source:
        inbox = target.alloc(4096, name="inbox")
        peer = source.connect(target.address, timeout=10)
        assert repr(target) == f"<ferry.Engine at {target.address}, 1 peers, 1 regions>"
        assert repr(peer) == f"<ferry.Peer at {target.address}, UP, 0 transfers>"
        assert repr(inbox) == f"<ferry.Memory 4096 bytes at {inbox.address:#x}>"
        here, region = source.alloc(4096), source.register(bytearray(64))
        assert repr(region) == f"<ferry.Region 64 bytes at {region.address:#x}>"
        queue = source.queue(transfers=True)
        assert repr(queue) == f"<ferry.Queue {queue.handle:#x}, descriptor {queue.fd}>"
        transfer = peer.submit_write([peer.region("inbox").request(here)], queue=queue)
        event = queue.wait(10)
        assert repr(event) == f"<ferry.Event TRANSFER, peer {peer!r}, transfer {transfer.handle:#x}>"
        assert repr(transfer) == f"<ferry.Transfer {transfer.handle:#x}, {transfer.wait()!r}>"
        directory = ferry.Directory(source, "static:a=h:1")
        assert repr(directory) == "<ferry.Directory static:a=h:1, connected, 1 entries, 0 names>"
        for held in (directory, transfer, queue, region, here, peer, inbox, source, target):
            for _ in range(2):
                held.close()  # the second time does nothing
                assert repr(held).startswith("<ferry.")
        assert repr(source) == "<ferry.Engine CLOSED>"
        assert repr(here) == f"<ferry.Memory 4096 bytes at {here.address:#x}, closed>"
        assert repr(directory) == "<ferry.Directory static:a=h:1, CLOSED>"


def test_the_version_is_the_library_s() -> None:
    assert ferry.__version__ == ferry.version()
