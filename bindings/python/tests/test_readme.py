"""The programs of README.md: its first block in one process, the others, as one, in another."""

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
    assert len(others) == 5
    server = subprocess.Popen([sys.executable, "-c", first], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    client = subprocess.run([sys.executable, "-c", "\n".join(others), address], timeout=60, text=True)
    assert client.returncode == 0
    said, _ = server.communicate(timeout=60)
    assert said == "b'there it is' b'hello'\n"
    assert server.returncode == 0
