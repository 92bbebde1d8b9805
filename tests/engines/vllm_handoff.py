"""vLLM on a CPU hands KV caches from a prefill engine to a decode engine over NIXL.

    vllm_handoff.py BACKEND [CASE]...      CASE: pull, push, pull-killed, pull-stopped, pull-restarted, ...

Each engine is a process. The model is tiny, random, and made here; its weights are large enough that its
tokens depend on every block of the KV cache. Prints a line for each case; the exit status counts the cases
that FAILED. A push case is MISSED if its decoder does not answer in time, but serves on with a new prefiller.
With a BACKEND other than FERRY nothing fails: the figures are for the record.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

BLOCK = 32
PROMPTS = 20
# Longest wait for an answer of a decoder whose prefiller is gone.
ANSWER_S = 5.0
# For other backends, whose decoders may never answer.
PATIENCE_S = 30.0
STARTS_S = 300.0
PR_SET_PDEATHSIG = 1
# Begins what is said of a case whose decoder did not answer in time, but serves on.
MISSED = "MISSED: "


def make_model(folder: str) -> None:
    """Writes a Llama with random weights, whose KV cache has 24 KiB a token."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=128,
        max_position_embeddings=2048,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
    )
    torch.manual_seed(7)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                weight.normal_(0.0, 0.3)
    model.save_pretrained(folder)


def prompts() -> list[list[int]]:
    """Prompts of several whole blocks; the last token of each lies in a block of its own."""
    chosen = random.Random(5)
    return [
        [chosen.randrange(3, 512) for _ in range(BLOCK * chosen.randint(3, 12) + 1)] for _ in range(PROMPTS)
    ]


class Engine:
    """One vLLM in this process."""

    def __init__(self, model: str, connector: str | None, backend: str, role: str, port: int) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        transfer = None
        if connector is not None:
            os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] = "127.0.0.1"
            os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(port)
            transfer = KVTransferConfig(
                kv_connector=connector,
                kv_role=role,
                kv_load_failure_policy="recompute",
                kv_connector_extra_config={"backends": [backend]},
            )
        self.llm = LLM(
            model=model,
            dtype="float32",
            block_size=BLOCK,
            enforce_eager=True,
            skip_tokenizer_init=True,
            max_model_len=1024,
            max_num_seqs=8,
            enable_prefix_caching=False,
            kv_transfer_config=transfer,
        )

    def generate(
        self, name: str, tokens: list[int], count: int, parameters: dict[str, Any] | None, limit_s: float
    ) -> dict[str, Any]:
        """Answers one prompt; a request that is not done in time is aborted, with the reason "none".

        The push connector finds the two sides of a request by their common name.
        """
        from vllm import SamplingParams

        sampling = SamplingParams(
            max_tokens=count,
            temperature=0,
            detokenize=False,
            ignore_eos=True,
            extra_args={"kv_transfer_params": parameters} if parameters else None,
        )
        start = time.monotonic()
        self.llm.llm_engine.add_request(name, {"prompt_token_ids": tokens}, sampling)
        while time.monotonic() - start < limit_s:
            for output in self.llm.llm_engine.step():
                if output.finished and output.request_id == name:
                    return {
                        "tokens": list(output.outputs[0].token_ids),
                        "reason": output.outputs[0].finish_reason,
                        "cached": output.num_cached_tokens,
                        "parameters": output.kv_transfer_params,
                        "seconds": time.monotonic() - start,
                    }
        self.llm.llm_engine.abort_request([name])
        return {"tokens": [], "reason": "none", "cached": 0, "parameters": None, "seconds": limit_s}

    def step(self) -> None:
        """Lets the engine's loop go on between requests, as a server's does."""
        self.llm.llm_engine.step()


def condition(pid: int) -> str:
    """The kernel's letter for a process; T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


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


def end_with(runner: int) -> None:
    """The kernel kills this process with its runner: a stopped engine never sees that its pipe has ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != runner:
        raise SystemExit("the runner ended before its engine began")


def serve(pipe: Connection, log: str, runner: int, arguments: tuple[Any, ...]) -> None:
    """An engine's process: does what the test asks for until the pipe ends."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    end_with(runner)
    engine = Engine(*arguments)
    pipe.send(os.getpid())
    while True:
        if not pipe.poll(0.002):
            engine.step()
            continue
        try:
            word, *rest = pipe.recv()
        except EOFError:
            return
        if word == "generate":
            pipe.send(engine.generate(*rest))
        elif word == "strike":
            strike(pipe, *rest)
        elif word == "swap":
            swap_blocks()
            pipe.send(None)


class Process:
    def __init__(self, folder: str, name: str, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.log = Path(folder, f"{name}.log")
        self.process = context.Process(
            target=serve, args=(theirs, str(self.log), os.getpid(), arguments), daemon=True
        )
        self.process.start()
        theirs.close()

    def ready(self) -> int:
        return int(self.answer(STARTS_S))

    def answer(self, within_s: float) -> Any:
        if not self.pipe.poll(within_s):
            raise TimeoutError(f"no answer within {within_s:.0f} s")
        return self.pipe.recv()

    def ask(self, *command: Any, within_s: float = 120.0) -> Any:
        self.pipe.send(command)
        return self.answer(within_s)

    def close(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Failure(Exception):
    pass


class Pair:
    """A prefill engine and a decode engine."""

    def __init__(self, folder: str, model: str, backend: str, mode: str, port: int) -> None:
        self.place = (folder, model, backend, mode)
        self.connector = "NixlPushConnector" if mode == "push" else "NixlConnector"
        self.port = port
        self.requests = 0
        self.decode = Process(
            folder, f"{mode}-decode", model, self.connector, backend, "kv_consumer", port + 1
        )
        self.decode.ready()
        self.start_prefill()

    def start_prefill(self) -> None:
        folder, model, backend, mode = self.place
        self.prefill = Process(
            folder, f"{mode}-prefill", model, self.connector, backend, "kv_producer", self.port
        )
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
    os.environ.update(
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_HOST_IP="127.0.0.1",
        GLOO_SOCKET_IFNAME="lo",
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
    )
    model = str(Path(folder, "model"))
    make_model(model)
    alone = Process(folder, "alone", model, None, backend, "", 0)
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
