"""vLLM on a CPU hands KV caches from a prefill engine to a decode engine over FerryConnector.

    vllm_ferry.py [CASE]...      CASE: handoff, blocks, prefill-killed, ..., storm, proxy, tp21, tp12, ttft

Each engine is a process (vllm_engines.py). Prints a line for each case; the exit status counts the cases that
failed.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vllm_engines import BLOCK, ENVIRONMENT, Engine, Failure, Process, condition, make_model
from vllm_proxy import serve
from vllm_ttft import ttft

PROMPTS = 20
# From a kill to the terminal event of the other side.
END_S = 3.0
COUNT = 8
# Tokens of a chunk: no multiple of a block.
CHUNK = 100
# In cases of losses, for what nobody takes.
LEASE_S = 4.0
# Where a side is struck, and by whom: the producer strikes at the points of offers, the consumer at those of
# takes.
POINTS = {
    "take": "decode",
    "granted": "prefill",
    "layer": "prefill",
    "sealed": "prefill",
    "received": "decode",
}


def prompts() -> list[list[int]]:
    """Prompts of any length: their last blocks are partly full, and chunks end in the midst of blocks."""
    chosen = random.Random(5)
    return [[chosen.randrange(3, 512) for _ in range(chosen.randint(70, 390))] for _ in range(PROMPTS)]


def handle(pipe: Connection, engine: Engine, word: str, *rest: Any) -> None:
    """The words of this test, in an engine's process."""
    if word == "many":
        pipe.send(engine.many(*rest))
    elif word == "free":
        pool = engine.scheduler.kv_cache_manager.block_pool
        pipe.send((pool.get_num_free_blocks(), pool.num_gpu_blocks - 1))
    elif word == "watch":
        pipe.send(watch())
    elif word == "events":
        pipe.send(list(EVENTS))
    elif word == "strike":
        pipe.send(strike(*rest))
    elif word == "swap":
        pipe.send(swap_blocks())
    elif word == "times":
        pipe.send(sorted(TIMES))
    elif word == "metrics":
        found = engine.llm.get_metrics()
        rows = [(metric.name, dict(metric.labels), getattr(metric, "value", None)) for metric in found]
        pipe.send([row for row in rows if row[0].startswith("vllm:ferry")])


# Terminal events of this process: (kind, time); and what `save_kv_layer` took while something was offered.
EVENTS: list[tuple[str, float]] = []
TIMES: list[float] = []


def watch() -> None:
    """Notes when events are told, and how long vLLM waits for `save_kv_layer`."""
    from ferry_vllm import FerryConnector

    tell, fail, save = FerryConnector._event, FerryConnector._fail, FerryConnector.save_kv_layer
    inside: list[bool] = []

    def event(self: Any, told: Any) -> None:
        EVENTS.append((told.kind.name, time.monotonic()))
        inside.append(True)
        tell(self, told)
        inside.pop()

    def failed(self: Any, *arguments: Any) -> None:
        # A take that could not begin has no event.
        if not inside:
            EVENTS.append(("REFUSED", time.monotonic()))
        fail(self, *arguments)

    def save_kv_layer(self: Any, *arguments: Any, **options: Any) -> None:
        start = time.perf_counter()
        save(self, *arguments, **options)
        if self.computing:
            TIMES.append(time.perf_counter() - start)

    FerryConnector._event, FerryConnector._fail = event, failed
    FerryConnector.save_kv_layer = save_kv_layer


