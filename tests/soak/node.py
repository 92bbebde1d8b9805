"""A process of the soak (soak.py), in Python; node.c documents the commands and the memory."""

import select
import struct
import sys
import threading
import time
from array import array

import ferry

SLOTS, SLOT_BYTES, BAD = 16, 1 << 20, 1 << 63
PATIENCE = 10.0
NOTICE = struct.Struct("=QQQQ")


class Corrupt(Exception):
    """Bytes that are not what they should be."""


def pattern(size: int, serial: int) -> bytes:
    return array("Q", range(serial << 32, (serial << 32) + size // 8)).tobytes()


def turned(data: bytes, pieces: int) -> bytes:
    """The pieces in the opposite order, as they lie in a slot."""
    piece = len(data) // pieces
    return b"".join(data[at : at + piece] for at in range(len(data) - piece, -1, -piece))


def check_what_comes(soak: ferry.Memory, queue: ferry.Queue, ending: threading.Event) -> None:
    """Checks what the notifications name, and acknowledges it."""
    waiting = select.poll()
    waiting.register(queue.fileno(), select.POLLIN)
    while not ending.is_set():
        events = queue.drain()
        for event in events:
            if event.kind != ferry.EventKind.NOTIFICATION or len(event.data) != NOTICE.size:
                continue
            slot, size, pieces, serial = NOTICE.unpack(event.data)
            if slot >= SLOTS or size > SLOT_BYTES or pieces == 0:
                continue
            found = bytes(soak.view[slot * SLOT_BYTES : slot * SLOT_BYTES + size])
            word = serial if found == turned(pattern(size, serial), pieces) else serial | BAD
            soak.view[SLOTS * SLOT_BYTES :].cast("Q")[slot] = word
        if not events:
            waiting.poll(200)


def one_round(
    peer: ferry.Peer, there: ferry.RemoteRegion, here: ferry.Memory, slot: int, size: int, pieces: int, serial: int
) -> float:
    """WRITE, READ, and the peer's answer. Returns the microseconds of the WRITE."""
    data, piece, remote = pattern(size, serial), size // pieces, there.address + slot * SLOT_BYTES
    here.view[:size] = data
    requests = [
        (here.address + i * piece, remote + (pieces - 1 - i) * piece, piece, there.handle) for i in range(pieces)
    ]
    before = time.monotonic()
    peer.write(requests, notify=NOTICE.pack(slot, size, pieces, serial))
    took = time.monotonic() - before
    here.view[SLOT_BYTES : SLOT_BYTES + size] = bytes(size)
    peer.read([(here.address + SLOT_BYTES, remote, size, there.handle)])
    if bytes(here.view[SLOT_BYTES : SLOT_BYTES + size]) != turned(data, pieces):
        raise Corrupt(f"what was read back, serial {serial}")
    word = [(here.address + 2 * SLOT_BYTES, there.address + SLOTS * SLOT_BYTES + 8 * slot, 8, there.handle)]
    while time.monotonic() < before + PATIENCE:
        peer.read(word)
        found = int.from_bytes(here.view[2 * SLOT_BYTES : 2 * SLOT_BYTES + 8], sys.byteorder)
        if found == serial:
            return took * 1e6
        if found == serial | BAD:
            raise Corrupt(f"what the peer found, serial {serial}")
    raise TimeoutError("the peer did not answer")


def exchange(engine: ferry.Engine, address: str, slot: int, size: int, pieces: int, count: int, serial: int) -> str:
    try:
        peer = engine.connect(address, timeout=PATIENCE)
        there = peer.region("soak")
        with engine.alloc(2 * SLOT_BYTES + 64) as here:
            took = [one_round(peer, there, here, slot, size, pieces, serial + i) for i in range(count)]
    except Corrupt as error:
        return f"CORRUPT {error}"
    except (ferry.Error, KeyError, TimeoutError) as error:
        return f"FAILED {type(error).__name__}: {error}".replace("\n", " ")
    return " ".join(["OK", *(f"{it:.1f}" for it in took)])


def main() -> None:
    with (
        ferry.Engine() as engine,
        engine.alloc(SLOTS * SLOT_BYTES + 8 * SLOTS, name="soak") as soak,
        engine.queue(notifications=True) as queue,
    ):
        ending = threading.Event()
        checker = threading.Thread(target=check_what_comes, args=(soak, queue, ending))
        checker.start()
        try:
            print("ADDRESS", engine.address, flush=True)
            for line in sys.stdin:
                command, address, *numbers = line.split()
                if command != "exchange" or len(numbers) != 5:
                    print("FAILED no such command", flush=True)
                    continue
                print(exchange(engine, address, *map(int, numbers)), flush=True)
        finally:
            ending.set()
            checker.join()


if __name__ == "__main__":
    main()
