"""The programs of README.md: the first in one process; the second, then all others as one, in another; the
last alone. And the program of the repository's README.md, to which the same initiator writes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"
ROOT_README = README.parents[2] / "README.md"


def programs(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def test_readme() -> None:
    pytest.importorskip("numpy")
    first, *others, _ = programs(README)
    assert len(others) == 6
    target = subprocess.Popen([sys.executable, "-c", first], stdout=subprocess.PIPE, text=True)
    assert target.stdout is not None
    try:
        address = target.stdout.readline().strip()
        for program in (others[0], "\n".join(others)):
            subprocess.run([sys.executable, "-c", program, address], timeout=60, check=True)
            assert target.stdout.readline() == "b'there it is' b'hello'\n"
        assert target.stdout.readline() == "b'and once more' b'hello'\n"
    finally:
        target.kill()
        target.communicate()


def test_kv_caches() -> None:
    pytest.importorskip("numpy")
    command = [sys.executable, "-c", programs(README)[-1]]
    told = subprocess.run(
        command, timeout=60, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()
    # Both layers may be complete before the first is told.
    assert told[-3:] == ["2 layers are complete", "RECEIVED 40", "7.0"] and len(told) in (3, 4)


def test_the_readme_of_the_repository() -> None:
    (program,) = programs(ROOT_README)
    target = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert target.stdout is not None
    try:
        address = target.stdout.readline().strip()
        subprocess.run([sys.executable, "-c", programs(README)[1], address], timeout=60, check=True)
        assert target.stdout.readline() == "b'there it is' b'hello'\n"
    finally:
        target.kill()
        target.communicate()
