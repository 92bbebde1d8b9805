"""The programs of README.md: the first in one process; the second, then all others as one, in another."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"


def test_readme() -> None:
    pytest.importorskip("numpy")
    first, *others = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
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
