"""Engines of vLLM as processes, on a CPU: what vllm_handoff.py, vllm_ferry.py and vllm_ttft.py share.

The model is tiny, random, and made here; its weights are large enough that its tokens depend on every block
of the KV cache.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

BLOCK = 32
PROMPTS = 20
STARTS_S = 600.0
# An engine that has nothing to do looks so often whether it has.
IDLE_S = 0.002
PR_SET_PDEATHSIG = 1
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


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

    def __init__(self, model: str, transfer: dict[str, Any] | None, **arguments: Any) -> None:
        from vllm import LLM
        from vllm.config import KVTransferConfig

        given = {
            "dtype": "float32",
            "block_size": BLOCK,
            "enforce_eager": True,
            "skip_tokenizer_init": True,
            "max_model_len": 1024,
            "max_num_seqs": 8,
            "enable_prefix_caching": False,
        }
        self.llm = LLM(
            model=model,
            kv_transfer_config=KVTransferConfig(**transfer) if transfer is not None else None,
            **(given | arguments),
        )

    def generate(
        self, name: str, tokens: list[int], count: int, parameters: dict[str, Any] | None, limit_s: float
    ) -> dict[str, Any]:
        """Answers one prompt; a request that is not done in time is aborted, with the reason "none".

        The push connector finds the two sides of a request by their common name.
        """
        return self.many([(name, tokens, count, parameters, None)], limit_s)[name]

    def many(self, requests: list[tuple[Any, ...]], limit_s: float) -> dict[str, dict[str, Any]]:
        """Answers several prompts at a time: (name, tokens, count, parameters, seconds until it is aborted or
        None). What was aborted or is late has the reason "none". "first" is when the first token was there,
        by the machine's clock."""
        from vllm import SamplingParams

        start = time.monotonic()
        first: dict[str, float] = {}
        answers: dict[str, dict[str, Any]] = {}
        aborts = {name: after for name, *_, after in requests if after is not None}
        for name, tokens, count, parameters, _ in requests:
            sampling = SamplingParams(
                max_tokens=count,
                temperature=0,
                detokenize=False,
                ignore_eos=True,
                extra_args={"kv_transfer_params": parameters} if parameters else None,
            )
            self.llm.llm_engine.add_request(name, {"prompt_token_ids": tokens}, sampling)
        while len(answers) < len(requests):
            for output in self.step():
                if output.outputs[0].token_ids:
                    first.setdefault(output.request_id, time.monotonic())
                if output.finished:
                    answers[output.request_id] = {
                        "first": first.get(output.request_id),
                        "tokens": list(output.outputs[0].token_ids),
                        "reason": output.outputs[0].finish_reason,
                        "cached": output.num_cached_tokens,
                        "parameters": output.kv_transfer_params,
                        "seconds": time.monotonic() - start,
                    }
            now = time.monotonic() - start
            late = [name for name, after in aborts.items() if now > after]
            late += [name for name, *_ in requests if now > limit_s]
            for name in late:
                aborts.pop(name, None)
                if name not in answers:
                    self.llm.llm_engine.abort_request([name])
                    answers[name] = {
                        "first": None,
                        "tokens": [],
                        "reason": "none",
                        "cached": 0,
                        "parameters": None,
                        "seconds": now,
                    }
        return answers

    def step(self) -> list[Any]:
        """One turn of the engine's loop. Like vLLM's own, it sleeps when there are requests but nothing to
        compute: they wait for another engine, whose core this one would take."""
        outputs: list[Any] = self.llm.llm_engine.step()
        if not outputs and self.is_busy() and not self.scheduler.running:
            time.sleep(0.001)
        return outputs

    def is_busy(self) -> bool:
        """Whether requests wait, are computed, or have blocks that another engine still needs."""
        return bool(self.scheduler.has_requests())

    @property
    def scheduler(self) -> Any:
        core: Any = self.llm.llm_engine.engine_core
        return core.engine_core.scheduler


def condition(pid: int) -> str:
    """The kernel's letter for a process; T is stopped, X gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def end_with(runner: int) -> None:
    """The kernel kills this process with its runner: a stopped engine never sees that its pipe has ended."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    # The parent is the process that forks engines, which ends with the runner.
    os.kill(runner, 0)


def serve(pipe: Connection, log: str, runner: int, handle: Callable[..., Any] | None, arguments: Any) -> None:
    """An engine's process: does what the test asks for until the pipe ends. `handle` knows further words."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    end_with(runner)
    positional, named = arguments
    os.environ.update(named.pop("environment", {}))
    if prepare := named.pop("prepare", None):
        prepare()
    idle_s = named.pop("idle_s", IDLE_S)
    engine = Engine(*positional, **named)
    pipe.send(os.getpid())
    while True:
        if not pipe.poll(0 if engine.is_busy() else idle_s):
            engine.step()
            continue
        try:
            word, *rest = pipe.recv()
        except EOFError:
            return
        if word == "generate":
            pipe.send(engine.generate(*rest))
        elif handle is not None:
            handle(pipe, engine, word, *rest)


class Process:
    """An engine's process. `handle` knows words beside "generate". Of what else is given, `environment`,
    `prepare` (called before vLLM starts) and `idle_s` are the process's, the rest is the engine's."""

    def __init__(
        self, folder: str, name: str, handle: Callable[..., Any] | None, *positional: Any, **named: Any
    ) -> None:
        # Engines are forked from a process that has imported vLLM, which takes most of their start.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["vllm_preload"])
        self.pipe, theirs = context.Pipe()
        self.log = Path(folder, f"{name}.log")
        self.process = context.Process(
            target=serve,
            args=(theirs, str(self.log), os.getpid(), handle, (positional, named)),
            # A daemon has no children, and the ranks of an engine are its children.
            daemon=named.get("tensor_parallel_size", 1) == 1,
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
