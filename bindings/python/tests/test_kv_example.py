"""examples/kv_handoff.py in three processes: a handoff that ends well, and one whose rank 1 dies."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

pytest.importorskip("numpy")

PROGRAM = Path(__file__).resolve().parents[1] / "examples" / "kv_handoff.py"


class Worker:
    def __init__(self, *arguments: str) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([sys.executable, str(PROGRAM), *arguments], text=True, **pipes)  # type: ignore[call-overload]
        self.told: IO[str] = self.process.stdout

    def says(self, word: str) -> str:
        """Returns what the program's next line says after the word."""
        line = self.told.readline()
        assert line.startswith(word + " "), line
        return line.removeprefix(word).strip()

    def hears(self, line: str) -> None:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def three() -> Iterator[tuple[Worker, Worker, Worker]]:
    """Two prefill ranks and a decode worker; the ranks know the id, and compute."""
    with ExitStack() as ends:

        def started(*arguments: str) -> Worker:
            worker = Worker(*arguments)
            ends.callback(worker.end)
            return worker

        first, second = started("prefill", "0"), started("prefill", "1")
        decode = started("decode", first.says("ADDRESS"), second.says("ADDRESS"))
        id = decode.says("ID")
        assert re.fullmatch("[0-9a-f]{32}", id)
        for worker in (first, second):
            worker.hears(f"ID {id}")
        yield first, second, decode


def test_a_handoff() -> None:
    with three() as (first, second, decode):
        *layers, last = decode.told.read().splitlines()
        assert last == "RECEIVED 256" and decode.process.wait() == 0
        counts = [int(line.removeprefix("LAYERS ")) for line in layers]
        assert counts == sorted(set(counts)) and counts[-1] == 32
        for worker in (first, second):
            assert worker.told.readline().startswith("<ferry.kv.Event SENT, id <ferry.kv.Id ")
            assert worker.process.wait() == 0


def test_a_rank_that_dies() -> None:
    with three() as (first, second, decode):
        while int(decode.says("LAYERS")) < 4:
            pass
        second.process.kill()
        *_, last = decode.told.read().splitlines()
        told = re.fullmatch(
            r"ended: (\w+) (\w+) by rank (\d+) \(peer ([\d.:]+)\): (.+); (\d+) tokens valid", last
        )
        assert told is not None, last
        assert (told[1], told[3], told[6]) == ("PEER_LOST", "1", "0") and decode.process.wait() == 3
        # The other rank learns that its taker has ended.
        assert "SENT" not in first.told.readline() and first.process.wait() == 0
