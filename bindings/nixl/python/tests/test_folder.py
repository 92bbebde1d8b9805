"""The installed package: its folders, and NIXL with them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import ferry_nixl
import pytest

# Moves data and a notification between two agents of one process.
MOVES = """
import sys, time, numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config
a, b = (nixl_agent(name, nixl_agent_config(backends=[sys.argv[1]])) for name in "ab")
x, y = np.arange(1, 1025, dtype="u8"), np.zeros(1024, dtype="u8")
for agent, memory in ((a, x), (b, y)):
    agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
a.add_remote_agent(b.get_agent_metadata())
local, remote = (a.get_xfer_descs([(memory.ctypes.data, memory.nbytes, 0)], "DRAM") for memory in (x, y))
handle = a.initialize_xfer("WRITE", local, remote, "b", b"moved")
state, end = a.transfer(handle), time.monotonic() + 20
while state == "PROC" and time.monotonic() < end:
    state = a.check_xfer_state(handle)
told = {}
while not told and time.monotonic() < end:
    told = b.get_new_notifs()
maps = open("/proc/self/maps").read()
right = np.array_equal(x, y), told == {"a": [b"moved"]}
print(state, *right, "libplugin_FERRY" in maps, "libucp" in maps, flush=True)
import os; os._exit(0)  # UCX may crash at the end of a process
"""


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "UCX_TLS": "tcp", **variables}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120
    )


def moved(backend: str, folder: str) -> str:
    return run("-c", MOVES, backend, NIXL_PLUGIN_DIR=folder).stdout.splitlines()[-1]


def test_ferry_alone() -> None:
    folder = run("-m", "ferry_nixl").stdout.strip()
    assert sorted(os.listdir(folder)) == ["libferry.so.0", "libplugin_FERRY.so"]
    assert moved("FERRY", folder) == "DONE True True True False"


def test_beside_nixls_own_plugins(tmp_path: Path) -> None:
    root = tmp_path / "plugins"
    for _ in range(2):
        made = run("-m", "ferry_nixl", "folder", str(root))
        assert made.returncode == 0, made.stderr
    folder = made.stdout.strip()
    assert moved("FERRY", folder) == "DONE True True True False"
    assert moved("UCX", folder) == "DONE True True False True"


def test_under_an_alias(tmp_path: Path) -> None:
    folder = run("-m", "ferry_nixl", "folder", str(tmp_path / "plugins"), "--alias", "UCX").stdout.strip()
    assert moved("UCX", folder) == "DONE True True True False"


@pytest.mark.parametrize("alias", ["", "../UCX", "U CX"])
def test_an_alias_that_is_no_name_of_a_backend_is_refused(tmp_path: Path, alias: str) -> None:
    refused = run("-m", "ferry_nixl", "folder", str(tmp_path / "plugins"), "--alias", alias)
    assert refused.returncode == 1
    assert (
        refused.stderr
        == f'ferry_nixl: "{alias}" is no name of a backend: letters, digits and _ only, as in UCX\n'
    )
    assert os.listdir(tmp_path) == []


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("x")
    refused = run("-m", "ferry_nixl", "folder", str(tmp_path))
    assert refused.returncode == 1
    assert (
        refused.stderr
        == f"ferry_nixl: {tmp_path} exists and was not made by ferry_nixl; name another folder\n"
    )
    assert os.listdir(tmp_path) == ["theirs"]


def test_without_nixl_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ferry_nixl, "DISTRIBUTIONS", ("nixl-cu99",))
    with pytest.raises(
        ferry_nixl.FolderError, match="NIXL is not installed in this Python: neither nixl-cu99"
    ):
        ferry_nixl.mirror(tmp_path / "plugins")


def test_the_package_ferry_in_the_same_process() -> None:
    together = "import ferry; engine = ferry.Engine()\n" + MOVES
    folder = run("-m", "ferry_nixl").stdout.strip()
    answer = run("-c", together, "FERRY", NIXL_PLUGIN_DIR=folder)
    assert answer.stdout.splitlines()[-1] == "DONE True True True False", answer.stderr
