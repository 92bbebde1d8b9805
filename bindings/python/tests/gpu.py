"""Two processes move CUDA tensors of torch to one another on a real GPU, every byte compared:

    python3 bindings/python/tests/gpu.py      # needs torch with CUDA, and ferry

The transfers are staged over TCP and on one host, and direct where one process maps the other's memory: READ
and WRITE, whole and as scattered blocks, to and from host memory, after a stream's work, and with a stream
that waits. Prints GB/s beside those of a copy by torch. test_devices.py tests the same against stand-ins,
with faults; this program shows that the driver does what the stand-ins assume."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch  # type: ignore[import-not-found]

import ferry

BYTES = 256 << 20
# The order of the far blocks.
WHOLE = np.arange(1)
BLOCKS = np.random.default_rng(7).permutation(BYTES // (64 << 10))
ROUNDS = 5
# A kernel of this many cycles takes about 50 ms.
CYCLES = 100_000_000


def pattern(seed: int) -> torch.Tensor:
    """Returns bytes that encode their position and the seed."""
    at = torch.arange(BYTES // 8, dtype=torch.int64, device="cuda")
    return (at * 2654435761 + seed).view(torch.uint8)


def target(transports: str) -> None:
    """The other process: offers three memories, and answers commands about them."""
    source, sink = pattern(1), torch.zeros(BYTES, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    with ferry.Engine(transports=transports) as engine, engine.alloc(BYTES, name="host") as host:
        engine.register(source, name="source")
        engine.register(sink, name="sink")
        print(engine.address, flush=True)
        for line in sys.stdin:
            command, seed = line.split()
            if command == "sink":
                answer = bool(torch.equal(sink, pattern(int(seed))))
            elif command == "host":
                answer = bytes(host.view) == pattern(int(seed)).cpu().numpy().tobytes()
            else:
                sink.zero_()
                torch.cuda.synchronize()
                answer = True
            print(answer, flush=True)


class Other:
    """The target's process."""

    def __init__(self, transports: str) -> None:
        command = [sys.executable, __file__, "target", transports]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def holds(self, what: str, seed: int) -> bool:
        assert self.process.stdin is not None
        print(what, seed, file=self.process.stdin, flush=True)
        return self.line() == "True"


@contextmanager
def other(transports: str) -> Iterator[Other]:
    it = Other(transports)
    try:
        yield it
    finally:
        it.process.kill()
        it.process.wait()


def requests(near: Any, far: Any, order: "np.ndarray[Any, Any]") -> Any:
    """Block n of the near memory, and block order[n] of the far memory."""
    length = BYTES // order.size
    made = np.zeros(order.size, dtype=ferry.REQUEST_DTYPE)
    made["local"] = near.address + length * np.arange(order.size)
    made["remote"] = far.address + length * order
    made["length"] = length
    made["remote_region"] = far.handle
    return made


def rate(move: Any) -> tuple[float, Any]:
    """The best of some rounds, in GB/s, and the last result."""
    best, result = 0.0, None
    for _ in range(ROUNDS):
        began = time.perf_counter()
        result = move()
        best = max(best, BYTES / (time.perf_counter() - began) / 1e9)
    return best, result


def torch_rate(to: torch.Tensor, of: torch.Tensor) -> float:
    def copy() -> None:
        to.copy_(of)
        torch.cuda.synchronize()

    return rate(copy)[0]


def told(transports: str, name: str, reads: float, writes: float, result: ferry.Result) -> None:
    by = result.transport.name
    print(f"{transports:14} {name:17} READ {reads:7.2f} WRITE {writes:7.2f} GB/s, by {by}")


def check(transports: str) -> None:
    with other(transports) as there, ferry.Engine(transports=transports) as engine:
        mine = torch.zeros(BYTES, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        near = engine.register(mine)
        peer = engine.connect(there.address, timeout=30)
        source, sink, host = (peer.region(name) for name in ("source", "sink", "host"))
        assert source.kind == ferry.MemoryKind.CUDA, source.kind
        for path in peer.paths():
            print(f"  {path}")

        for name, order in (("whole", WHOLE), ("blocks of 64 KiB", BLOCKS)):
            mine.zero_()
            torch.cuda.synchronize()
            wanted = requests(near, source, order)
            reads, result = rate(lambda: peer.read(wanted))
            expected = pattern(1).view(order.size, -1)[torch.from_numpy(order).cuda()]
            assert torch.equal(mine.view(order.size, -1), expected), f"READ, {name}: other bytes came"
            assert there.holds("zero", 0)
            wanted = requests(near, sink, order)
            writes, _ = rate(lambda: peer.write(wanted))
            assert there.holds("sink", 1), f"WRITE, {name}: other bytes came"
            told(transports, name, reads, writes, result)

        mine.copy_(pattern(2))
        torch.cuda.synchronize()
        writes, result = rate(lambda: peer.write(requests(near, host, WHOLE)))
        assert there.holds("host", 2), "WRITE to the host: other bytes came"
        mine.zero_()
        torch.cuda.synchronize()
        reads, _ = rate(lambda: peer.read(requests(near, host, WHOLE)))
        assert torch.equal(mine, pattern(2)), "READ from the host: other bytes than were there"
        told(transports, "host memory", reads, writes, result)

        # A WRITE that starts after a kernel sends the bytes that the stream writes after that kernel.
        stream, fresh = torch.cuda.Stream(), pattern(3)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(CYCLES)
            mine.copy_(fresh)
        transfer = peer.submit_write(requests(near, sink, WHOLE), start_after=stream)
        assert transfer.poll() is None and not stream.query(), "the kernel was too short to tell"
        transfer.wait(30)
        assert there.holds("sink", 3), "a WRITE began before its stream was there"

        # A stream that waits for a READ computes with the READ's bytes.
        torch.cuda.synchronize()
        transfer = peer.submit_read(requests(near, source, WHOLE))
        transfer.stream_wait(stream)
        with torch.cuda.stream(stream):
            copied = mine.clone()
        stream.synchronize()
        assert torch.equal(copied, pattern(1)), "a stream did not wait for its READ"
        transfer.wait(30)
        print(f"{transports:14} behind a stream, and a stream behind a transfer: right")


def main() -> None:
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, ferry {ferry.version()}")
    device, again = pattern(1), torch.empty(BYTES, dtype=torch.uint8, device="cuda")
    host = torch.empty(BYTES, dtype=torch.uint8, pin_memory=True)
    print(
        f"copies by torch: device to device {torch_rate(again, device):.2f} GB/s, to pinned memory "
        f"{torch_rate(host, device):.2f}, from it {torch_rate(again, host):.2f}"
    )
    for transports in ("tcp", "local,tcp", "cuda,local,tcp"):
        check(transports)


if __name__ == "__main__":
    target(sys.argv[2]) if sys.argv[1:2] == ["target"] else main()
