"""vLLM on a CPU hands KV caches from a prefill engine to a decode engine over NIXL.

    vllm_handoff.py BACKEND [CASE]...      CASE: pull, push, pull-killed, pull-stopped, pull-restarted, ...

Each engine is a process. The model is tiny, random, and made here; its weights are large enough that its
tokens depend on every block of the KV cache. Prints a line for each case; the exit status counts the cases
that FAILED. A push case is MISSED if its decoder does not answer in time, but serves on with a new prefiller.
With a BACKEND other than FERRY nothing fails: the figures are for the record.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vllm_engines import ENVIRONMENT, PROMPTS, Engine, Failure, Process, condition, make_model, prompts

# Longest wait for an answer of a decoder whose prefiller is gone.
ANSWER_S = 5.0
# For other backends, whose decoders may never answer.
PATIENCE_S = 30.0
# Begins what is said of a case whose decoder did not answer in time, but serves on.
MISSED = "MISSED: "


def strike(pipe: Connection, how: str, pid: int) -> None:
    """Ends or stops the prefiller as soon as the next transfer is under way."""
    import nixl._api

    genuine = nixl._api.nixl_agent.transfer

    def transfer(self: Any, *arguments: Any, **options: Any) -> str:
        nixl._api.nixl_agent.transfer = genuine
        if pid == os.getpid():
            # The prefiller itself posts: its transfer goes on in ferry's threads until the signal.
            state = genuine(self, *arguments, **options)
            os.kill(pid, signal.SIGSTOP if how == "stopped" else signal.SIGKILL)
            return state
        # A stopped process cannot serve; so the transfer is surely under way when the process is killed.
        os.kill(pid, signal.SIGSTOP)
        while condition(pid) != "T":
            time.sleep(0.001)
        state = genuine(self, *arguments, **options)
        if how != "stopped":
            time.sleep(0.05)
            os.kill(pid, signal.SIGKILL)
        return state

    nixl._api.nixl_agent.transfer = transfer
    pipe.send(None)


def swap_blocks() -> None:
    """Breaks the transfers of this process: blocks of the first and the last layer change places.

    Two blocks of one layer would not do: attention does not ask where a key lies.
    """
    import nixl._api

    genuine = nixl._api.nixl_agent.make_prepped_xfer

    def make(
        self: Any,
        operation: str,
        local: Any,
        local_ids: Any,
        remote: Any,
        remote_ids: Any,
        *rest: Any,
        **o: Any,
    ) -> Any:
        ids = list(local_ids)
        if len(ids) > 1:
            ids[0], ids[-1] = ids[-1], ids[0]
        return genuine(self, operation, local, ids, remote, remote_ids, *rest, **o)

    nixl._api.nixl_agent.make_prepped_xfer = make


def handle(pipe: Connection, engine: Engine, word: str, *rest: Any) -> None:
    """The words of this test, in an engine's process."""
    if word == "strike":
        strike(pipe, *rest)
    elif word == "swap":
        swap_blocks()
        pipe.send(None)


