"""Memory of devices, against stand-ins for their libraries: registered in every way, moved, waited for.

Above 500 lines: all share the two engines and the program at the top, which both libraries are run with.
"""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import positions
from standin import (
    ASCEND,
    CUDA,
    LIBRARIES,
    CudaArray,
    DlpackArray,
    Library,
    NpuTensor,
    Program,
    Stream,
    Tensor,
)

import ferry
from ferry import MemoryKind, StartAfter

# More than a piece of staging memory.
LENGTH = (2 << 20) + (64 << 10)
SMALL = 4096


class Devices(NamedTuple):
    """Two engines that know the library; the target's inbox is in memory of its device 1."""

    program: Program
    source: ferry.Engine
    target: ferry.Engine
    peer: ferry.Peer
    remote: int
    inbox: ferry.RemoteRegion

    def request(self, region: ferry.Region, length: int) -> list[tuple[int, int, int, int]]:
        return [(region.address, self.inbox.address, length, self.inbox.handle)]


def by_name(library: Library) -> str:
    return library.name


@pytest.fixture(scope="module", params=LIBRARIES, ids=by_name)
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    """Checks at the end that all objects have been freed, ferry's included."""
    made = Program(request.param)
    yield made
    gc.collect()
    assert made.close() == 0


of_cuda = pytest.mark.parametrize("program", [CUDA], indirect=True, ids=by_name)


@pytest.fixture
def devices(program: Program) -> Iterator[Devices]:
    remote = program.alloc(LENGTH, device=1)
    settings: dict[str, Any] = program.library.settings()
    with ferry.Engine(**settings) as source, ferry.Engine(**settings) as target:
        target.register(raw(remote, LENGTH), name="inbox")
        peer = source.connect(target.address, timeout=10)
        yield Devices(program, source, target, peer, remote, peer.region("inbox"))
    program.free(remote)


def raw(address: int, length: int) -> Any:
    return (ctypes.c_ubyte * length).from_address(address)


