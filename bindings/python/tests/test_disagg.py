"""examples/disagg: a prefill and a decode process, whose tokens are those of one process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("numpy")

PROGRAM = Path(__file__).resolve().parents[3] / "examples" / "disagg" / "run.py"


def run(*options: str) -> tuple[int, str]:
    command = [sys.executable, str(PROGRAM), *options]
    # All cases take some seconds on a machine with nothing else to do.
    ended = subprocess.run(
        command, timeout=180, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return ended.returncode, ended.stdout


def test_all_cases() -> None:
    status, told = run("--all")
    assert status == 0, told
    line = r"^(\S.*): \d to \d ranks, (\d+) of 200 prompt tokens loaded, (\d+) computed again$"
    cases = {name: (loaded, again) for name, loaded, again in re.findall(line, told, re.MULTILINE)}
    assert cases.pop("prefill is killed") == ("0", "200")
    assert re.search(r"^  decode: (PEER_LOST|FAILED) .+\n  prefill: dead$", told, re.MULTILINE)
    # In all other cases every token was moved, and the output is equal, except with exchanged blocks.
    assert len(cases) == 7 and set(cases.values()) == {("200", "0")}, told
    assert told.count("  16 greedy tokens, equal to those of one process: ") == 7
    assert told.count("  WRONG: ") == told.count("  WRONG: the tokens differ ") == 1
    assert told.endswith("8 of 8 cases went as they must\n")


def test_options_and_the_picture(tmp_path: Path) -> None:
    picture = tmp_path / "t.svg"
    options = "--layers --mla --tp 2:1 --blocks 32:16 --prompt-tokens 90 --new-tokens 5".split()
    arrangement = ("--arrangement", "PAIR_BLOCK_HEAD_TOKEN:BLOCK_HEAD_PAIR_TOKEN")
    status, told = run(*options, *arrangement, "--svg", str(picture))
    assert status == 0 and "2 to 1 ranks, 90 of 90 prompt tokens loaded" in told, told
    page = ElementTree.parse(picture)
    bars: dict[str, list[tuple[int, int, int]]] = {"compute": [], "transfer": []}
    for bar in page.iter("{http://www.w3.org/2000/svg}rect"):
        if "class" in bar.attrib:
            place = [int(bar.attrib[f"data-{name}"]) for name in ("layer", "begin", "end")]
            bars[bar.attrib["class"]].append((place[0], place[1], place[2]))
    computed = {layer: (begin, end) for layer, begin, end in bars["compute"]}
    assert len(bars["compute"]) == 6 and sorted(computed) == list(range(6))
    assert all(begin < end for begin, end in computed.values())
    assert [computed[layer][1] for layer in range(5)] == [computed[layer][0] for layer in range(1, 6)]
    # Each layer moves when it is computed, by one of the ranks: all have the whole latent.
    assert {layer for layer, _, _ in bars["transfer"]} == set(range(6))
    for layer, begin, end in bars["transfer"]:
        assert computed[layer][1] <= begin < end
    lines = [str(title.text) for title in page.iter("{http://www.w3.org/2000/svg}title")]
    ends = [line.split(": ")[1] for line in lines if line.endswith(", OK")]
    assert sorted(ends) == ["Received, OK", "Sent, OK", "Sent, OK"]


def test_exchanged_blocks_fail_the_run() -> None:
    status, told = run("--swap")
    assert status == 1 and "WRONG: the tokens differ from those of one process" in told, told
