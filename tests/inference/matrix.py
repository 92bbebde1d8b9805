"""An agent of one NIXL: hands its metadata to the agent of another through files, and moves data both ways.

    matrix.py NAME OTHER FOLDER      matrix.py refused     expects that NIXL does not get the plugin

Each side writes the other's memory, reads it back, and tells. Exits with 0 if all bytes are right.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from nixl_cu12._api import nixl_agent, nixl_agent_config

WORDS = 1 << 16
PATIENCE_S = 30.0


def wait_for(what: str, found: Any) -> Any:
    last = time.monotonic() + PATIENCE_S
    while time.monotonic() < last:
        if (value := found()) is not None:
            return value
        time.sleep(0.005)
    raise SystemExit(f"{what} does not come")


def hand_over(folder: Path, name: str, other: str, value: bytes) -> bytes:
    """Gives the other side a value, and returns the value of the other side."""
    (folder / f"{name}.new").write_bytes(value)
    (folder / f"{name}.new").rename(folder / name)
    theirs = folder / other
    return bytes(wait_for(theirs.name, lambda: theirs.read_bytes() if theirs.exists() else None))


def content(name: str) -> np.ndarray[Any, Any]:
    return np.arange(WORDS, dtype="u8") * 2 + (name < "m")


def run(own: nixl_agent, operation: str, local: Any, remote: Any, other: str, message: bytes) -> None:
    lists = (
        own.get_xfer_descs([(start + i * 4096, 4096, 0) for i in order], "DRAM")
        for start, order in ((local, range(64)), (remote, range(64)))
    )
    handle = own.initialize_xfer(operation, *lists, other, message)
    state = own.transfer(handle)
    wait_for(operation, lambda: None if own.check_xfer_state(handle) == "PROC" else True)
    if (state := own.check_xfer_state(handle)) != "DONE":
        raise SystemExit(f"{operation}: {state}")
    own.release_xfer_handle(handle)


def main() -> None:
    name, other, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    own = nixl_agent(name, nixl_agent_config(backends=["FERRY"]))
    source, target, back = content(name), np.zeros(WORDS, dtype="u8"), np.zeros(WORDS, dtype="u8")
    for memory in (source, target, back):
        own.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    address = target.ctypes.data.to_bytes(8, "little")
    theirs = hand_over(folder, f"{name}.metadata", f"{other}.metadata", address + own.get_agent_metadata())
    assert own.add_remote_agent(theirs[8:]) == other.encode()
    remote = int.from_bytes(theirs[:8], "little")
    run(own, "WRITE", source.ctypes.data, remote, other, b"written")
    told: list[bytes] = []

    def come() -> bool | None:
        told.extend(message for messages in own.get_new_notifs().values() for message in messages)
        return True if told else None

    wait_for("a notification", come)
    cut = 64 * 4096 // 8
    assert told == [b"written"] and np.array_equal(target[:cut], content(other)[:cut]), "the other's data"
    run(own, "READ", back.ctypes.data, remote, other, b"")
    assert np.array_equal(back[:cut], source[:cut]), "the data read back"
    hand_over(folder, f"{name}.end", f"{other}.end", b"")


def refused() -> None:
    try:
        nixl_agent("refused", nixl_agent_config(backends=[])).create_backend("FERRY")
    except Exception as error:
        print(f"refused: {type(error).__name__}")
        return
    raise SystemExit("the plugin serves a NIXL of another layout")


if __name__ == "__main__":
    refused() if sys.argv[1] == "refused" else main()
    sys.stdout.flush()
    # NIXL's own end is not what is asked here.
    os._exit(0)
