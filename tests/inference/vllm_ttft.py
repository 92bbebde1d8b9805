"""Time to the first token of a prefill and a decode engine of vLLM, by who hands the KV cache over.

The case `ttft` of vllm_ferry.py. Each pair of engines (vllm_engines.py) has a connector: FerryConnector,
vLLM's NixlConnector over the wheel's UCX and over ferry's plugin for NIXL, and MooncakeConnector; one
engine alone is the base. Engines of all pairs are there at the same time: each prompt goes through every
way, in an order that is drawn, so that what else the machine does falls upon all of them. UCX's progress
threads take a core for each engine, idle or not; so engines over UCX are stopped while it is not their
turn.

The time is from the request at the prefill engine to the first token of the decode engine, as a router sees
it. A connector that knows how gets the request at both engines at once. Every answer is compared with the
engine alone, and the decode engine must tell every token of the prompt as loaded.

Prints tables and writes ttft.json. A connector of others that does not run has its error in the place of
times.
"""

from __future__ import annotations

import json
import math
import os
import platform
import random
import re
import secrets
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm_engines import Failure, Process

LENGTHS = (128, 512, 1536)
# Prompts of each length and transport.
PROMPTS = int(os.environ.get("TTFT_PROMPTS", "12"))
# The first prompts of a way connect the engines, and are not counted.
WARM = 2
COUNT = 4
ANSWER_S = 60.0
# After a request: blocks become free, and connections quiet.
PAUSE_S = 0.05
ENGINE = {
    "max_model_len": 2048,
    "max_num_batched_tokens": 2048,
    "num_gpu_blocks_override": 256,
    "idle_s": 0.05,
}
WANTED = {"do_remote_decode": True, "do_remote_prefill": False}


def no_accelerator() -> None:
    """MooncakeConnector of vLLM 0.32 asks for the number of the accelerator, and torch has none here."""
    import torch

    torch.accelerator.current_device_index = lambda: 0


def port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Pair:
    """A prefill and a decode engine with a connector."""

    def __init__(
        self,
        place: tuple[str, str],
        name: str,
        transfer: dict[str, Any],
        environment: dict[str, str],
        **more: Any,
    ) -> None:
        folder, model = place
        self.requests, self.producers, self.pids = 0, [], []
        self.spins = transfer["kv_connector_extra_config"].get("backends") == ["UCX"]
        self.engine, self.bootstrap = f"{name}-engine", port()
        transfer = {"kv_load_failure_policy": "fail", "kv_buffer_device": "cpu"} | transfer
        self.sides = {}
        for side, role in (("prefill", "kv_producer"), ("decode", "kv_consumer")):
            here = {
                "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port()),
                "VLLM_MOONCAKE_BOOTSTRAP_PORT": str(self.bootstrap),
            }
            given = transfer | {
                "kv_role": role,
                "engine_id": self.engine if side == "prefill" else f"{name}-{side}",
            }
            self.sides[side] = Process(
                folder,
                f"ttft-{name}-{side}",
                None,
                model,
                given,
                environment=here | environment,
                **ENGINE,
                **more,
            )

    def ready(self) -> None:
        self.pids = [engine.ready() for engine in self.sides.values()]
        self.rest()

    def close(self) -> None:
        for engine in self.sides.values():
            engine.close()

    def wake(self) -> None:
        if self.spins:
            for pid in self.pids:
                os.kill(pid, signal.SIGCONT)
            time.sleep(PAUSE_S)

    def rest(self) -> None:
        """After a request: its blocks become free."""
        time.sleep(PAUSE_S)
        if self.spins:
            for pid in self.pids:
                os.kill(pid, signal.SIGSTOP)

    def one_after_the_other(self, tokens: list[int]) -> dict[str, Any]:
        """As by a router that hands the prefill engine's parameters on."""
        self.requests += 1
        name = f"request-{self.requests}"
        first = self.sides["prefill"].ask("generate", name, tokens, 1, dict(WANTED), ANSWER_S)
        handed = first["parameters"]
        if not handed:
            raise Failure(f"the prefill engine answered {first}")
        handed.pop("remote_prefill_cached_tokens", None)
        self.producers = handed.get("ferry_producers", [])
        answer: dict[str, Any] = self.sides["decode"].ask("generate", name, tokens, COUNT, handed, ANSWER_S)
        return answer

    def at_once(self, tokens: list[int], offer: dict[str, Any], take: dict[str, Any]) -> dict[str, Any]:
        self.requests += 1
        name = f"request-{self.requests}"
        offer, take = WANTED | offer, {"do_remote_prefill": True, "do_remote_decode": False} | take
        self.sides["prefill"].pipe.send(("generate", name, tokens, 1, offer, ANSWER_S))
        self.sides["decode"].pipe.send(("generate", name, tokens, COUNT, take, ANSWER_S))
        answer: dict[str, Any] = self.sides["decode"].answer(2 * ANSWER_S)
        self.sides["prefill"].answer(2 * ANSWER_S)
        return answer

    def by_layer(self, tokens: list[int]) -> dict[str, Any]:
        """As by a router that draws FerryConnector's ids."""
        if not self.producers:
            return self.one_after_the_other(tokens)
        id = secrets.token_hex(16)
        return self.at_once(tokens, {"ferry_id": id}, {"ferry_id": id, "ferry_producers": self.producers})

    def mooncake(self, tokens: list[int]) -> dict[str, Any]:
        """As by vLLM's example of a proxy for MooncakeConnector."""
        id = f"xfer-{secrets.token_hex(16)}"
        where = {
            "remote_engine_id": self.engine,
            "remote_bootstrap_addr": f"http://127.0.0.1:{self.bootstrap}",
        }
        return self.at_once(tokens, {"transfer_id": id}, {"transfer_id": id} | where)


