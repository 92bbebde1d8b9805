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
    # Of all others, every token was moved. Their tokens are equal, but those of exchanged blocks.
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
    bars: dict[str, list[tuple[float, float]]] = {"compute": [], "transfer": [], "token": []}
    for bar in ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}rect"):
        for title in bar:
            start = float(bar.attrib["x"])
            kind, milliseconds = str(title.text).removesuffix(" ms").split(": ")
            bars[kind].append((start, start + float(bar.attrib["width"])))
            assert float(milliseconds) > 0, kind
    assert {kind: len(found) for kind, found in bars.items()} == {"compute": 6, "transfer": 6, "token": 4}
    # A layer moves when it is computed, and no token comes before the last layer.
    for computed, moved in zip(bars["compute"], bars["transfer"], strict=True):
        assert moved[0] == pytest.approx(computed[1], abs=1.1)
    assert bars["token"][0][0] >= bars["transfer"][-1][0]


def test_exchanged_blocks_fail_the_run() -> None:
    status, told = run("--swap")
    assert status == 1 and "WRONG: the tokens differ from those of one process" in told, told
