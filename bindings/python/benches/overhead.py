"""Measures what Python adds to a call, against C: both sides alternate, in one process, on one engine.

    python benches/overhead.py [ROUNDS]

Needs cc and numpy. Prints a line for each measurement, fields separated by tabs, medians in nanoseconds:
"overhead", what, side, C, the side's own, difference, ratio.
"""

from __future__ import annotations

import ctypes
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ferry
from ferry._abi import library

HERE = Path(__file__).resolve().parent
# Calls in a row: few enough that a busy machine interrupts few of the rounds.
CALLS = 250
PAIRS = 100_000
BLOCK = 64


def c_side() -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "overhead.so")
        include = HERE.parents[2] / "include"
        command = ["cc", "-std=gnu11", "-O2", "-shared", "-fPIC", f"-I{include}"]
        subprocess.run([*command, str(HERE / "overhead.c"), "-o", str(built)], check=True)
        opened = ctypes.CDLL(str(built))
    pointer = ctypes.c_void_p
    opened.writes.argtypes = [pointer, pointer, ctypes.c_uint64, pointer, ctypes.c_size_t]
    opened.submission.argtypes = [pointer, pointer, ctypes.c_uint64, pointer, pointer]
    opened.writes.restype = opened.submission.restype = ctypes.c_double
    return opened


def address(function: Any) -> int:
    found = ctypes.cast(function, ctypes.c_void_p).value
    assert found
    return found


def timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def compare(what: str, rounds: int, sides: dict[str, Callable[[], float]], scale: float) -> None:
    """Prints the medians of the sides, and of the differences and ratios to C of the same round."""
    taken: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(rounds):
        order = list(sides) if turn % 2 else list(reversed(sides))
        for side in order:
            seconds = sides[side]()
            if seconds < 0:
                sys.exit(f"{what}, {side}: a call failed")
            taken[side].append(seconds * scale)
    in_c = taken.pop("C")
    for side, values in taken.items():
        more = statistics.median(mine - its for mine, its in zip(values, in_c))
        ratio = statistics.median(mine / its for mine, its in zip(values, in_c))
        medians = f"{statistics.median(in_c):.1f}\t{statistics.median(values):.1f}"
        print(f"overhead\t{what}\t{side}\t{medians}\t{more:+.1f}\t{ratio:.3f}")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    c = c_side()
    with ferry.Engine() as source, ferry.Engine() as target:
        local = source.alloc(PAIRS * BLOCK)
        remote = target.alloc(2 * PAIRS * BLOCK, name="inbox")
        target_words = np.frombuffer(remote.view, dtype="u8")
        source_words = np.frombuffer(local.view, dtype="u8")
        source_words[:] = np.arange(1, source_words.size + 1)
        peer = source.connect(target.address, 10)
        inbox = peer.region("inbox")
        item = (local.address, inbox.address, 64, inbox.handle)
        requests = ferry.Requests([item])

        def prepared() -> float:
            return timed(lambda: [peer.write(requests) for _ in range(CALLS)])

        def listed() -> float:
            return timed(lambda: [peer.write([item]) for _ in range(CALLS)])

        def from_c() -> float:
            place = requests._address
            seconds: float = c.writes(
                address(library.ferry_write), source._pointer, peer.handle, place, CALLS
            )
            return seconds

        sides = {"C": from_c, "Python": prepared, "Python, of a list of tuples": listed}
        compare("write", rounds, sides, 1e9 / CALLS)
        assert (target_words[:8] == source_words[:8]).all(), "the WRITEs are not there"

        # Every second block, so that no pairs merge.
        local_ids = np.arange(PAIRS, dtype="i8")
        remote_ids = 2 * local_ids

        def blocks() -> ferry.Blocks:
            return ferry.Blocks(
                local_base=[local.address],
                remote_base=[inbox.address],
                local_stride=[BLOCK],
                remote_stride=[BLOCK],
                block_bytes=[BLOCK],
                remote_region=[inbox.handle],
                local_blocks=local_ids,
                remote_blocks=remote_ids,
            )

        held = blocks()

        def blocks_from_c() -> float:
            handle = ctypes.c_uint64()
            seconds: float = c.submission(
                address(library.ferry_transfer_submit_blocks),
                source._pointer,
                peer.handle,
                held._address,
                ctypes.addressof(handle),
            )
            if seconds >= 0:
                ferry.Transfer(source, handle.value, None).wait()
            return seconds

        def blocks_from_python() -> float:
            started = time.perf_counter()
            transfer = peer.submit_write_blocks(blocks())
            seconds = time.perf_counter() - started
            transfer.wait()
            return seconds

        compare(
            "submit_blocks", rounds, {"C": blocks_from_c, "Python, of numpy arrays": blocks_from_python}, 1e9
        )
        arrived = target_words.reshape(-1, BLOCK // 8)[::2]
        assert (arrived == source_words.reshape(-1, BLOCK // 8)).all(), "a block is not in its place"


if __name__ == "__main__":
    main()
