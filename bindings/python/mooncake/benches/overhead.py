"""Measures what `mooncake.engine` adds to ferry's own Python: both sides alternate, in one process, on one
engine.

    python benches/overhead.py [ROUNDS] [tcp|local]...

Needs numpy. Prints a line for each measurement, fields separated by tabs: "mooncake", path, what, ferry's
own side, the module's, the median of the paired differences and of the paired ratios, and the ratios'
quartiles. A call is in microseconds, a throughput in GB/s. The module gets ints and lists of ints in each
call, as its callers have them. ferry's own side has its requests ready before the clock starts, or makes
them of the same lists.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from mooncake.engine import TransferEngine

import ferry

CALLS = 250
WALK_BYTES = 64 << 20
IN_FLIGHT = 4
SECONDS = 0.25

Side = Callable[[], float]


class Bench:
    """A mooncake engine over ferry, a plain ferry engine as its target, and one peer for both sides."""

    def __init__(self, path: str) -> None:
        self.target = ferry.Engine(listen_address="127.0.0.1:0", transports=path)
        self.moon = TransferEngine()
        assert self.moon.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        self.here = np.arange(1, WALK_BYTES // 8 + 1, dtype="u8")
        self.there = np.zeros_like(self.here)
        self.region = self.target.register(self.there)
        assert self.moon.register_memory(self.here.ctypes.data, WALK_BYTES) == 0
        self.session = self.target.address
        engine = self.moon.get_engine()
        assert engine is not None
        self.peer = engine.connect(self.session, 10)
        (chosen,) = [found.transport.name for found in self.peer.paths() if found.chosen]
        assert chosen == path.upper(), f"the path is {chosen}"

    def close(self) -> None:
        engine = self.moon.get_engine()
        assert engine is not None
        engine.close()
        self.target.close()

    def call_sides(self, length: int) -> dict[str, Side]:
        local, remote = self.here.ctypes.data, self.there.ctypes.data
        ready = ferry.Requests([(local, remote, length)])
        write, session = self.moon.transfer_sync_write, self.session

        def ferrys() -> None:
            for _ in range(CALLS):
                self.peer.write(ready)

        def modules() -> None:
            for _ in range(CALLS):
                if write(session, local, remote, length) != 0:
                    raise AssertionError("a call failed")

        def batches() -> None:
            for _ in range(CALLS):
                if self.moon.batch_transfer_sync_write(session, [local], [remote], [length]) != 0:
                    raise AssertionError("a call failed")

        def timed(work: Callable[[], None]) -> Side:
            def run() -> float:
                self.there[: length // 8] = 0
                started = time.perf_counter()
                work()
                taken = (time.perf_counter() - started) / CALLS * 1e6
                assert (self.there[: length // 8] == self.here[: length // 8]).all(), "wrong data"
                return taken

            return run

        return {"ferry": timed(ferrys), "transfer_sync_write": timed(modules), "batch of one": timed(batches)}

    def batch_sides(self, block: int, blocks: int) -> dict[str, Side]:
        slots = WALK_BYTES // (block * blocks)
        shuffled = np.random.default_rng(7)
        ours = shuffled.permutation(slots * blocks).reshape(slots, blocks)
        theirs = shuffled.permutation(slots * blocks).reshape(slots, blocks)
        locals_ = (self.here.ctypes.data + ours * block).tolist()
        remotes = (self.there.ctypes.data + theirs * block).tolist()
        lengths = [block] * blocks
        ready = [ferry.Requests(list(zip(local, remote, lengths))) for local, remote in zip(locals_, remotes)]
        moon, session = self.moon, self.session

        def listed(slot: int) -> ferry.Requests:
            return ferry.Requests.from_columns(locals_[slot], remotes[slot], lengths)

        def check(transfers: int) -> None:
            words = block // 8
            origin, arrived = self.here.reshape(-1, words), self.there.reshape(-1, words)
            for slot in range(min(transfers, slots)):
                assert (arrived[theirs[slot]] == origin[ours[slot]]).all(), f"wrong data in slot {slot}"

        def timed(turn: Callable[[int], object], finish: Callable[[], None]) -> Side:
            def run() -> float:
                self.there[:] = 0
                transfers = 0
                started = time.perf_counter()
                while time.perf_counter() - started < SECONDS:
                    turn(transfers % slots)
                    transfers += 1
                finish()
                taken = time.perf_counter() - started
                check(transfers)
                return transfers * block * blocks / taken / 1e9

            return run

        def started(start: Callable[[int], Any], end: Callable[[Any], None]) -> Side:
            window: deque[Any] = deque()

            def turn(slot: int) -> None:
                if len(window) == IN_FLIGHT:
                    end(window.popleft())
                window.append(start(slot))

            def finish() -> None:
                while window:
                    end(window.popleft())

            return timed(turn, finish)

        def moved(code: int) -> None:
            if code != 0:
                raise AssertionError(f"a batch returned {code}")

        def nothing() -> None:
            pass

        def batch(slot: int) -> int:
            number: int = moon.batch_transfer_async_write(session, locals_[slot], remotes[slot], lengths)
            return number

        return {
            "ferry": timed(lambda slot: self.peer.write(ready[slot]), nothing),
            "ferry, of lists": timed(lambda slot: self.peer.write(listed(slot)), nothing),
            "batch_transfer_sync_write": timed(
                lambda slot: moved(
                    moon.batch_transfer_sync_write(session, locals_[slot], remotes[slot], lengths)
                ),
                nothing,
            ),
            f"ferry, {IN_FLIGHT} in flight": started(
                lambda slot: self.peer.submit_write(ready[slot]), lambda transfer: transfer.wait()
            ),
            f"ferry, of lists, {IN_FLIGHT} in flight": started(
                lambda slot: self.peer.submit_write(listed(slot)), lambda transfer: transfer.wait()
            ),
            f"batch_transfer_async_write, {IN_FLIGHT} in flight": started(
                batch, lambda number: moved(moon.get_batch_transfer_status([number]))
            ),
        }


def alternate(sides: dict[str, Side], rounds: int) -> dict[str, list[float]]:
    """Runs the sides in turns; every second round goes backwards. The first round is not counted."""
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(rounds + 1):
        for side in list(sides) if turn % 2 else list(reversed(sides)):
            value = sides[side]()
            if turn:
                taken[side].append(value)
    return taken


def say(path: str, what: str, side: str, own: list[float], its: list[float]) -> None:
    more = statistics.median(mine - base for mine, base in zip(its, own))
    low, ratio, high = statistics.quantiles([mine / base for mine, base in zip(its, own)], n=4)
    medians = f"{statistics.median(own):.2f}\t{statistics.median(its):.2f}"
    print(
        f"mooncake\t{path}\t{what}\t{side}\t{medians}\t{more:+.2f}\t{ratio:.3f}\t{low:.3f}\t{high:.3f}",
        flush=True,
    )


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    for path in sys.argv[2:] or ["tcp", "local"]:
        bench = Bench(path)
        for length in (64, 4096):
            taken = alternate(bench.call_sides(length), rounds)
            for side in ("transfer_sync_write", "batch of one"):
                say(path, f"{length} B, µs", side, taken["ferry"], taken[side])
        for block in (16384, 4096):
            taken = alternate(bench.batch_sides(block, 1024), rounds)
            names = list(taken)
            for ready, listed, side in zip(names[::3], names[1::3], names[2::3]):
                for own in (ready, listed):
                    beside = f"{side} beside {own}"
                    say(path, f"{block} B × 1,024 scattered, GB/s", beside, taken[own], taken[side])
        bench.close()


if __name__ == "__main__":
    main()
