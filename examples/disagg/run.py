"""A prefill worker computes a prompt, a decode worker continues from its KV cache, and the tokens must be
those of one process that does both. This is the router: it starts the workers, and sends the request to both.

    python examples/disagg/run.py                       the whole cache at once
    python examples/disagg/run.py --layers --svg t.svg  layer by layer, and a picture of when what happened
    python examples/disagg/run.py --all                 every case below; README.md explains them
"""

import argparse
import multiprocessing
import os
import sys
from dataclasses import dataclass
from functools import cache

import workers
from cache import Paged, Side
from model import Model, Shape

from ferry import kv


@dataclass(frozen=True)
class Case:
    shape: Shape = Shape()
    source: Side = Side(seed=1)
    target: Side = Side(seed=2)
    layers: bool = False
    kill: bool = False  # the prefill worker, in the midst of its work
    swap: bool = False  # two blocks: the tokens must then differ
    prompt_tokens: int = 200
    new_tokens: int = 16


MLA = Shape(latent=40)
# Workers are forked from a process that has imported numpy and ferry, and opened no engine. One thread
# computes in each.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["workers"])
CASES = {
    "whole": Case(),
    "by layers": Case(layers=True),
    "other blocks and arrangement": Case(
        layers=True,
        source=Side(block_tokens=16, arrangement="PAIR_BLOCK_HEAD_TOKEN", seed=1),
        target=Side(block_tokens=32, arrangement="BLOCK_PAIR_TOKEN_HEAD", seed=2),
    ),
    "tp 4 to 2": Case(layers=True, source=Side(tp=4, seed=1), target=Side(tp=2, seed=2)),
    "tp 2 to 4": Case(
        source=Side(tp=2, block_tokens=32, seed=1),
        target=Side(tp=4, arrangement="BLOCK_HEAD_PAIR_TOKEN", seed=2),
    ),
    "latents (MLA)": Case(
        shape=MLA, layers=True, source=Side(tp=2, seed=1), target=Side(block_tokens=64, seed=2)
    ),
    "prefill is killed": Case(layers=True, kill=True),
    "blocks are exchanged": Case(swap=True),
}


@cache
def alone(shape, prompt, new_tokens):
    """The tokens of one process, without ferry."""
    side = Side(tokens=len(prompt) + new_tokens + 16)
    model, paged = Model(shape), Paged(shape, side, with_engines=False)
    tokens = [model.forward(prompt, 0, paged)]
    while len(tokens) < new_tokens:
        tokens.append(model.forward(tokens[-1:], len(prompt) + len(tokens) - 1, paged))
    return tokens


def start(worker, case):
    ours, theirs = PROCESSES.Pipe()
    process = PROCESSES.Process(target=worker, args=(theirs, case), daemon=True)
    process.start()
    theirs.close()  # so that the end of the process ends the pipe
    return ours, process


def received(pipe):
    if not pipe.poll(60):
        raise TimeoutError("a worker said nothing for a minute")
    return pipe.recv()


def handed_over(case, prompt):
    """Runs one request through two workers; returns what the decode worker says, and how prefill ended."""
    (to_prefill, prefill), (to_decode, decode) = start(workers.prefill, case), start(workers.decode, case)
    addresses, _ = received(to_prefill), received(to_decode)
    id = kv.new_id()  # names this attempt; both workers must know it
    to_decode.send((id, prompt, addresses))
    received(to_decode)  # It is taking. Not needed, but the picture is then of the handoff alone.
    to_prefill.send((id, prompt))
    sent = None
    try:
        to_decode.send(received(to_prefill))
        sent = received(to_prefill)
    except EOFError:
        pass  # The prefill worker is dead. The decode worker learns that from ferry.
    told = received(to_decode)
    for process in (prefill, decode):
        process.join(10)
    return told, sent


def run(name, case, svg=None):
    """Runs a case, says how it went, and returns whether all is as it must be."""
    prompt = tuple((at * 37 + at * at * 11) % case.shape.vocabulary for at in range(case.prompt_tokens))
    expected = alone(case.shape, prompt, case.new_tokens)
    (tokens, loaded, computed, ends, timeline), sent = handed_over(case, prompt)
    again = computed - (case.new_tokens - 1)
    ranks = f"{case.source.tp} to {case.target.tp} ranks"
    print(f"{name}: {ranks}, {loaded} of {len(prompt)} prompt tokens loaded, {again} computed again")
    for kind, message in sorted(set(ends)):
        print(f"  decode: {kind} {message}")
    print(f"  prefill: {' '.join(sorted(set(sent[0]))) if sent else 'dead'}")
    wrong = []
    if tokens != expected:
        wrong.append(f"the tokens differ from those of one process: {tokens}, not {expected}")
    # Tokens that were computed again would be equal too: only those of a dead worker may be.
    if (loaded, again) != ((0, len(prompt)) if case.kill else (len(prompt), 0)):
        wrong.append(f"{loaded} prompt tokens were loaded, and {again} computed again")
    kinds = {kind for kind, _ in ends}
    if case.kill and (sent or not kinds <= {"PEER_LOST", "FAILED"}):
        wrong.append("the prefill worker has lived")
    if not case.kill and (kinds != {"RECEIVED"} or not sent or set(sent[0]) != {"SENT"}):
        wrong.append("a handoff failed")
    if svg:
        with open(svg, "w") as file:
            file.write(kv.timeline_svg(timeline + (sent[1] if sent else [])))
        print(f"  {svg} shows when what happened")
    for sentence in wrong:
        print(f"  WRONG: {sentence}")
    if not wrong:
        print(f"  {len(tokens)} greedy tokens, equal to those of one process: {tokens[:8]} ...")
    return not wrong


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    pair = dict(metavar="SOURCE:TARGET", type=lambda text: text.split(":"))
    parser.add_argument("--all", action="store_true", help="run all cases")
    parser.add_argument(
        "--layers", action="store_true", help="hand over layer by layer, not the whole at once"
    )
    parser.add_argument("--mla", action="store_true", help="cache latents, not keys and values")
    parser.add_argument("--tp", default=["1", "1"], **pair, help="tensor parallel ranks: 1, 2 or 4")
    parser.add_argument("--blocks", default=["16", "16"], **pair, help="tokens of a block")
    parser.add_argument(
        "--arrangement", default=["BLOCK_PAIR_TOKEN_HEAD"] * 2, **pair, help="of kv.Arrangement"
    )
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument(
        "--kill", action="store_true", help="kill the prefill worker in the midst of its work"
    )
    parser.add_argument("--swap", action="store_true", help="exchange two blocks: the check must find it")
    parser.add_argument("--svg", metavar="FILE", help="draw compute and transfer by layer")
    given = parser.parse_args()
    if given.all:
        # The last case checks the check.
        results = [run(name, case) != case.swap for name, case in CASES.items()]
        print(f"{sum(results)} of {len(results)} cases went as they must")
        sys.exit(not all(results))
    room = given.prompt_tokens + given.new_tokens + 64
    sides = [
        Side(int(tp), int(block), arrangement, -(-room // int(block)) * int(block), seed)
        for seed, tp, block, arrangement in zip((1, 2), given.tp, given.blocks, given.arrangement)
    ]
    counts = given.prompt_tokens, given.new_tokens
    case = Case(MLA if given.mla else Shape(), *sides, given.layers, given.kill, given.swap, *counts)
    sys.exit(not run("handoff", case, given.svg))


if __name__ == "__main__":
    main()