class Alone:
    """One engine that computes everything."""

    def __init__(self, place: tuple[str, str]) -> None:
        folder, model = place
        self.engine = Process(folder, "ttft-alone", None, model, None, **ENGINE)

    def ready(self) -> None:
        self.engine.ready()

    def close(self) -> None:
        self.engine.close()

    def wake(self) -> None:
        pass

    def rest(self) -> None:
        time.sleep(PAUSE_S)

    def answer(self, tokens: list[int]) -> dict[str, Any]:
        answer: dict[str, Any] = self.engine.ask("generate", "alone", tokens, COUNT, None, ANSWER_S)
        return answer


@dataclass
class Way:
    """A row of the table."""

    name: str
    engines: str
    ask: Callable[[Any, list[int]], dict[str, Any]]
    ours: bool = True
    error: str = ""
    # Milliseconds, by the length of the prompt.
    times: dict[int, list[float]] = field(default_factory=dict)


ALONE = "one engine alone"


def ways(transport: str) -> list[Way]:
    found = [
        Way(ALONE, "alone", Alone.answer),
        Way("FerryConnector, whole, pull", "ferry-pull", Pair.one_after_the_other),
        Way("FerryConnector, by layer, pull", "ferry-pull", Pair.by_layer),
        Way("NixlConnector over ferry's plugin", "nixl-ferry", Pair.one_after_the_other),
        Way("NixlConnector over UCX", "nixl-ucx", Pair.one_after_the_other, ours=False),
        Way("NixlConnector over UCX, num_threads 0", "nixl-ucx-0", Pair.one_after_the_other, ours=False),
    ]
    if transport == "tcp":
        # On one host FerryConnector pulls if it may choose, and MooncakeConnector knows TCP alone.
        found += [
            Way("FerryConnector, whole, push", "ferry-push", Pair.one_after_the_other),
            Way("FerryConnector, by layer, push", "ferry-push", Pair.by_layer),
            Way("MooncakeConnector", "mooncake", Pair.mooncake, ours=False),
        ]
    return found


def start(place: tuple[str, str], engines: str, transport: str) -> Alone | Pair:
    tcp = transport == "tcp"
    here = {"FERRY_TRANSPORTS": "tcp", "UCX_TLS": "tcp"} if tcp else {}
    name, extra, more = f"{transport}-{engines}", {}, {}
    if engines == "alone":
        return Alone(place)
    if engines.startswith("ferry"):
        extra = {"mode": engines.removeprefix("ferry-"), "silence_ms": 10_000}
        transfer = {"kv_connector": "FerryConnector", "kv_connector_module_path": "ferry_vllm"}
    elif engines == "mooncake":
        extra, more = {"mooncake_protocol": "tcp"}, {"prepare": no_accelerator}
        transfer = {"kv_connector": "MooncakeConnector"}
    else:
        _, backend, *threads = engines.upper().split("-")
        # vLLM gives UCX four threads of its own; none is faster where there are few cores.
        extra = {"backends": [backend]} | ({"num_threads": 0} if threads else {})
        transfer = {"kv_connector": "NixlConnector"}
        if backend == "FERRY":
            here["NIXL_PLUGIN_DIR"] = os.environ["ENGINES_NIXL_PLUGIN"]
    return Pair(place, name, transfer | {"kv_connector_extra_config": extra}, here, **more)


def told(place: tuple[str, str], transport: str, engines: str) -> str:
    """The first error in the logs of a pair: others follow from it."""
    found = [
        line
        for side in ("prefill", "decode")
        if (log := Path(place[0], f"ttft-{transport}-{engines}-{side}.log")).exists()
        for line in re.findall(
            r"(?m)^(?:\w+\.)*\w*(?:Error|Exception)\b: .*$", log.read_text(errors="replace")
        )
    ]
    return found[0] if found else ""


def measured(way: Way, engines: Any, tokens: list[int]) -> tuple[float, dict[str, Any]]:
    engines.wake()
    begin = time.monotonic()
    answer = way.ask(engines, tokens)
    engines.rest()
    if not answer["tokens"]:
        raise Failure(f"no answer: {answer}")
    return (answer["first"] - begin) * 1e3, answer


