"""Two prefill ranks hand a KV cache to a decode worker. Each of ferry's languages has it; any three can talk.
kv_handoff.py prefill RANK       prints "ADDRESS host:port", reads "ID <hex>", offers, computes layer by layer
kv_handoff.py decode ADDRESS...  prints "ID <hex>" and each event; exits with 3 if not everything came
"""

import sys
import time
from contextlib import suppress
from typing import Any

from numpy import arange, argsort, array_equal, asarray, frombuffer, ix_

import ferry
from ferry import kv


def opened(order: str, rank: int, ranks: int, blocks: range) -> Any:
    terms = {"pair": 104729 * arange(2), "token": 31 * arange(16), "element": arange(64)}
    terms |= {"block": 496 * argsort(blocks), "head": 1299709 * arange(4).reshape(ranks, -1)[rank]}
    values = asarray(sum(ix_(7919 * arange(32), *(terms[word] for word in order.split())))).astype("u2")
    memory = (engine := ferry.Engine()).alloc(values.nbytes)
    tensors = frombuffer(memory.view, "u2").reshape(values.shape)
    layers = [kv.Layer.of(tensor, f"layers.{at}", order) for at, tensor in enumerate(tensors)]
    model: Any = {"model": "example", "revision": "1", "cache": "fp16", "rope": "none", "tp": (rank, ranks)}
    layout = kv.Layout(groups=[kv.Group(block_tokens=16)], layers=layers, **model)
    return engine, kv.Cache(engine, layout, memory), tensors, values  # those of the sequence, in its blocks


def prefill(rank: int) -> None:
    engine, cache, tensors, values = opened("block pair head token element", rank, 2, range(16))
    print("ADDRESS", engine.address, flush=True)
    cache.offer(id := kv.Id.parse(sys.stdin.readline().split()[-1]), range(16))
    with suppress(ferry.StaleError):  # The offer has ended; its event says why.
        for layer in range(32):
            tensors[layer] = values[layer]
            time.sleep(0.005)  # the model's work
            cache.ready(id, 256, layer)
        cache.seal(id, 256)
    print(cache.wait())
    cache.close()


def decode(*addresses: str) -> None:
    engine, cache, tensors, values = opened("block pair token head element", 0, 1, range(15, -1, -1))
    producers = [engine.connect(address, timeout=10) for address in addresses]
    cache.take(id := kv.new_id(), producers, range(15, -1, -1), 256, layers=True)
    print("ID", id, flush=True)
    while not (it := cache.wait()).terminal:
        print(it.kind.name, it.layers, flush=True)
    cache.close()
    if it.kind is not kv.RECEIVED:
        who = f"by rank {it.rank} (peer {it.peer.info().address})" if it.peer else "by nobody"
        print("ended:", it.kind.name, it.status.name, f"{who}: {it.message}; {it.valid_tokens} tokens valid")
        sys.exit(3)
    assert array_equal(tensors, values)
    print(it.kind.name, it.valid_tokens)


prefill(int(sys.argv[2])) if sys.argv[1] == "prefill" else decode(*sys.argv[2:])
