"""`vllm serve` behind the proxy of docs/vllm.md: two prefill engines and one decode engine, on a CPU.

The case `proxy` of vllm_ferry.py. Everything is started as the page says it, in processes of its own, and
asked over HTTP. Answers must be those of one engine alone, and the decode engine must have loaded every
token of the prompt; then one prefill engine is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from vllm_engines import BLOCK, Failure

STARTS_S = 400.0
ANSWER_S = 120.0
# Requests at a time.
CLIENTS = 4
PROXY = Path(__file__).parents[2] / "bindings" / "vllm" / "proxy.py"
NAME = "tiny"
SERVERS = (("prefill-1", "kv_producer"), ("prefill-2", "kv_producer"), ("decode", "kv_consumer"))
PR_SET_PDEATHSIG = 1


def make_tokenizer(model: str) -> None:
    """A word for each token, for a server wants a tokenizer."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({f"w{number}": number for number in range(512)}, unk_token="w0"))
    words.pre_tokenizer = Whitespace()
    named = {"unk_token": "w0", "bos_token": "w1", "eos_token": "w2"}
    PreTrainedTokenizerFast(tokenizer_object=words, **named).save_pretrained(model)


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


class Server:
    """A process that listens at a port, and the processes that it starts."""

    def __init__(
        self, folder: str, name: str, command: list[str], alive: str, environment: dict[str, str]
    ) -> None:
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.name, self.alive, self.url = name, alive, f"http://127.0.0.1:{self.port}"
        with open(Path(folder, f"proxy-{name}.log"), "wb") as log:
            self.process = subprocess.Popen(
                [*command, "--port", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def ready(self) -> None:
        until = time.monotonic() + STARTS_S
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise Failure(f"{self.name} ended with {self.process.returncode} before it was ready")
            # A status of any kind is an answer.
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                try:
                    urllib.request.urlopen(self.url + self.alive, timeout=5).close()
                except urllib.error.HTTPError:
                    pass
                return
            time.sleep(0.2)
        raise Failure(f"{self.name} does not answer after {STARTS_S:.0f} s")

    def kill(self) -> None:
        """The server and its engine core at once, as a host that is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def engine(folder: str, model: str, name: str, role: str) -> Server:
    transfer = {
        "kv_connector": "FerryConnector",
        "kv_connector_module_path": "ferry_vllm",
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        # A busy machine may keep a process waiting for a second.
        "kv_connector_extra_config": {"silence_ms": 10_000},
    }
    options = (
        "--dtype float32 --enforce-eager --max-model-len 1024 --max-num-seqs 8 --no-enable-prefix-caching"
    )
    # What `vllm serve` starts. The command itself asks for the version of a package `vllm`, and the wheel for
    # CPUs has another name.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--served-model-name", NAME]
    command += [*options.split(), "--block-size", str(BLOCK), "--enable-prompt-tokens-details"]
    # The tests' engines run in one process each; a server's have their own. vLLM binds engines to cores
    # without regard for other engines, and all threads of a bound worker share the first core, ferry's too.
    environment = {key: value for key, value in os.environ.items() if key != "VLLM_ENABLE_V1_MULTIPROCESSING"}
    environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    return Server(
        folder, name, [*command, "--kv-transfer-config", json.dumps(transfer)], "/health", environment
    )


@contextlib.contextmanager
def running(folder: str, model: str) -> Iterator[tuple[list[Server], Server, Server]]:
    """Two prefill engines, a decode engine, and the proxy in front of them."""
    started: list[Server] = []
    try:
        for name, role in (
            ("prefill-1", "kv_producer"),
            ("prefill-2", "kv_producer"),
            ("decode", "kv_consumer"),
        ):
            started.append(engine(folder, model, name, role))
        for server in started:
            server.ready()
        *prefills, decode = started
        command = [sys.executable, str(PROXY), "--prefill", *(server.url for server in prefills)]
        proxy = Server(folder, "proxy", [*command, "--decode", decode.url], "/", dict(os.environ))
        started.append(proxy)
        proxy.ready()
        yield prefills, decode, proxy
    finally:
        for server in started:
            server.kill()


def post(server: Server, **body: Any) -> Any:
    data = json.dumps({"model": NAME, "temperature": 0, "ignore_eos": True, "return_token_ids": True} | body)
    request = urllib.request.Request(
        server.url + "/v1/completions", data.encode(), {"Content-Type": "application/json"}
    )
    return urllib.request.urlopen(request, timeout=ANSWER_S)


def asked(server: Server, tokens: list[int], count: int) -> tuple[list[int], int]:
    """The answer's tokens, and how many of the prompt's were not computed by who answered."""
    with post(server, prompt=tokens, max_tokens=count) as answer:
        told = json.load(answer)
    details = told["usage"]["prompt_tokens_details"] or {}
    return told["choices"][0]["token_ids"], details.get("cached_tokens") or 0


def streamed(server: Server, tokens: list[int], count: int) -> list[int]:
    with post(server, prompt=tokens, max_tokens=count, stream=True) as answer:
        lines = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: ")]
    if lines[-1] != "[DONE]":
        raise Failure(f"a stream ended with {lines[-1]}")
    pieces = [choice["token_ids"] for line in lines[:-1] for choice in json.loads(line)["choices"]]
    return [token for piece in pieces for token in piece or ()]


def handoffs(server: Server, side: str, end: str) -> int:
    """What a server's metrics say of ended offers or takes."""
    with urllib.request.urlopen(server.url + "/metrics", timeout=ANSWER_S) as answer:
        text = answer.read().decode()
    total = 0.0
    for labels, value in re.findall(r"(?m)^vllm:ferry_handoffs_total\{(.*)\} (\S+)$", text):
        if f'side="{side}"' in labels and f'end="{end}"' in labels:
            total += float(value)
    return int(total)


def counted(server: Server, side: str, end: str, wanted: int) -> None:
    """Waits for the metrics to have so many handoffs: an engine tells of them with its next step."""
    until = time.monotonic() + 10
    while (found := handoffs(server, side, end)) != wanted:
        if time.monotonic() > until:
            raise Failure(
                f"the metrics of {server.name} have {found} of side {side}, end {end}, not {wanted}"
            )
        time.sleep(0.1)


def loaded(server: Server, prompts: list[list[int]], expected: list[list[int]], count: int) -> int:
    """Asks all prompts, some at a time; returns how many were loaded as a whole."""
    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = list(clients.map(lambda tokens: asked(server, tokens, count), prompts))
    for number, (tokens, _) in enumerate(answers):
        if tokens != expected[number]:
            raise Failure(f"prompt {number}: other tokens than of one engine alone: {tokens}")
    return sum(cached == len(prompt) for (_, cached), prompt in zip(answers, prompts, strict=True))


def serve(place: tuple[str, str], prompts: list[list[int]], expected: list[list[int]], count: int) -> str:
    make_tokenizer(place[1])
    every = len(prompts)
    with running(*place) as (prefills, decode, proxy):
        found = loaded(proxy, prompts, expected, count)
        if found != every:
            raise Failure(f"{found} of {every} prompts were loaded")
        counted(decode, "take", "RECEIVED", every)
        for server in prefills:
            counted(server, "offer", "SENT", every // 2)
        if (tokens := streamed(proxy, prompts[0], count)) != expected[0]:
            raise Failure(f"a stream has other tokens than one engine alone: {tokens}")
        # The stream was the first prefill engine's turn. Every second prompt is that of the one that goes.
        gone, lives = prefills[1], prefills[0]
        gone.kill()
        found = loaded(proxy, prompts, expected, count)
        if found != every // 2:
            raise Failure(f"without {gone.name} {found} prompts were loaded, and not {every // 2}")
        # The proxy forgets where an engine was that does not answer; requests that are under way do not know.
        if (vain := sum(handoffs(decode, "take", end) for end in ("FAILED", "PEER_LOST"))) > CLIENTS:
            raise Failure(f"{vain} prompts were looked for at {gone.name}, which is gone")
        counted(lives, "offer", "SENT", every // 2 + 1 + every // 2)
    said = (
        f"2 prefill engines, 1 decode engine: {every} prompts and a stream equal and all loaded, half by each"
    )
    return f"{said}; with one killed {every} equal, {every // 2} of them loaded from the other"
