"""A pool of two processes: one node lends memory, the other one puts and gets the chunks of a prompt.

python pool.py lend                 prints its address, and lends 256 MiB until it is ended
python pool.py use 127.0.0.1:40123  puts what the pool lacks, then gets the whole prompt
"""

import signal
import sys

import ferry
from ferry.pool import Keyspace, Pool

CHUNK_BYTES = 1 << 20
PROMPT = list(range(1024))

# All engines that share values say the same of their model. A chunk has 256 tokens.
keyspace = Keyspace("my-company", "Qwen3-32B", revision="9216db5", dtype="bf16")


def lend() -> None:
    with ferry.Engine() as engine, Pool(engine, memory_bytes=256 << 20):
        print(engine.address, flush=True)
        signal.pause()


def use(address: str) -> None:
    keys = keyspace.keys_of(PROMPT)
    with ferry.Engine() as engine, Pool(engine, nodes=[address]) as pool:
        pool.wait_nodes(2, 10)
        found = pool.prefix(keys)
        print(f"{found} of {len(keys)} chunks are in the pool")

        # The cache of the chunks that nobody has is computed here.
        cache = engine.alloc(len(keys) * CHUNK_BYTES).view
        chunks = [cache[at * CHUNK_BYTES : (at + 1) * CHUNK_BYTES] for at in range(len(keys))]
        for at in range(found, len(keys)):
            chunks[at][:] = bytes([at]) * CHUNK_BYTES
        pool.put(list(zip(keys, chunks))[found:])

        cache[:] = bytes(len(cache))
        results = pool.get(list(zip(keys, chunks)))
        assert all(chunk[-1] == at for at, chunk in enumerate(chunks))
        print(f"got {len(keys)} chunks:", *(result.outcome.name for result in results))


if __name__ == "__main__":
    if sys.argv[1:] == ["lend"]:
        lend()
    elif sys.argv[1:2] == ["use"] and len(sys.argv) == 3:
        use(sys.argv[2])
    else:
        sys.exit(__doc__)
