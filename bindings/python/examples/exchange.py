"""Two processes exchange a megabyte. Each of ferry's languages has this program; any two can talk.

exchange.py serve              prints "ADDRESS host:port", and OK after the peer has finished
exchange.py connect HOST:PORT  reads the peer's memory, writes it, and prints OK
"""

import sys

import ferry

LENGTH = 1 << 20


def pattern(factor: int, offset: int) -> bytes:
    """Returns LENGTH bytes; byte i is i * factor + offset, and the pattern repeats every 256 bytes."""
    return bytes((i * factor + offset) & 255 for i in range(256)) * (LENGTH // 256)


FIRST = pattern(7, 3)
SECOND = pattern(11, 5)


def notification(queue: ferry.Queue, seconds: float) -> bytes:
    """Returns the next notification of any peer."""
    while (event := queue.wait(seconds)).kind != ferry.EventKind.NOTIFICATION:
        pass
    return event.data


def check(found: bytes, wanted: bytes, whose: str) -> None:
    for place in range(LENGTH):
        if found[place] != wanted[place]:
            sys.exit(f"{whose} memory: byte {place} is {found[place]}, not {wanted[place]}")


def serve() -> None:
    with ferry.Engine() as engine, engine.alloc(LENGTH, name="exchange") as memory:
        memory.view[:] = FIRST
        with engine.queue(notifications=True) as queue:
            print("ADDRESS", engine.address, flush=True)
            word = notification(queue, 60)
            if word != b"done":
                sys.exit(f"the peer said {word!r}, not b'done'")
        check(bytes(memory.view), SECOND, "this")
    print("OK")


def connect(address: str) -> None:
    with ferry.Engine() as engine, engine.alloc(LENGTH) as memory:
        peer = engine.connect(address, timeout=10)
        remote = peer.region("exchange")
        requests = [(memory.address, remote.address, LENGTH, remote.handle)]
        peer.read(requests)
        check(bytes(memory.view), FIRST, "the peer's")
        memory.view[:] = SECOND
        peer.write(requests, notify=b"done")
    print("OK")


if __name__ == "__main__":
    try:
        match sys.argv[1:]:
            case ["serve"]:
                serve()
            case ["connect", address]:
                connect(address)
            case _:
                sys.exit("usage: exchange.py serve | connect HOST:PORT")
    except (ferry.Error, KeyError) as error:
        sys.exit(f"exchange: {error}")