class Pair:
    """A prefill engine and a decode engine."""

    def __init__(self, folder: str, model: str, backend: str, mode: str, port: int) -> None:
        self.place = (folder, model, backend, mode)
        self.connector = "NixlPushConnector" if mode == "push" else "NixlConnector"
        self.port = port
        self.requests = 0
        self.decode = self.start("decode", "kv_consumer", port + 1)
        self.decode.ready()
        self.start_prefill()

    def start(self, side: str, role: str, port: int) -> Process:
        folder, model, backend, mode = self.place
        transfer = {
            "kv_connector": self.connector,
            "kv_role": role,
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"backends": [backend]},
        }
        where = {"VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)}
        return Process(folder, f"{mode}-{side}", handle, model, transfer, environment=where)

    def start_prefill(self) -> None:
        self.prefill = self.start("prefill", "kv_producer", self.port)
        self.pid = self.prefill.ready()

    def close(self) -> None:
        self.prefill.close()
        self.decode.close()

    def run(self, tokens: list[int], count: int, within_s: float) -> dict[str, Any]:
        parameters = {"do_remote_decode": True, "do_remote_prefill": False}
        self.requests += 1
        name = f"request-{self.requests}"
        first = self.prefill.ask("generate", name, tokens, 1, parameters, 60)
        handed = first["parameters"]
        handed.pop("remote_prefill_cached_tokens", None)
        answer: dict[str, Any] = self.decode.ask(
            "generate", name, tokens, count, handed, within_s, within_s=within_s + 60
        )
        return answer


def tokens_agree(pair: Pair, expected: list[list[int]]) -> str:
    """Every prompt through the pair, then some with two blocks swapped under it."""
    for number, tokens in enumerate(prompts()):
        answer = pair.run(tokens, 16, 60)
        if answer["tokens"] != expected[number]:
            raise Failure(f"prompt {number}: other tokens than of one engine alone")
        if answer["cached"] != len(tokens):
            raise Failure(f"prompt {number}: {answer['cached']} of {len(tokens)} tokens were told as loaded")
    (pair.prefill if "push" in pair.place[3] else pair.decode).ask("swap")
    differ = 0
    for number, tokens in enumerate(prompts()[:5]):
        differ += pair.run(tokens, 16, 60)["tokens"] != expected[number]
    if differ == 0:
        raise Failure("two blocks were swapped, and no token changed: the check checks nothing")
    return f"{PROMPTS} prompts, tokens equal, all loaded; {differ} of 5 differ with two blocks swapped"


def was_struck(pair: Pair, how: str) -> bool:
    """Whether the prefiller is gone or stopped; one that was never struck gives the right tokens too."""
    if how == "stopped":
        return condition(pair.pid) == "T"
    pair.prefill.process.join(ANSWER_S)
    return pair.prefill.process.exitcode == -signal.SIGKILL


def survives(pair: Pair, how: str, mode: str, expected: list[list[int]], limit_s: float) -> str:
    """The prefiller goes away in the middle of a transfer."""
    longest = max(range(PROMPTS), key=lambda number: len(prompts()[number]))
    tokens = prompts()[longest]
    pair.run(tokens, 4, 60)
    struck = pair.prefill if mode == "push" else pair.decode
    struck.ask("strike", how, pair.pid)
    answer = pair.run(tokens, 16, limit_s)
    if not was_struck(pair, how):
        raise Failure(f"the prefiller was to be {how} in mid-transfer, and lives on")
    if answer["reason"] == "none":
        # vLLM's push decoder waits for its prefiller alone, and asks NIXL nothing meanwhile.
        said = f"{MISSED}no answer within {limit_s:.0f} s"
        if mode != "push":
            raise Failure(said)
    elif answer["tokens"] == expected[longest] or answer["reason"] == "error":
        said = f"answered after {answer['seconds']:.1f} s, finish reason {answer['reason']}, "
        said += f"{answer['cached']} of {len(tokens)} tokens loaded"
    else:
        raise Failure(f"wrong tokens, {answer}")
    # The decoder goes on, with a prefiller that takes the place of the one that is gone.
    if how == "restarted" or answer["reason"] == "none":
        pair.prefill.close()
        pair.start_prefill()
        again = pair.run(tokens, 16, 60)
        if again["tokens"] != expected[longest] or again["cached"] != len(tokens):
            raise Failure(
                f"{said}; with the new prefiller {again['cached']} of {len(tokens)} tokens were loaded"
            )
        said += "; the decoder serves with a new prefiller"
    return said


def main() -> int:
    backend, *cases = sys.argv[1:]
    deaths = ["killed", "stopped", "restarted"]
    cases = cases or ["pull", "push", *(f"{mode}-{how}" for mode in ("pull", "push") for how in deaths)]
    folder = os.environ.get("ENGINES_LOGS") or tempfile.mkdtemp(prefix="engines-")
    os.environ.update(ENVIRONMENT, PYTHONPATH=str(Path(__file__).parent))
    model = str(Path(folder, "model"))
    make_model(model)
    alone = Process(folder, "alone", None, model, None)
    alone.ready()
    expected = [alone.ask("generate", "alone", tokens, 16, None, 60)["tokens"] for tokens in prompts()]
    alone.close()
    failed = missed = 0
    for turn, case in enumerate(cases):
        mode, _, how = case.partition("-")
        pair = None
        try:
            pair = Pair(folder, model, backend, mode, 25_500 + 20 * turn + os.getpid() % 10 * 400)
            limit_s = ANSWER_S if backend == "FERRY" else PATIENCE_S
            said = survives(pair, how, mode, expected, limit_s) if how else tokens_agree(pair, expected)
            late = said.startswith(MISSED)
            missed += late
            word = "MISSED  " if late else "ok      "
            print(f"{word}{backend} {case}: {said.removeprefix(MISSED)}", flush=True)
        except (Failure, TimeoutError, EOFError, ConnectionError) as error:
            failed += 1
            print(f"FAILED  {backend} {case}: {type(error).__name__}: {error}; logs in {folder}", flush=True)
        finally:
            if pair is not None:
                pair.close()
    passed = len(cases) - failed - missed
    print(json.dumps({"backend": backend, "passed": passed, "missed": missed, "failed": failed}))
    return failed if backend == "FERRY" else 0


if __name__ == "__main__":
    sys.exit(main())
