"""Memory of devices, against the stand-in for the CUDA driver: registered in every way, moved, waited for."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from conftest import positions
from standin import Cuda, CudaArray, DlpackArray, Stream, Tensor, library

import ferry
from ferry import MemoryKind, StartAfter

# More than a piece of staging memory.
LENGTH = (2 << 20) + (64 << 10)
SMALL = 4096


class Devices(NamedTuple):
    """Two engines that know the driver, and the target's inbox in memory of its device 1."""

    cuda: Cuda
    source: ferry.Engine
    target: ferry.Engine
    peer: ferry.Peer
    remote: int
    inbox: ferry.RemoteRegion

    def request(self, region: ferry.Region, length: int) -> list[tuple[int, int, int, int]]:
        return [(region.address, self.inbox.address, length, self.inbox.handle)]


@pytest.fixture(scope="module")
def cuda() -> Iterator[Cuda]:
    """At the end all has been given back, by ferry too."""
    made = Cuda()
    yield made
    made.close()
    gc.collect()
    assert made.complaints() == 0


@pytest.fixture
def devices(cuda: Cuda) -> Iterator[Devices]:
    remote = cuda.alloc(LENGTH, device=1)
    cuda.write(remote, bytes(LENGTH))
    settings = {"cuda_library": library()}
    with ferry.Engine(**settings) as source, ferry.Engine(**settings) as target:
        target.register(CudaArray(remote, LENGTH), name="inbox")
        peer = source.connect(target.address, timeout=10)
        yield Devices(cuda, source, target, peer, remote, peer.region("inbox"))
    cuda.free(remote)


def raw(address: int, length: int) -> Any:
    return (ctypes.c_ubyte * length).from_address(address)