def check(answer: dict[str, Any], base: dict[str, Any], tokens: list[int]) -> None:
    if answer["tokens"] != base["tokens"]:
        raise Failure(f"other tokens than of one engine alone: {answer['tokens']}, not {base['tokens']}")
    if answer is not base and answer["cached"] != len(tokens):
        raise Failure(f"{answer['cached']} of {len(tokens)} tokens were told as loaded")


def rounds(
    rows: list[Way], running: dict[str, Any], chosen: random.Random, lost: Callable[..., None]
) -> None:
    """Every prompt through every way that still runs."""
    for length in LENGTHS:
        for turn in range(WARM + PROMPTS):
            tokens = [chosen.randrange(3, 512) for _ in range(length)]
            answers = {}
            for way in chosen.sample(rows, len(rows)):
                if way.error:
                    continue
                try:
                    answers[way.name] = measured(way, running[way.engines], tokens)
                except (Failure, EOFError, TimeoutError, ConnectionError) as error:
                    lost(way, error)
            if ALONE not in answers:
                raise Failure("the engine alone does not answer, and nothing has its tokens")
            for way in rows:
                if way.name not in answers:
                    continue
                took, answer = answers[way.name]
                try:
                    check(answer, answers[ALONE][1], tokens)
                except Failure as error:
                    lost(way, error)
                if turn >= WARM:
                    way.times.setdefault(length, []).append(took)
        print(f"        {length} tokens went through {len(rows)} ways", flush=True)


def group(place: tuple[str, str], transport: str, chosen: random.Random) -> list[Way]:
    """All ways by one transport, with their engines side by side."""
    rows = ways(transport)
    running: dict[str, Alone | Pair] = {}

    def lost(way: Way, error: Exception) -> None:
        logged = told(place, transport, way.engines)
        way.error = " | ".join(filter(None, [f"{type(error).__name__}: {error}".removesuffix(": "), logged]))
        print(f"        {transport} {way.name}: {way.error}", flush=True)

    try:
        for engines in dict.fromkeys(way.engines for way in rows):
            running[engines] = start(place, engines, transport)
            try:
                running[engines].ready()
            except (EOFError, TimeoutError, ConnectionError) as error:
                for way in rows:
                    if way.engines == engines:
                        lost(way, error)
        rounds(rows, running, chosen, lost)
    finally:
        for engines in running.values():
            engines.close()
    return rows


def part(times: list[float], share: float) -> float:
    """The smallest time that so many of all do not exceed."""
    return sorted(times)[math.ceil(share * len(times)) - 1]


def cell(way: Way, base: Way, length: int) -> str:
    """p50 / p90, and how much longer a prompt takes than in the engine alone, at the median."""
    times = way.times[length]
    said = f"{part(times, 0.5):.0f} / {part(times, 0.9):.0f}"
    if way is base:
        return said
    return f"{said} ({part([a - b for a, b in zip(times, base.times[length], strict=True)], 0.5):+.0f})"


def table(transport: str, rows: list[Way]) -> str:
    where = {"tcp": "TCP on the loopback", "host": "what each uses on one host"}[transport]
    lines = [
        f"| {where} | " + " | ".join(f"{length} tokens" for length in LENGTHS) + " |",
        "|---|" + "---|" * len(LENGTHS),
    ]
    for way in rows:
        cells = [way.error] if way.error else [cell(way, rows[0], length) for length in LENGTHS]
        lines.append(f"| {way.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def record(seed: int, load: tuple[float, ...], found: dict[str, list[Way]]) -> dict[str, Any]:
    model = re.search(r"(?m)^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text())
    return {
        "unit": "ms from the request at the prefill engine to the first token of the decode engine",
        "machine": {
            "processor": model.group(1) if model else platform.machine(),
            "cores": os.cpu_count(),
            "load average before": load,
            "load average after": os.getloadavg(),
        },
        "seed": seed,
        "rows": [
            {
                "way": way.name,
                "transport": transport,
                "error": way.error,
                "tokens": {
                    length: {"p50": part(times, 0.5), "p90": part(times, 0.9), "samples": times}
                    for length, times in way.times.items()
                },
            }
            for transport, rows in found.items()
            for way in rows
        ],
    }


def ttft(place: tuple[str, str], expected: Any) -> str:
    """The case. It fails if a way over ferry did not hand every prompt over."""
    del expected
    seed, load = int(os.environ.get("SEED", "3")), os.getloadavg()
    chosen, found = random.Random(seed), {}
    for transport in ("tcp", "host"):
        found[transport] = group(place, transport, chosen)
        print(f"\n{table(transport, found[transport])}\n", flush=True)
    kept = Path(place[0], "ttft.json")
    kept.write_text(json.dumps(record(seed, load, found), indent=1))
    rows = [way for rows in found.values() for way in rows]
    broken = [f"{way.name}: {way.error}" for way in rows if way.ours and way.error]
    if broken:
        raise Failure("; ".join(broken))
    others = sum(1 for way in rows if way.error)
    said = f"p50 / p90 (longer than alone) in ms, {PROMPTS} prompts a cell, {os.cpu_count()} cores, "
    said += f"load {load[0]:.1f}; "
    return f"{said}equal and all loaded; {others} of {len(rows)} do not run here; samples in {kept}"