WAYS: dict[str, Callable[[int, int], Any]] = {
    "tensor": Tensor,
    "tensor of torch_npu": NpuTensor,
    "address": raw,
}
WAYS_OF_CUDA: dict[str, Callable[[int, int], Any]] = {
    "cuda_array_interface": CudaArray,
    "version 2": lambda at, n: CudaArray(at, n, version=2, strides=None),
    "with strides": lambda at, n: CudaArray(
        at, n, shape=(n // 4096, 1, 512), typestr="<f8", strides=(4096, 77, 8)
    ),
    "dlpack": lambda at, n: DlpackArray(at, (n // 4096, 1024), offset=256),
    "dlpack with strides": lambda at, n: DlpackArray(at, (n // 4096, 1, 1024), strides=(1024, 7, 1)),
    "dlpack without version": lambda at, n: DlpackArray(at, (n // 4,), version=None),
}


def sent_and_filled(devices: Devices, array: Callable[[int, int], Any], device: int) -> None:
    program = devices.program
    address = program.alloc(LENGTH, device)
    program.write(address, positions(LENGTH, 1))
    region = devices.source.register(array(address, LENGTH))
    assert (region.address, region.length) == (address, LENGTH)
    # One direction goes through host memory, the other by the best path: devices of one host copy by
    # themselves, if the library lets a process map what it has exported itself.
    before = devices.source.stats().bytes_device
    result = devices.peer.write(devices.request(region, LENGTH), transports=[ferry.Transport.TCP])
    assert (result.bytes_confirmed, result.transport) == (LENGTH, ferry.Transport.TCP)
    assert devices.source.stats().bytes_device == before
    assert program.read(devices.remote, LENGTH) == positions(LENGTH, 1)

    program.write(devices.remote, positions(LENGTH, 2))
    result = devices.peer.read(devices.request(region, LENGTH))
    best = ferry.Transport.CUDA if program.library is CUDA else ferry.Transport.LOCAL
    assert (result.bytes_confirmed, result.transport) == (LENGTH, best)
    copied = devices.source.stats().bytes_device - before
    assert copied == (LENGTH if best == ferry.Transport.CUDA else 0)
    assert program.read(address, LENGTH) == positions(LENGTH, 2)
    region.unregister()
    program.free(address)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("device", [0, 1])
def test_arrays_of_devices_are_sent_and_filled(devices: Devices, way: str, device: int) -> None:
    sent_and_filled(devices, WAYS[way], device)


@of_cuda
@pytest.mark.parametrize("way", WAYS_OF_CUDA)
@pytest.mark.parametrize("device", [0, 1])
def test_arrays_of_cuda_are_sent_and_filled(devices: Devices, way: str, device: int) -> None:
    sent_and_filled(devices, WAYS_OF_CUDA[way], device)


def test_the_host_and_a_device_exchange(devices: Devices) -> None:
    memory = devices.source.alloc(LENGTH)
    memory.view[:] = positions(LENGTH, 3)
    request = [(memory.address, devices.inbox.address, LENGTH, devices.inbox.handle)]
    devices.peer.write(request)
    assert devices.program.read(devices.remote, LENGTH) == positions(LENGTH, 3)
    devices.program.write(devices.remote, positions(LENGTH, 4))
    devices.peer.read(request)
    assert bytes(memory.view) == positions(LENGTH, 4)


PEER = """
import sys
import ferry, standin
from conftest import positions
from test_devices import LENGTH, raw

program = standin.Program(standin.LIBRARIES[int(sys.argv[1])])
address = program.alloc(LENGTH, 1)
program.write(address, positions(LENGTH, 1))
with ferry.Engine(**program.library.settings()) as engine:
    engine.register(raw(address, LENGTH), name="inbox")
    print(engine.address, flush=True)
    sys.stdin.readline()
    print(program.read(address, LENGTH) == positions(LENGTH, 2), flush=True)
    sys.stdin.readline()
program.free(address)
sys.exit(program.close())
"""


def test_devices_of_two_processes_copy_by_themselves(program: Program) -> None:
    library = program.library
    command = [sys.executable, "-c", PEER, str(LIBRARIES.index(library))]
    other = subprocess.Popen(
        command, cwd=Path(__file__).parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert other.stdin is not None and other.stdout is not None
    address = program.alloc(LENGTH)
    settings: dict[str, Any] = library.settings()
    with other:
        with ferry.Engine(**settings) as engine, engine.register(raw(address, LENGTH)) as region:
            peer = engine.connect(other.stdout.readline().strip(), timeout=10)
            inbox = peer.region("inbox")
            assert (inbox.kind, inbox.device) == (library.kind, 1)
            request = [(address, inbox.address, LENGTH, inbox.handle)]
            assert peer.read(request).transport == library.transport
            assert program.read(address, LENGTH) == positions(LENGTH, 1)
            program.write(address, positions(LENGTH, 2))
            assert peer.write(request).transport == library.transport
            print(file=other.stdin, flush=True)
            assert other.stdout.readline() == "True\n"
            assert region.length == LENGTH
        # AscendCL requires that the importer closes its keys before the exporter does.
        other.stdin.close()
        assert other.wait(30) == 0
    program.free(address)


def test_a_thread_that_has_never_used_a_device_moves_its_memory(devices: Devices) -> None:
    program = devices.program
    address = program.alloc(SMALL, device=1)
    program.write(address, positions(SMALL, 3))
    ended: list[ferry.Result] = []

    def work() -> None:
        with devices.source.register(raw(address, SMALL), kind=program.library.kind, device=1) as region:
            ended.append(devices.peer.write(devices.request(region, SMALL)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [result.bytes_confirmed for result in ended] == [SMALL]
    assert program.read(devices.remote, SMALL) == positions(SMALL, 3)
    program.free(address)


def test_memory_that_was_freed_fails_what_names_it(devices: Devices) -> None:
    program, register = devices.program, devices.source.register
    gone, kept = program.alloc(SMALL), program.alloc(SMALL)
    regions = [register(raw(address, SMALL)) for address in (gone, kept)]
    program.free(gone)
    with pytest.raises(ferry.Error) as caught:
        devices.peer.write(devices.request(regions[0], SMALL))
    refused = caught.value
    assert refused.result is not None and refused.result.bytes_confirmed == 0
    # ferry asks CUDA before it copies; AscendCL refuses the copy.
    code, said = (0, "") if program.library is CUDA else (107000, ", code 107000")
    assert [refused.vendor_error, refused.results[0].vendor_error] == [code, code]
    assert str(refused) == f"INVALID: 1 of 1 requests failed, the first with INVALID{said}"
    devices.peer.write(devices.request(regions[1], SMALL))
    for region in regions:
        region.unregister()
    with pytest.raises(ferry.InvalidError, match="not mapped in this process, or are memory of a device"):
        register(raw(gone, SMALL))
    program.free(kept)


@of_cuda
def test_managed_and_locked_memory(devices: Devices) -> None:
    cuda = devices.program.functions
    managed, pinned = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuMemAllocManaged(ctypes.byref(managed), ctypes.c_size_t(SMALL), ctypes.c_uint(1)) == 0
    assert cuda.cuMemHostAlloc(ctypes.byref(pinned), ctypes.c_size_t(SMALL), ctypes.c_uint(0)) == 0
    ways = [
        (DlpackArray(managed.value or 0, (SMALL // 4,), kind=13), MemoryKind.CUDA_MANAGED),
        (DlpackArray(pinned.value or 0, (SMALL // 4,), kind=3), MemoryKind.CUDA_PINNED),
    ]
    for number, (array, kind) in enumerate(ways):
        with devices.source.register(array) as region:
            # Both kinds are host memory, too.
            ctypes.memmove(region.address, positions(SMALL, number), SMALL)
            devices.peer.write(devices.request(region, SMALL))
            assert devices.program.read(devices.remote, SMALL) == positions(SMALL, number)
        with devices.target.register(array, name=kind.name):
            devices.peer.probe(10)
            assert devices.peer.region(kind.name).kind == kind
    assert cuda.cuMemFree_v2(managed) == 0 and cuda.cuMemFreeHost(pinned) == 0


def test_peers_see_the_kind_and_the_device(devices: Devices) -> None:
    assert (devices.inbox.kind, devices.inbox.device) == (devices.program.library.kind, 1)
    devices.target.alloc(SMALL, name="plain")
    devices.peer.probe(10)
    plain = devices.peer.region("plain")
    assert (plain.kind, plain.device) == (MemoryKind.HOST, 0)


def test_what_is_stated_is_checked(devices: Devices) -> None:
    address = devices.program.alloc(SMALL, device=1)
    array, plain = Tensor(address, SMALL), bytearray(SMALL)
    register, kind, name = devices.source.register, devices.program.library.kind, devices.program.library.name
    register(array, kind=kind, device=1).unregister()
    register(plain, kind=MemoryKind.HOST).unregister()
    register(array).unregister()
    with pytest.raises(ferry.InvalidError, match=f"device: address is memory of {name} device 1"):
        register(array, kind=kind, device=0)
    with pytest.raises(ferry.InvalidError, match=f"kind: address is memory of {name} device 1"):
        register(array, kind=MemoryKind.HOST)
    with pytest.raises(ferry.InvalidError, match=f"kind: address is no memory of a {name} device"):
        register(plain, kind=kind)
    with pytest.raises(ferry.InvalidError, match="device: 1 is stated without its kind"):
        register(array, device=1)
    with pytest.raises(ferry.InvalidError, match="device must be at least 0.*-1"):
        register(array, kind=kind, device=-1)
    with pytest.raises(ferry.InvalidError, match="kind: one of AUTO, .* of ferry.s MemoryKind, not 7"):
        register(array, kind=7)
    with pytest.raises(ferry.InvalidError, match="leaves the allocation") as caught:
        devices.source.register_many([plain, Tensor(address, 1 << 30)])
    assert caught.value.request_index == 1
    register(plain).unregister()
    devices.program.free(address)


@of_cuda
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"version": 1}, "version 1, not 2 or 3"),
        ({"version": 4}, "version 4, not 2 or 3"),
        ({"shape": (64, 32), "strides": (64, 1)}, r"not contiguous: shape \(64, 32\), strides \(64, 1\)"),
        ({"shape": (8, 8), "strides": (1, 8)}, "not contiguous"),
        ({"strides": (-1,)}, "not contiguous"),
        ({"strides": (1, 1)}, "2 strides for 1 dimensions"),
        ({"shape": (-1,)}, "shape"),
        ({"shape": 64}, "TypeError"),
        ({"typestr": "f"}, "typestr 'f'"),
        ({"data": 4096}, "TypeError"),
        ({"mask": object()}, "mask"),
    ],
)
def test_cuda_arrays_that_are_not_as_they_should_be(
    devices: Devices, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ferry.InvalidError, match=f"buffer.*{message}"):
        devices.source.register(CudaArray(4096, 64, **changed))


@of_cuda
def test_other_arrays_that_are_not_as_they_should_be(devices: Devices) -> None:
    register = devices.source.register
    with pytest.raises(ferry.InvalidError, match="buffer: it is not contiguous"):
        register(Tensor(4096, 64, contiguous=False))
    with pytest.raises(ferry.InvalidError, match="buffer: it is not contiguous: .*strides"):
        register(DlpackArray(4096, (8, 8), strides=(16, 1)))
    with pytest.raises(ferry.InvalidError, match="4 bits"):
        register(DlpackArray(4096, (8,), bits=4))
    with pytest.raises(ferry.InvalidError, match="version 2.0"):
        register(DlpackArray(4096, (8,), version=2))
    with pytest.raises(ferry.UnsupportedError, match="buffer is of DLPack device type 10"):
        register(DlpackArray(4096, (8,), kind=10))
    used = DlpackArray(4096, (8,))
    used.__dlpack__ = lambda **_: "capsule"  # type: ignore[method-assign]
    with pytest.raises(ferry.InvalidError, match="__dlpack__ returned str"):
        register(CapsuleOf(used))
    with pytest.raises(ferry.InvalidError, match="length is 0"):
        register(CudaArray(4096, 0, shape=(0, 7), strides=(1, 1)))


class CapsuleOf:
    def __init__(self, array: DlpackArray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)


@of_cuda
@pytest.mark.parametrize("by", ["cuda_array_interface", "dlpack"])
def test_read_only_arrays_can_be_sent_and_not_offered_for_writing(devices: Devices, by: str) -> None:
    address = devices.program.alloc(SMALL)
    devices.program.write(address, positions(SMALL, 5))
    array: Any = DlpackArray(address, (SMALL // 4,), readonly=True)
    if by == "cuda_array_interface":
        array = CudaArray(address, SMALL, data=(address, True))
    with devices.source.register(array) as region:
        devices.peer.write(devices.request(region, SMALL))
        assert devices.program.read(devices.remote, SMALL) == positions(SMALL, 5)
    with devices.target.register(array, name="shown"):
        devices.peer.probe(10)
        assert devices.peer.region("shown").access == ferry.Access.REMOTE_READ
    with pytest.raises(ferry.InvalidError, match="buffer: it is read-only"):
        devices.source.register(array, access=ferry.Access.REMOTE_WRITE)
    devices.program.free(address)


def test_an_array_lives_as_long_as_its_region(devices: Devices) -> None:
    address = devices.program.alloc(SMALL)
    array = Tensor(address, SMALL)
    alive = weakref.ref(array)
    region = devices.source.register(array)
    del array
    gc.collect()
    assert alive() is not None
    region.unregister()
    gc.collect()
    assert alive() is None
    devices.program.free(address)


def test_devices_that_are_switched_off_are_named(program: Program) -> None:
    library, address = program.library, program.alloc(SMALL)
    off: dict[str, Any] = {library.name: False}
    with ferry.Engine(**off) as engine:
        with pytest.raises(ferry.EngineError, match=f"{library.name} is switched off") as caught:
            engine.register(Tensor(address, SMALL), kind=library.kind)
        assert caught.value.status == ferry.Status.UNAVAILABLE
        with pytest.raises(ferry.InvalidError, match="memory of a device that ferry doesn't know"):
            engine.register(Tensor(address, SMALL))
    program.free(address)


# --- Events and streams -----------------------------------------------------------------------------------


class Has:
    """An object with one attribute, like torch's events and streams."""

    def __init__(self, attribute: str, value: Any) -> None:
        setattr(self, attribute, value)


class Protocol:
    """A stream with CUDA's own protocol for Python."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


POINTS: dict[str, Callable[[Library, Stream], Any]] = {
    "event": lambda library, stream: (library.event, stream.record()),
    "stream": lambda library, stream: (library.stream, stream.handle),
    "event of torch": lambda library, stream: Has(f"{library.word}_event", stream.record()),
    "stream of torch": lambda library, stream: Has(f"{library.word}_stream", stream.handle),
}
POINTS_OF_CUDA: dict[str, Callable[[Library, Stream], Any]] = {
    "__cuda_stream__": lambda _, stream: Protocol(stream.handle),
    "__cuda_stream__ as a value": lambda _, stream: Has("__cuda_stream__", (0, stream.handle)),
}


def starts_after(devices: Devices, point: Callable[[Library, Stream], Any]) -> None:
    program = devices.program
    address = program.alloc(SMALL)
    stream = program.stream(SMALL)
    with devices.source.register(Tensor(address, SMALL)) as region:
        stream.block()
        stream.write(address, positions(SMALL, 6))
        after = point(program.library, stream)
        transfer = devices.peer.submit_write(devices.request(region, SMALL), start_after=after)
        with pytest.raises(ferry.PendingError):
            transfer.wait(0.05)
        assert program.read(devices.remote, SMALL) == bytes(SMALL)
        stream.go()
        transfer.wait(30)
        assert program.read(devices.remote, SMALL) == positions(SMALL, 6)
    program.free(address)


@pytest.mark.parametrize("point", POINTS)
def test_a_transfer_starts_after_the_work_of_a_stream(devices: Devices, point: str) -> None:
    starts_after(devices, POINTS[point])


@of_cuda
@pytest.mark.parametrize("point", POINTS_OF_CUDA)
def test_a_transfer_starts_after_the_work_of_a_stream_of_cuda(devices: Devices, point: str) -> None:
    starts_after(devices, POINTS_OF_CUDA[point])


def test_a_call_that_waits_starts_after_an_event_too(devices: Devices) -> None:
    program = devices.program
    query = "cuEventQuery" if program.library is CUDA else "aclrtQueryEventStatus"
    event = program.stream().record()
    address = program.alloc(SMALL)
    program.write(address, positions(SMALL, 7))
    with devices.source.register(Tensor(address, SMALL)) as region:
        queries = program.calls(query)
        devices.peer.write(devices.request(region, SMALL), start_after=(program.library.event, event))
        assert program.calls(query) > queries
        assert program.read(devices.remote, SMALL) == positions(SMALL, 7)
    program.free(address)


def test_an_event_lives_until_its_transfer_is_forgotten(devices: Devices) -> None:
    stream = devices.program.stream()
    stream.block()
    event = Has(f"{devices.program.library.word}_event", stream.record())
    alive = weakref.ref(event)
    memory = devices.source.alloc(SMALL)
    request = [(memory.address, devices.inbox.address, SMALL, devices.inbox.handle)]
    transfer = devices.peer.submit_write(request, start_after=event, ordered=True)
    del event, transfer
    gc.collect()
    assert alive() is not None
    stream.go()
    # In order after the dropped transfer.
    devices.peer.submit_write(request, ordered=True).wait(30)
    devices.source._release_orphans()
    gc.collect()
    assert alive() is None


WAITING: dict[str, Callable[[int], Any]] = {
    "handle": lambda handle: handle,
    "torch": lambda handle: Has("cuda_stream", handle),
    "__cuda_stream__": Protocol,
}


@of_cuda
@pytest.mark.parametrize("way", WAITING)
def test_a_stream_waits_for_a_transfer(devices: Devices, way: str) -> None:
    program = devices.program
    address = program.alloc(SMALL)
    program.write(devices.remote, positions(SMALL, 8))
    held_up, waiting = program.stream(), program.stream()
    held_up.block()
    with devices.source.register(Tensor(address, SMALL)) as region:
        after = (StartAfter.CUDA_EVENT, held_up.record())
        transfer = devices.peer.submit_read(devices.request(region, SMALL), start_after=after)
        transfer.stream_wait(WAITING[way](waiting.handle))
        waiting.read(address)
        assert not waiting.is_done() and waiting.staged(SMALL) == bytes(SMALL)
        held_up.go()
        waiting.wait()
        assert transfer.poll() is not None
        assert waiting.staged(SMALL) == positions(SMALL, 8)
    program.free(address)


@pytest.mark.parametrize("program", [ASCEND], indirect=True, ids=by_name)
def test_what_streams_of_ascend_cannot_do_is_said(devices: Devices) -> None:
    memory = devices.source.alloc(SMALL)
    request = [(memory.address, devices.inbox.address, SMALL, devices.inbox.handle)]
    stream = Has("npu_stream", devices.program.stream().handle)
    refused: list[BaseException] = []

    def work() -> None:
        try:
            devices.peer.submit_write(request, start_after=stream)
        except ferry.UnsupportedError as error:
            refused.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert "a thread whose current context is the stream's; record an event there" in str(refused[0])
    transfer = devices.peer.submit_write(request, start_after=stream)
    with pytest.raises(ferry.UnsupportedError, match="AscendCL has no way to hold a stream from the host"):
        transfer.stream_wait(stream)
    transfer.wait(30)


@of_cuda
def test_points_and_streams_that_are_none_are_named(devices: Devices) -> None:
    memory = devices.source.alloc(SMALL)
    request = [(memory.address, devices.inbox.address, 64, devices.inbox.handle)]
    for wrong, message in [
        (7, "start_after must be an event or a stream .*not int"),
        (Has("cuda_event", 0), "start_after.cuda_event is 0: the event has not been recorded"),
        (Has("cuda_event", "7"), "start_after.cuda_event: '7' is no handle"),
        (Has("__cuda_stream__", (1, 7)), r"__cuda_stream__ gave \(1, 7\), not version 0"),
        ((5, 7), "start_after: 5 is no StartAfter"),
        ((StartAfter.CUDA_EVENT, -1), "start_after: -1 is no handle"),
        ((StartAfter.CUDA_EVENT, 0), "event is 0"),
    ]:
        with pytest.raises(ferry.InvalidError, match=message):
            devices.peer.submit_write(request, start_after=wrong)
    with pytest.raises(ferry.EngineError) as caught:
        devices.peer.submit_write(request, start_after=Has("npu_stream", 7))
    assert caught.value.status == ferry.Status.UNAVAILABLE
    transfer = devices.peer.submit_write(request)
    transfer.wait(30)
    for wrong, message in [
        ("7", "stream must be a CUDA stream's handle.*not str"),
        (-1, "stream: -1 is no handle"),
        (2**64, "is no handle"),
    ]:
        with pytest.raises(ferry.InvalidError, match=message):
            transfer.stream_wait(wrong)
    with pytest.raises(ferry.EngineError):
        transfer.stream_wait(Has("npu_stream", 7))