WAYS: dict[str, Callable[[int, int], Any]] = {
    "cuda_array_interface": CudaArray,
    "version 2": lambda at, n: CudaArray(at, n, version=2, strides=None),
    "with strides": lambda at, n: CudaArray(
        at, n, shape=(n // 4096, 1, 512), typestr="<f8", strides=(4096, 77, 8)
    ),
    "tensor": Tensor,
    "dlpack": lambda at, n: DlpackArray(at, (n // 4096, 1024), offset=256),
    "dlpack with strides": lambda at, n: DlpackArray(at, (n // 4096, 1, 1024), strides=(1024, 7, 1)),
    "dlpack without version": lambda at, n: DlpackArray(at, (n // 4,), version=None),
    "address": raw,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("device", [0, 1])
def test_arrays_of_devices_are_sent_and_filled(devices: Devices, way: str, device: int) -> None:
    cuda = devices.cuda
    address = cuda.alloc(LENGTH, device)
    cuda.write(address, positions(LENGTH, 1))
    region = devices.source.register(WAYS[way](address, LENGTH))
    assert (region.address, region.length) == (address, LENGTH)
    # One way through memory of the host, the other as is best: devices of one host copy by themselves.
    before = devices.source.stats()["bytes_device"]
    result = devices.peer.write(devices.request(region, LENGTH), transports=[ferry.Transport.TCP])
    assert (result.bytes_confirmed, result.transport) == (LENGTH, ferry.Transport.TCP)
    assert cuda.read(devices.remote, LENGTH) == positions(LENGTH, 1)

    cuda.write(devices.remote, positions(LENGTH, 2))
    result = devices.peer.read(devices.request(region, LENGTH))
    assert (result.bytes_confirmed, result.transport) == (LENGTH, ferry.Transport.CUDA)
    assert devices.source.stats()["bytes_device"] - before == LENGTH
    assert cuda.read(address, LENGTH) == positions(LENGTH, 2)
    region.unregister()
    cuda.free(address)


def test_the_host_and_a_device_exchange(devices: Devices) -> None:
    memory = devices.source.alloc(LENGTH)
    memory.view[:] = positions(LENGTH, 3)
    request = [(memory.address, devices.inbox.address, LENGTH, devices.inbox.handle)]
    devices.peer.write(request)
    assert devices.cuda.read(devices.remote, LENGTH) == positions(LENGTH, 3)
    devices.cuda.write(devices.remote, positions(LENGTH, 4))
    devices.peer.read(request)
    assert bytes(memory.view) == positions(LENGTH, 4)


def test_managed_and_locked_memory(devices: Devices) -> None:
    cuda = devices.cuda
    managed, pinned = cuda.managed(SMALL), cuda.pinned(SMALL)
    ways = [
        (DlpackArray(managed, (SMALL // 4,), kind=13), MemoryKind.CUDA_MANAGED),
        (DlpackArray(pinned, (SMALL // 4,), kind=3), MemoryKind.CUDA_PINNED),
    ]
    for number, (array, kind) in enumerate(ways):
        with devices.source.register(array) as region:
            # Both are the CPU's, too.
            ctypes.memmove(region.address, positions(SMALL, number), SMALL)
            devices.peer.write(devices.request(region, SMALL))
            assert cuda.read(devices.remote, SMALL) == positions(SMALL, number)
        with devices.target.register(array, name=kind.name):
            devices.peer.probe(10)
            assert devices.peer.region(kind.name).kind == kind


def test_peers_see_the_kind_and_the_device(devices: Devices) -> None:
    assert (devices.inbox.kind, devices.inbox.device) == (MemoryKind.CUDA, 1)
    devices.target.alloc(SMALL, name="plain")
    devices.peer.probe(10)
    plain = devices.peer.region("plain")
    assert (plain.kind, plain.device) == (MemoryKind.HOST, 0)


def test_what_is_stated_is_checked(devices: Devices) -> None:
    address = devices.cuda.alloc(SMALL, device=1)
    array, plain = CudaArray(address, SMALL), bytearray(SMALL)
    register = devices.source.register
    register(array, kind=MemoryKind.CUDA, device=1).unregister()
    register(plain, kind=MemoryKind.HOST).unregister()
    register(array).unregister()
    with pytest.raises(ferry.InvalidError, match="device: address is memory of cuda device 1"):
        register(array, kind=MemoryKind.CUDA, device=0)
    with pytest.raises(ferry.InvalidError, match="kind: address is memory of cuda device 1"):
        register(array, kind=MemoryKind.HOST)
    with pytest.raises(ferry.InvalidError, match="kind: address is no memory of a cuda device"):
        register(plain, kind=MemoryKind.CUDA)
    with pytest.raises(ferry.InvalidError, match="device: 1 is stated without its kind"):
        register(array, device=1)
    with pytest.raises(ferry.InvalidError, match="device must be at least 0.*-1"):
        register(array, kind=MemoryKind.CUDA, device=-1)
    with pytest.raises(ferry.InvalidError, match="kind: 6 is no MemoryKind"):
        register(array, kind=6)
    with pytest.raises(ferry.InvalidError, match="leaves the allocation") as caught:
        devices.source.register_many([plain, CudaArray(address, 1 << 30)])
    assert caught.value.request_index == 1
    register(plain).unregister()
    devices.cuda.free(address)


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


@pytest.mark.parametrize("by", ["cuda_array_interface", "dlpack"])
def test_read_only_arrays_can_be_sent_and_not_offered_for_writing(devices: Devices, by: str) -> None:
    address = devices.cuda.alloc(SMALL)
    devices.cuda.write(address, positions(SMALL, 5))
    array: Any = DlpackArray(address, (SMALL // 4,), readonly=True)
    if by == "cuda_array_interface":
        array = CudaArray(address, SMALL, data=(address, True))
    with devices.source.register(array) as region:
        devices.peer.write(devices.request(region, SMALL))
        assert devices.cuda.read(devices.remote, SMALL) == positions(SMALL, 5)
    with devices.target.register(array, name="shown"):
        devices.peer.probe(10)
        assert devices.peer.region("shown").access == ferry.Access.REMOTE_READ
    with pytest.raises(ferry.InvalidError, match="buffer: it is read-only"):
        devices.source.register(array, access=ferry.Access.REMOTE_WRITE)
    devices.cuda.free(address)


def test_an_array_lives_as_long_as_its_region(devices: Devices) -> None:
    address = devices.cuda.alloc(SMALL)
    array = CudaArray(address, SMALL)
    alive = weakref.ref(array)
    region = devices.source.register(array)
    del array
    gc.collect()
    assert alive() is not None
    region.unregister()
    gc.collect()
    assert alive() is None
    devices.cuda.free(address)


def test_devices_that_are_switched_off_are_named(cuda: Cuda) -> None:
    address = cuda.alloc(SMALL)
    with ferry.Engine(cuda=False) as engine:
        with pytest.raises(ferry.EngineError, match="cuda is switched off") as caught:
            engine.register(CudaArray(address, SMALL), kind=MemoryKind.CUDA)
        assert caught.value.status == ferry.Status.UNAVAILABLE
        with pytest.raises(ferry.InvalidError, match="memory of a device that ferry doesn't know"):
            engine.register(CudaArray(address, SMALL))
    cuda.free(address)


# --- Events and streams -----------------------------------------------------------------------------------


class Has:
    """An object with one attribute, as torch's events and streams."""

    def __init__(self, attribute: str, value: Any) -> None:
        setattr(self, attribute, value)


class Protocol:
    """A stream by CUDA's own protocol for Python."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


POINTS: dict[str, Callable[[Stream], Any]] = {
    "event": lambda stream: (StartAfter.CUDA_EVENT, stream.record()),
    "stream": lambda stream: (StartAfter.CUDA_STREAM, stream.handle),
    "event of torch": lambda stream: Has("cuda_event", stream.record()),
    "stream of torch": lambda stream: Has("cuda_stream", stream.handle),
    "__cuda_stream__": lambda stream: Protocol(stream.handle),
    "__cuda_stream__ as a value": lambda stream: Has("__cuda_stream__", (0, stream.handle)),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_transfer_starts_after_the_work_of_a_stream(devices: Devices, point: str) -> None:
    cuda = devices.cuda
    address = cuda.alloc(SMALL)
    cuda.write(address, bytes(SMALL))
    stream = Stream(cuda)
    stream.block()
    stream.write(address, positions(SMALL, 6))
    with devices.source.register(CudaArray(address, SMALL)) as region:
        after = POINTS[point](stream)
        transfer = devices.peer.submit_write(devices.request(region, SMALL), start_after=after)
        with pytest.raises(ferry.PendingError):
            transfer.wait(0.05)
        assert cuda.read(devices.remote, SMALL) == bytes(SMALL)
        stream.go()
        transfer.wait(30)
        assert cuda.read(devices.remote, SMALL) == positions(SMALL, 6)
    cuda.free(address)


def test_a_call_that_waits_starts_after_an_event_too(devices: Devices) -> None:
    stream = Stream(devices.cuda)
    event = stream.record()
    address = devices.cuda.alloc(SMALL)
    devices.cuda.write(address, positions(SMALL, 7))
    with devices.source.register(Tensor(address, SMALL)) as region:
        queries = devices.cuda.calls("cuEventQuery")
        devices.peer.write(devices.request(region, SMALL), start_after=(StartAfter.CUDA_EVENT, event))
        assert devices.cuda.calls("cuEventQuery") > queries
        assert devices.cuda.read(devices.remote, SMALL) == positions(SMALL, 7)
    devices.cuda.free(address)


def test_an_event_lives_until_its_transfer_is_forgotten(devices: Devices) -> None:
    stream = Stream(devices.cuda)
    stream.block()
    event = Has("cuda_event", stream.record())
    alive = weakref.ref(event)
    memory = devices.source.alloc(SMALL)
    request = [(memory.address, devices.inbox.address, SMALL, devices.inbox.handle)]
    transfer = devices.peer.submit_write(request, start_after=event, ordered=True)
    del event, transfer
    gc.collect()
    assert alive() is not None
    stream.go()
    # In order behind the one that was dropped.
    devices.peer.submit_write(request, ordered=True).wait(30)
    devices.source._release_orphans()
    gc.collect()
    assert alive() is None


WAITING: dict[str, Callable[[int], Any]] = {
    "handle": lambda handle: handle,
    "torch": lambda handle: Has("cuda_stream", handle),
    "__cuda_stream__": Protocol,
}


@pytest.mark.parametrize("way", WAITING)
def test_a_stream_waits_for_a_transfer(devices: Devices, way: str) -> None:
    cuda = devices.cuda
    address = cuda.alloc(SMALL)
    cuda.write(address, bytes(SMALL))
    cuda.write(devices.remote, positions(SMALL, 8))
    held_up, waiting = Stream(cuda), Stream(cuda)
    held_up.block()
    with devices.source.register(CudaArray(address, SMALL)) as region:
        after = (StartAfter.CUDA_EVENT, held_up.record())
        transfer = devices.peer.submit_read(devices.request(region, SMALL), start_after=after)
        transfer.stream_wait(WAITING[way](waiting.handle))
        waiting.read(address, SMALL)
        assert not waiting.is_done() and waiting.staged(SMALL) == bytes(SMALL)
        held_up.go()
        waiting.wait()
        assert transfer.poll() is not None
        assert waiting.staged(SMALL) == positions(SMALL, 8)
    cuda.free(address)


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
    with pytest.raises((ferry.EngineError, ferry.UnsupportedError)):
        transfer.stream_wait(Has("npu_stream", 7))
