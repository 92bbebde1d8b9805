"""The two workers. Each is a process of its own, and talks to the router (run.py) through a pipe.

A handoff is: the producer's ranks `offer` their blocks, say what is `ready`, and `seal`; the consumer's ranks
`take` into theirs. Each offer and each take ends with one terminal event, which gives the blocks back.
"""

import asyncio
import os
import signal
import time

from cache import Paged
from model import Model


def ends_of(paged):
    """Waits for the terminal event of each rank."""

    async def all_ranks():
        events = [rank.cache.event() for rank in paged.ranks]
        return await asyncio.wait_for(asyncio.gather(*events), timeout=30)

    return asyncio.run(all_ranks())


def prefill(pipe, case):
    model, paged = Model(case.shape), Paged(case.shape, case.source)
    pipe.send([rank.engine.address for rank in paged.ranks])
    id, prompt = pipe.recv()
    began = time.monotonic_ns()

    def computed(layer):
        nonlocal began
        began, before = time.monotonic_ns(), began
        paged.ranks[0].cache.timeline.mark(id, layer, before, began)
        for rank in paged.ranks if case.layers else ():
            rank.cache.ready(id, len(prompt), layer)  # it moves while the next layer is computed
        if case.kill and layer == case.shape.layers // 2:
            os.kill(os.getpid(), signal.SIGKILL)

    for rank in paged.ranks:
        rank.cache.offer(id, paged.blocks(len(prompt)))
    first = model.forward(prompt, 0, paged, computed)
    for rank in paged.ranks:
        if not case.layers:
            rank.cache.ready(id, len(prompt))
        rank.cache.seal(id, len(prompt))
    pipe.send(first)
    # Until SENT the blocks belong to the offer: they must be neither freed nor written.
    pipe.send(([event.kind.name for event in ends_of(paged)], paged.timeline()))
    paged.close()


def decode(pipe, case):
    model, paged = Model(case.shape), Paged(case.shape, case.target)
    pipe.send("up")
    id, prompt, addresses = pipe.recv()
    blocks = paged.blocks(len(prompt))
    if case.swap:
        blocks = blocks[[1, 0, *range(2, len(blocks))]]
    for rank in paged.ranks:
        producers = [rank.engine.connect(address, timeout=10) for address in addresses]
        rank.cache.take(id, producers, blocks, len(prompt))
    pipe.send("taking")

    events = ends_of(paged)
    loaded = min(event.valid_tokens for event in events)
    if loaded == len(prompt):
        tokens = [pipe.recv()]  # the first token, which the prefill worker has found
    else:
        # The blocks are ours again, and nothing lands in them any more.
        tokens = [model.forward(prompt, 0, paged)]
    while len(tokens) < case.new_tokens:
        tokens.append(model.forward(tokens[-1:], len(prompt) + len(tokens) - 1, paged))
    ends = [(event.kind.name, event.message) for event in events]
    pipe.send((tokens, loaded, model.computed, ends, paged.timeline()))
    paged.close()
