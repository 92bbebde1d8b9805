"""A prefill worker hands a KV cache to a decode worker, layer by layer. Each of ferry's languages has this
program; any two can talk.

handoff.py decode                       prints "ADDRESS host:port", and OK when it has a whole cache
handoff.py prefill HOST:PORT [DIES_IN]  pushes a cache; with DIES_IN it kills itself while that layer moves
"""

import os
import signal
import sys

import ferry

LAYERS, BLOCKS, BLOCK_BYTES = 64, 16, 16384
LAYER_BYTES = BLOCKS * BLOCK_BYTES


def content(layer: int) -> bytes:
    return bytes((layer * 37 + i * 11) & 255 for i in range(256)) * (LAYER_BYTES // 256)


def check(cache: ferry.Memory, layer: int, whose: str) -> None:
    if cache.view[layer * LAYER_BYTES : (layer + 1) * LAYER_BYTES] != content(layer):
        sys.exit(f"layer {layer} is wrong in the {whose} cache")


def decode() -> None:
    with ferry.Engine() as engine, engine.alloc(LAYERS * LAYER_BYTES, name="kv") as cache:
        queue = engine.queue(notifications=True, peers=True, peer_states=True)
        print("ADDRESS", engine.address, flush=True)
        prefill, layers = None, 0
        while (event := queue.wait(60)).data != b"pull":
            if event.kind == ferry.EventKind.PEER_UP:
                prefill, layers = event.peer, 0
            elif event.kind == ferry.EventKind.NOTIFICATION:
                # Every byte of the layer is here: the notification comes after the data.
                check(cache, int(event.data.removeprefix(b"layer ")), "pushed")
                layers += 1
            elif prefill and event.peer == prefill and event.kind != ferry.EventKind.LATE_APPLY:
                # PEER_DOWN, or PEER_LOST.
                # After the fence nothing of the dead worker lands in the cache: the next one may have it.
                prefill.fence(10)
                print(f"LOST after {layers} layers: {event.data.decode()}", flush=True)
                prefill = None
        assert prefill and layers == LAYERS, f"{layers} layers of {LAYERS} have come"
        with engine.alloc(LAYERS * LAYER_BYTES) as copy:
            both = ferry.UniformBlocks(
                copy, prefill.region("kv"), layer_bytes=LAYER_BYTES, block_bytes=BLOCK_BYTES
            )
            prefill.submit_read_blocks(both.blocks(range(LAYERS), BLOCKS)).wait()
            for layer in range(LAYERS):
                check(copy, layer, "pulled")
        prefill.notify(b"done")
    print("OK")


def prefill(address: str, dies_in: int) -> None:
    with ferry.Engine() as engine, engine.alloc(LAYERS * LAYER_BYTES, name="kv") as cache:
        queue = engine.queue(notifications=True)
        peer = engine.connect(address, timeout=10)
        both = ferry.UniformBlocks(cache, peer.region("kv"), layer_bytes=LAYER_BYTES, block_bytes=BLOCK_BYTES)
        pushes = []
        for layer in range(LAYERS):
            cache.view[layer * LAYER_BYTES : (layer + 1) * LAYER_BYTES] = content(layer)  # the model's work
            pushes.append(peer.submit_write_blocks(both.blocks(layer, BLOCKS), notify=b"layer %d" % layer))
            if layer == dies_in:
                os.kill(os.getpid(), signal.SIGKILL)
        engine.wait_all(pushes)
        peer.notify(b"pull")
        assert queue.wait(60).data == b"done"
    print("OK")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["decode"]:
            decode()
        case ["prefill", address, *rest]:
            prefill(address, int(rest[0]) if rest else -1)
        case _:
            sys.exit("usage: handoff.py decode | prefill HOST:PORT [DIES_IN]")