def strike(point: str, pid: int, how: str, note: str) -> None:
    """Kills or stops a process when this one is at a point of the next handoff, and notes when."""
    from ferry import kv

    done: list[bool] = []

    def hit() -> None:
        if not done:
            done.append(True)
            kv.Cache.take, kv.Cache.ready, kv.Cache.seal, kv.Cache.poll = take, ready, seal, poll
            Path(note).write_text(repr(time.monotonic()))
            os.kill(pid, signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
            while pid != os.getpid() and condition(pid) not in "TZX":
                time.sleep(0.001)

    take, ready, seal, poll = kv.Cache.take, kv.Cache.ready, kv.Cache.seal, kv.Cache.poll

    def struck_take(self: Any, *arguments: Any, **options: Any) -> None:
        hit()
        take(self, *arguments, **options)

    def struck_ready(self: Any, id: bytes, tokens: int, layers: Any = None) -> None:
        until = time.monotonic() + 20
        while self.state(id).takers == 0 and time.monotonic() < until:
            time.sleep(0.001)
        # A layer of vLLM is two of ferry.
        if point == "granted" or (layers is not None and layers[0] == 6):
            hit()
        ready(self, id, tokens, layers)

    def struck_seal(self: Any, id: bytes, tokens: int) -> None:
        until = time.monotonic() + 20
        while self.state(id).takers == 0 and time.monotonic() < until:
            time.sleep(0.001)
        seal(self, id, tokens)
        hit()

    def struck_poll(self: Any) -> Any:
        event = poll(self)
        if event is not None and event.kind == kv.RECEIVED:
            hit()
        return event

    if point == "take":
        kv.Cache.take = struck_take
    elif point in ("granted", "layer"):
        kv.Cache.ready = struck_ready
    elif point == "sealed":
        kv.Cache.seal = struck_seal
    else:
        kv.Cache.poll = struck_poll


def swap_blocks() -> None:
    """Breaks the takes of this process: the first and the last block change places. The last is not full, so
    that the first lacks tokens; attention would not see two full blocks that change places."""
    from ferry import kv

    take = kv.Cache.take

    def swapped(self: Any, id: bytes, producers: Any, blocks: Any, *arguments: Any, **options: Any) -> None:
        for group in blocks:
            if len(group.ids) > 1:
                group.ids[0], group.ids[-1] = group.ids[-1], group.ids[0]
        take(self, id, producers, blocks, *arguments, **options)

    kv.Cache.take = swapped


class Pair:
    """Two engines that hand over in both directions."""

    def __init__(
        self, folder: str, model: str, name: str, first: dict[str, Any], second: dict[str, Any]
    ) -> None:
        self.place = (folder, model, name)
        self.arguments = {"prefill": first, "decode": second}
        self.engines: dict[str, Process] = {}
        self.pids: dict[str, int] = {}
        self.producers: dict[str, list[str]] = {}
        self.requests = 0
        self.start("prefill", "decode")

    def start(self, *sides: str) -> None:
        folder, model, name = self.place
        for side in sides:
            arguments = dict(self.arguments[side])
            transfer = {
                "kv_connector": "FerryConnector",
                "kv_connector_module_path": "ferry_vllm",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                # A busy machine may keep a process waiting for a second: only cases of losses want silence.
                "kv_connector_extra_config": {"silence_ms": 10_000} | arguments.pop("extra", {}),
            }
            arguments.setdefault("max_num_batched_tokens", CHUNK)
            self.engines[side] = Process(
                folder, f"{name}-{side}", handle, model, transfer, disable_log_stats=False, **arguments
            )
        for side in sides:
            self.pids[side] = self.engines[side].ready()
            self.engines[side].ask("watch")
            self.producers.pop(side, None)

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()

    def name(self) -> str:
        self.requests += 1
        return f"request-{self.requests}"

    def whole(self, tokens: list[int], source: str = "prefill", within_s: float = 60) -> dict[str, Any]:
        """Prefill, then decode: as by a proxy that knows no ids."""
        target = "decode" if source == "prefill" else "prefill"
        name = self.name()
        wanted = {"do_remote_decode": True, "do_remote_prefill": False}
        first = self.engines[source].ask(
            "generate", name, tokens, 1, wanted, within_s, within_s=within_s + 60
        )
        handed = first["parameters"]
        if not handed:
            raise Failure(f"the prefill engine answered {first}")
        handed.pop("remote_prefill_cached_tokens", None)
        self.producers[source] = handed["ferry_producers"]
        answer: dict[str, Any] = self.engines[target].ask(
            "generate", name, tokens, COUNT, handed, within_s, within_s=within_s + 60
        )
        return answer

    def both(self, tokens: list[int], source: str = "prefill", within_s: float = 60) -> dict[str, Any]:
        """Prefill and decode at the same time: as by a proxy that draws ids."""
        target = "decode" if source == "prefill" else "prefill"
        name, id = self.name(), secrets.token_hex(16)
        wanted = {"do_remote_decode": True, "do_remote_prefill": False, "ferry_id": id}
        handed = {"do_remote_prefill": True, "ferry_id": id, "ferry_producers": self.producers[source]}
        self.engines[target].pipe.send(("generate", name, tokens, COUNT, handed, within_s))
        self.engines[source].pipe.send(("generate", name, tokens, 1, wanted, within_s))
        answer: dict[str, Any] = self.engines[target].answer(within_s + 60)
        self.engines[source].answer(within_s + 60)
        return answer

    def all_free(self, side: str, within_s: float = END_S) -> None:
        """Every block is free, at the latest after some seconds."""
        until = time.monotonic() + within_s
        while True:
            free, total = self.engines[side].ask("free")
            if free == total:
                return
            if time.monotonic() > until:
                raise Failure(f"{side}: {total - free} of {total} blocks are not free after {within_s:.0f} s")
            time.sleep(0.02)


def agree(number: int, answer: dict[str, Any], expected: list[list[int]], tokens: list[int]) -> None:
    if answer["tokens"] != expected[number]:
        raise Failure(f"prompt {number}: other tokens than of one engine alone: {answer}")
    if answer["cached"] != len(tokens):
        raise Failure(f"prompt {number}: {answer['cached']} of {len(tokens)} tokens were told as loaded")


def directions(
    pair: Pair, expected: list[list[int]], sources: tuple[str, ...] = ("prefill",), count: int = PROMPTS
) -> str:
    """Prompts through the pair, whole and by layer."""
    for source in sources:
        target = "decode" if source == "prefill" else "prefill"
        for way in (pair.whole, pair.both):
            for number, tokens in enumerate(prompts()[:count]):
                agree(number, way(tokens, source), expected, tokens)
        pair.all_free(source)
        pair.all_free(target)
    return f"{count} prompts {' and '.join(sources)} first, whole and by layer, equal and all loaded"


def swapped(pair: Pair, expected: list[list[int]]) -> str:
    pair.engines["decode"].ask("swap")
    differ = sum(
        pair.whole(tokens)["tokens"] != expected[number] for number, tokens in enumerate(prompts()[:5])
    )
    if differ == 0:
        raise Failure("two blocks were swapped, and no token changed: the check checks nothing")
    return f"{differ} of 5 differ with two blocks swapped"


def handoff(place: tuple[str, str], expected: list[list[int]]) -> str:
    pair = Pair(*place, "handoff", {}, {})
    try:
        said = directions(pair, expected)
        times = pair.engines["prefill"].ask("times")
        said += f"; save_kv_layer p50 {times[len(times) // 2] * 1e6:.1f} us"
        said += f", p99 {times[len(times) * 99 // 100] * 1e6:.1f} us of {len(times)}"
        counted = {
            (side, row[1]["side"], row[1]["end"]): row[2]
            for side in ("prefill", "decode")
            for row in pair.engines[side].ask("metrics")
            if "end" in row[1]
        }
        wanted = 2 * len(prompts())
        sent, got = ("prefill", "offer", "SENT"), ("decode", "take", "RECEIVED")
        if (counted.get(sent), counted.get(got)) != (wanted, wanted):
            raise Failure(f"/metrics has {counted} of {wanted} handoffs")
        return f"{said}; {swapped(pair, expected)}"
    finally:
        pair.close()


def blocks(place: tuple[str, str], expected: list[list[int]]) -> str:
    pair = Pair(*place, "blocks", {}, {"block_size": 2 * BLOCK})
    try:
        return directions(pair, expected, ("prefill", "decode"), PROMPTS // 2)
    finally:
        pair.close()


def ranks(first: int, second: int) -> Callable[..., str]:
    def case(place: tuple[str, str], expected: list[list[int]]) -> str:
        sides = []
        for count in (first, second):
            binding = "0|1" if count == 2 else "0"
            sides.append(
                {"tensor_parallel_size": count, "environment": {"VLLM_CPU_OMP_THREADS_BIND": binding}}
                if count > 1
                else {}
            )
        pair = Pair(*place, f"tp{first}{second}", *sides)
        try:
            return directions(pair, expected, count=PROMPTS // 4)
        finally:
            pair.close()

    return case


def struck_at(note: Path) -> float | None:
    """When a side was struck. A prefill engine answers before the decode engine has received it all."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if note.exists() and (text := note.read_text()):
            return float(text)
        time.sleep(0.01)
    return None


def struck(pair: Pair, point: str, victim: str, how: str, expected: list[list[int]]) -> float:
    """One side goes away at a point of a handoff; returns after how long the other side was told."""
    longest = max(range(len(prompts())), key=lambda number: len(prompts()[number]))
    tokens = prompts()[longest]
    pair.whole(tokens)
    other = "decode" if victim == "prefill" else "prefill"
    pair.all_free(other, LEASE_S + END_S)
    note = Path(pair.place[0], f"struck-{point}-{victim}-{how}")
    told = len(pair.engines[other].ask("events"))
    pair.engines[POINTS[point]].ask("strike", point, pair.pids[victim], how, str(note))
    name, id = pair.name(), secrets.token_hex(16)
    wanted = {"do_remote_decode": True, "do_remote_prefill": False, "ferry_id": id}
    handed = {"do_remote_prefill": True, "ferry_id": id, "ferry_producers": pair.producers["prefill"]}
    pair.engines["decode"].pipe.send(("generate", name, tokens, COUNT, handed, 60))
    pair.engines["prefill"].pipe.send(("generate", name, tokens, 1, wanted, 60))
    answer = pair.engines[other].answer(120)
    at = struck_at(note)
    if at is None:
        raise Failure(f"{victim} was to be {how} at {point}, and lives on")
    if other == "decode" and answer["tokens"] != expected[longest]:
        raise Failure(f"{victim} {how} at {point}: {answer}")
    # A consumer that never took is not missed: the lease ends the offer, from its computation on.
    limit_s = LEASE_S + 2 * END_S if (point, victim) == ("take", "decode") else END_S
    pair.all_free(other, LEASE_S + 2 * END_S)
    events = pair.engines[other].ask("events")[told:]
    if len(events) != 1:
        raise Failure(f"{victim} {how} at {point}: {len(events)} terminal events: {events}")
    if point == "received":
        right = ("RECEIVED",) if other == "decode" else ("SENT", "PEER_LOST")
        if events[0][0] not in right:
            raise Failure(f"{victim} {how} at {point}: {events}")
    elif other == "decode" and events[0][0] == "RECEIVED":
        raise Failure(f"{victim} {how} at {point}: everything was received, so it was struck too late")
    took: float = events[0][1] - at
    if took > limit_s:
        raise Failure(f"{victim} {how} at {point}: told after {took:.2f} s: {events}")
    return took


def losses(victim: str, how: str, modes: tuple[str, ...]) -> Callable[..., str]:
    def case(place: tuple[str, str], expected: list[list[int]]) -> str:
        said = []
        for mode in modes:
            extra = {"mode": mode, "silence_ms": 1000, "lease_s": LEASE_S}
            side = {"extra": extra, "environment": {"FERRY_TRANSPORTS": "tcp"}}
            pair = Pair(*place, f"{victim}-{how}-{mode}", dict(side), dict(side))
            try:
                for point in POINTS:
                    took = struck(pair, point, victim, how, expected)
                    said.append(f"{mode} {point} {max(took, 0):.2f} s")
                    print(f"        {victim} {how}: {said[-1]}", flush=True)
                    pair.engines[victim].close()
                    pair.start(victim)
            finally:
                pair.close()
        return f"told after: {'; '.join(said)}"

    return case


def storm(place: tuple[str, str], expected: list[list[int]]) -> str:
    """Many requests at a time, half of which are aborted on one side or the other."""
    # A take that is cancelled before its offer is forgotten by the producer, whose blocks wait for a lease.
    side = {"extra": {"lease_s": 8.0}}
    pair = Pair(*place, "storm", dict(side), dict(side))
    chosen = random.Random(int(os.environ.get("SEED", "3")))
    try:
        pair.whole(prompts()[0])
        right = aborted = loaded = 0
        for turn in range(5):
            takes, offers = [], []
            for number, tokens in enumerate(prompts()):
                name, id = f"storm-{turn}-{number}", secrets.token_hex(16)
                who = chosen.choice(["decode", "prefill", "nobody", "nobody"])
                after = chosen.uniform(0.0, 2.0)
                wanted = {"do_remote_decode": True, "do_remote_prefill": False, "ferry_id": id}
                handed = {
                    "do_remote_prefill": True,
                    "ferry_id": id,
                    "ferry_producers": pair.producers["prefill"],
                }
                takes.append((name, tokens, COUNT, handed, after if who == "decode" else None))
                offers.append((name, tokens, 1, wanted, after if who == "prefill" else None))
            # A request that a prefill engine aborts before offering it is awaited until the take's deadline.
            pair.engines["decode"].pipe.send(("many", takes, 120))
            pair.engines["prefill"].pipe.send(("many", offers, 120))
            answers = pair.engines["decode"].answer(240)
            pair.engines["prefill"].answer(240)
            for number, tokens in enumerate(prompts()):
                answer = answers[f"storm-{turn}-{number}"]
                if answer["reason"] == "none" and takes[number][4] is not None:
                    aborted += 1
                elif answer["tokens"] != expected[number]:
                    raise Failure(f"turn {turn}, prompt {number}: {answer}")
                else:
                    right += 1
                    loaded += answer["cached"] == len(tokens)
            pair.all_free("prefill", 8.0 + END_S)
            pair.all_free("decode")
        if loaded < right // 3:
            raise Failure(f"of {right} answers only {loaded} were loaded")
        return f"{right} right answers, {loaded} of them loaded, {aborted} aborted; all blocks free"
    finally:
        pair.close()


def proxy(place: tuple[str, str], expected: list[list[int]]) -> str:
    return serve(place, prompts(), expected, COUNT)


CASES: dict[str, Callable[..., str]] = {
    "handoff": handoff,
    "blocks": blocks,
    "prefill-killed": losses("prefill", "killed", ("push", "pull")),
    "decode-killed": losses("decode", "killed", ("push", "pull")),
    "prefill-stopped": losses("prefill", "stopped", ("pull",)),
    "decode-stopped": losses("decode", "stopped", ("push",)),
    "storm": storm,
    "proxy": proxy,
    "tp21": ranks(2, 1),
    "tp12": ranks(1, 2),
    "ttft": ttft,
}
# Only if they are asked for: engines of two ranks are slow to start on two cores, and times want a machine of
# their own.
ASKED = ("tp21", "tp12", "ttft")


def main() -> int:
    cases = sys.argv[1:] or [case for case in CASES if case not in ASKED]
    folder = os.environ.get("ENGINES_LOGS") or tempfile.mkdtemp(prefix="engines-")
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    os.environ.update(ENVIRONMENT, PYTHONPATH=path)
    model = str(Path(folder, "model"))
    # Neither depends on anything but this file, so a folder that is given twice has them.
    kept = Path(folder, "expected.json")
    if not kept.exists():
        make_model(model)
        alone = Process(folder, "alone", None, model, None)
        alone.ready()
        answers = [alone.ask("generate", "alone", tokens, COUNT, None, 60) for tokens in prompts()]
        alone.close()
        kept.write_text(json.dumps([answer["tokens"] for answer in answers]))
    expected = json.loads(kept.read_text())
    failed = 0
    for case in cases:
        start = time.monotonic()
        try:
            said = CASES[case]((folder, model), expected)
            print(f"ok      {case}: {said} ({time.monotonic() - start:.0f} s)", flush=True)
        except (Failure, TimeoutError, EOFError, ConnectionError) as error:
            failed += 1
            print(f"FAILED  {case}: {type(error).__name__}: {error}; logs in {folder}", flush=True)
    print(json.dumps({"passed": len(cases) - failed, "failed": failed}))
    return failed


if __name__ == "__main__":
    sys.exit(main())
