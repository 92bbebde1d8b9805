"""LMCache's transfer channel over NIXL moves 100,000 chunks between two processes, with both cores busy.

    lmcache_channel.py BACKEND

Half of the chunks are read and half are written, in batches of 1 to 64. When the channel says that a batch
is there, every byte is compared at once: both pools are mapped here. Processes that only spin
keep the cores busy.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import zmq
from lmcache.v1.memory_management import MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.transfer_channel import CreateTransferChannel

CHUNK = 16_384
POOL = 1_000
CHUNKS = 100_000
BATCH = 64


def pool(file: str) -> np.ndarray[Any, Any]:
    return np.memmap(file, dtype="u8", mode="r+", shape=(POOL, CHUNK // 8))


def content(index: int, turn: int) -> np.ndarray[Any, Any]:
    """Each word says its chunk, its place, and the turn that wrote it."""
    return np.arange(CHUNK // 8, dtype="u8") + (index << 20) + (turn << 40)


def channel(backend: str, memory: np.ndarray[Any, Any], url: str) -> Any:
    return CreateTransferChannel(
        channel_type="nixl",
        async_mode=False,
        role="both",
        buffer_ptr=memory.ctypes.data,
        buffer_size=memory.nbytes,
        align_bytes=CHUNK,
        tp_rank=0,
        peer_init_url=url,
        device="cpu",
        backends=[backend],
    )


def serve(pipe: Connection, backend: str, file: str, port: int) -> None:
    memory = pool(file)
    kept = channel(backend, memory, f"127.0.0.1:{port}")
    pipe.send(True)
    try:
        pipe.recv()
    except EOFError:
        pass
    del kept
    os._exit(0)


def spin() -> None:
    while os.getppid() != 1:
        pass


def free_port() -> int:
    socket = zmq.Context.instance().socket(zmq.REP)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    socket.close(0)
    return int(port)


def move(backend: str, own_file: str, their_file: str) -> str:
    own, theirs = pool(own_file), pool(their_file)
    context = multiprocessing.get_context("spawn")
    pipe, other_end = context.Pipe()
    port = free_port()
    peer = context.Process(target=serve, args=(other_end, backend, their_file, port), daemon=True)
    peer.start()
    spinning = [context.Process(target=spin, daemon=True) for _ in range(os.cpu_count() or 1)]
    try:
        if not pipe.poll(120):
            raise SystemExit("the other process does not start")
        here = channel(backend, own, f"127.0.0.1:{free_port()}")
        here.lazy_init_peer_connection("here", "there", f"127.0.0.1:{port}")
        for process in spinning:
            process.start()
        objects = [
            TensorMemoryObj(
                torch.from_numpy(own[index]),
                MemoryObjMetadata(torch.Size([CHUNK // 8]), torch.int64, index, CHUNK, 1),
                None,
            )
            for index in range(POOL)
        ]
        chosen = random.Random(3)
        moved, turn, start = 0, 0, time.monotonic()
        while moved < CHUNKS:
            count = min(chosen.randint(1, BATCH), CHUNKS - moved)
            local, remote = (chosen.sample(range(POOL), count) for _ in range(2))
            turn += 1
            source, target = (theirs, own) if turn % 2 else (own, theirs)
            from_ids, to_ids = (remote, local) if turn % 2 else (local, remote)
            for index in from_ids:
                source[index] = content(index, turn)
            target[to_ids] = 0
            buffers = [objects[index] for index in local]
            if turn % 2:
                here.batched_read(buffers, {"sender_id": "there", "remote_indexes": remote})
            else:
                here.batched_write(buffers, {"receiver_id": "there", "remote_indexes": remote})
            for of, at in zip(from_ids, to_ids):
                if not np.array_equal(target[at], content(of, turn)):
                    raise SystemExit(f"chunk {at} is not there, in batch {turn}, though the channel says so")
            if not np.array_equal(source[from_ids[0]], content(from_ids[0], turn)):
                raise SystemExit("the source has changed")
            moved += count
        seconds = time.monotonic() - start
        return f"{moved} chunks of {CHUNK} bytes in {turn} batches, each there when told, {seconds:.0f} s"
    finally:
        for process in [peer, *spinning]:
            if process.pid is not None:
                process.kill()
                process.join()


def main() -> None:
    backend = sys.argv[1]
    with (
        tempfile.NamedTemporaryFile(dir="/dev/shm") as own,
        tempfile.NamedTemporaryFile(dir="/dev/shm") as theirs,
    ):
        for file in (own, theirs):
            file.truncate(POOL * CHUNK)
        print(f"ok      {backend} lmcache: {move(backend, own.name, theirs.name)}", flush=True)
    # NIXL's own end is not what is asked here.
    os._exit(0)


if __name__ == "__main__":
    main()
