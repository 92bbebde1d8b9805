"""The calls that vLLM, SGLang and LMCache make to `mooncake.engine`, in their order and with their types,
with prefill and decode in two processes. docs/engines.md says which configurations make these calls, and
names the sources that were read."""

import ctypes
import json
import os
import queue
import re
import secrets
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mooncake.engine import TransferEngine

import ferry

PAGE = Path(__file__).parents[4] / "docs" / "engines.md"
LAYERS, BLOCKS, BLOCK_BYTES = 4, 64, 4096
BLOCK_WORDS = BLOCK_BYTES // 8


class Cache:
    """The KV cache of a worker, a tensor for each layer; each 8 bytes encode where they belong."""

    def __init__(self, filled):
        self.layers = [(ctypes.c_uint64 * (BLOCKS * BLOCK_WORDS))() for _ in range(LAYERS)]
        if filled:
            for number, layer in enumerate(self.layers):
                layer[:] = range(number << 32, (number << 32) + len(layer))
        self.addresses = [ctypes.addressof(layer) for layer in self.layers]
        self.lengths = [ctypes.sizeof(layer) for layer in self.layers]


# The other process of each test. It makes an engine, prints where it is, and, for each line of block ids on
# its standard input, prints the contents of those blocks in every layer.
DECODE = """
import json, sys
from test_engines import *
engine, cache = TransferEngine(), Cache(filled=json.loads(sys.argv[2]))
assert engine.initialize(sys.argv[1], "P2PHANDSHAKE", "tcp", "") == 0
port = engine.get_rpc_port()
assert engine.batch_register_memory(cache.addresses, cache.lengths) == 0
print(json.dumps([port, cache.addresses]), flush=True)
for line in sys.stdin:
    at = lambda layer, block: layer[block * BLOCK_WORDS : (block + 1) * BLOCK_WORDS]
    ids = json.loads(line)
    print(json.dumps([[at(layer, block) for block in ids] for layer in cache.layers]), flush=True)
assert engine.batch_unregister_memory(cache.addresses) == 0
"""


class Decode:
    def __init__(self, host, filled=False):
        self.process = subprocess.Popen(
            [sys.executable, "-c", DECODE, host, json.dumps(filled)],
            cwd=Path(__file__).parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port, self.addresses = json.loads(self.process.stdout.readline())
        self.session = f"{host}:{self.port}"

    def blocks(self, ids):
        """Returns the contents of these blocks, layer by layer."""
        self.process.stdin.write(json.dumps(list(ids)) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        code = self.process.wait(30)
        self.process.stdout.close()
        assert code == 0


def words(ids):
    """Returns the contents of these blocks in a filled cache."""
    return [
        [[*range(at := (layer << 32) + block * BLOCK_WORDS, at + BLOCK_WORDS)] for block in ids]
        for layer in range(LAYERS)
    ]


@pytest.fixture(autouse=True)
def secret(tmp_path, monkeypatch):
    """As between hosts: an address that is not loopback's alone, and the same secret for all."""
    name = tmp_path / "secret"
    name.write_bytes(secrets.token_bytes(32))
    name.chmod(0o600)
    monkeypatch.setenv("FERRY_SECRET_FILE", str(name))


def test_vllm_mooncake_connector():
    """vllm/distributed/kv_transfer/kv_connector/v1/mooncake/mooncake_connector.py,
    MooncakeConnectorWorker."""
    # __init__: `mooncake_protocol` and `device_name` of kv_connector_extra_config.
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    assert isinstance(engine.get_rpc_port(), int)
    # register_kv_caches: lists of storage addresses and sizes, once.
    cache = Cache(filled=True)
    assert engine.batch_register_memory(cache.addresses, cache.lengths) == 0
    with Decode("127.0.0.1") as decode, ThreadPoolExecutor(10) as senders:
        # _build_transfer_params: runs of consecutive ids on both sides become one range. _send_blocks: one
        # call for each request of the decoder, on one of 10 threads; 0 is success.
        ours, theirs = list(range(8, 16)), list(range(40, 48))
        calls = []
        for request in range(4):
            source = [at + (ours[2 * request]) * BLOCK_BYTES for at in cache.addresses]
            target = [at + (theirs[2 * request]) * BLOCK_BYTES for at in decode.addresses]
            lengths = [2 * BLOCK_BYTES] * LAYERS
            calls.append(
                senders.submit(engine.batch_transfer_sync_write, decode.session, source, target, lengths)
            )
        assert [call.result() for call in calls] == [0] * 4
        assert decode.blocks(theirs) == words(ours)


def test_sglang_disaggregation():
    """python/sglang/srt/distributed/device_communicators/mooncake_transfer_engine.py, MooncakeTransferEngine,
    as disaggregation/mooncake/conn.py and encoder/server.py use it."""
    # initialize: MOONCAKE_PROTOCOL, and the devices of --disaggregation-ib-device or "".
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
    assert engine.get_rpc_port() and engine.get_engine() is not None
    # register_buffer_to_engine: KV, auxiliary and state buffers in one batch.
    cache = Cache(filled=True)
    assert engine.batch_register_memory(cache.addresses, cache.lengths) == 0
    with Decode("127.0.0.1") as decode:
        # _transfer_data: every layer's ranges in one batch, with numpy's integers; below 0 is failure.
        numpy = pytest.importorskip("numpy")
        pages, landing = numpy.array([3, 9, 11]), numpy.array([1, 30, 2])
        source = [at + page * BLOCK_BYTES for at in cache.addresses for page in pages]
        target = [at + page * BLOCK_BYTES for at in decode.addresses for page in landing]
        code = engine.batch_transfer_sync_write(decode.session, source, target, [BLOCK_BYTES] * (3 * LAYERS))
        assert code == 0
        assert decode.blocks(landing.tolist()) == words(pages.tolist())
        # _failed_session_probe_loop
        assert engine.send_probe(decode.session) == 0
        # encoder/server.py, _send: an embedding is registered, sent, and taken back, for each request.
        for _ in range(3):
            embedding = (ctypes.c_uint64 * BLOCK_WORDS)(*range(BLOCK_WORDS))
            at = ctypes.addressof(embedding)
            assert engine.register_memory(at, BLOCK_BYTES) == 0
            assert (
                engine.transfer_sync_write(decode.session, at, decode.addresses[0], ctypes.sizeof(embedding))
                == 0
            )
            assert engine.unregister_memory(at) == 0
        assert decode.blocks([0])[0] == words([0])[0]
    # teardown: the same lists are given back, and the KVManager of the other role registers them again.
    assert engine.batch_unregister_memory(cache.addresses) == 0
    assert engine.batch_register_memory(cache.addresses, cache.lengths) == 0
    assert engine.send_probe(decode.session) < 0


def test_lmcache_p2p():
    """lmcache/v1/distributed/transfer_channel/impl/mooncake_te_impl.py, MooncakeTeTransferChannelContext and
    -Client: `lmcache server --p2p-transfer-engine mooncake_te`."""
    # __init__: the host of --p2p-listen-url, MC_TE_PROTOCOL, MC_TE_DEVICE; then the whole L1 buffer, in host
    # memory.
    engine = TransferEngine()
    assert engine.initialize("0.0.0.0", "P2PHANDSHAKE", "tcp", "") == 0
    cache = (ctypes.c_uint64 * (LAYERS * BLOCK_WORDS))()
    at = ctypes.addressof(cache)
    assert engine.register_memory(at, ctypes.sizeof(cache)) == 0
    with Decode("0.0.0.0", filled=True) as peer:
        session = f"127.0.0.1:{peer.port}"
        # submit_read: 0 would mean that nobody is there. query_read_status: 0 not yet, 1 done, below failed.
        number = engine.batch_transfer_async_read(
            session,
            [at + BLOCK_BYTES * layer for layer in range(LAYERS)],
            [remote + 7 * BLOCK_BYTES for remote in peer.addresses],
            [BLOCK_BYTES] * LAYERS,
        )
        assert 0 < number < 1 << 63
        end = time.monotonic() + 20
        while (status := engine.transfer_check_status(number)) == 0:
            assert time.monotonic() < end
        assert status == 1
        assert cache[:] == [word for layer in words([7]) for word in layer[0]]
    nobody = engine.batch_transfer_async_read(session, [at], [peer.addresses[0]], [BLOCK_BYTES])
    assert nobody == 0 or engine.get_batch_transfer_status([nobody]) == -1
    # close
    assert engine.unregister_memory(at) == 0


def test_vllm_ascend_mooncake_connector():
    """vllm_ascend/distributed/kv_transfer/utils/mooncake_transfer_engine.py, GlobalTE, and
    kv_p2p/mooncake_connector.py: the decoder READs. The memory of NPUs can't be registered; these are the
    calls."""
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "ascend", "") == 0
    cache = Cache(filled=False)
    for address, length in zip(cache.addresses, cache.lengths):
        assert engine.register_memory(address, length) == 0
    with Decode("127.0.0.1", filled=True) as prefill:
        code = engine.batch_transfer_sync_read(
            prefill.session, cache.addresses, prefill.addresses, cache.lengths
        )
        assert code == 0
    assert [bytes(layer) for layer in cache.layers] == [bytes(layer) for layer in Cache(filled=True).layers]


def test_many_engines_of_one_host_find_each_other():
    """Tensor parallel: each rank has an engine and a thread, and all send at once."""
    decoders = [Decode("127.0.0.1") for _ in range(3)]
    codes = queue.Queue()

    def rank(decode):
        engine, cache = TransferEngine(), Cache(filled=True)
        assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
        assert engine.batch_register_memory(cache.addresses, cache.lengths) == 0
        code = engine.batch_transfer_sync_write(
            decode.session, cache.addresses, decode.addresses, cache.lengths
        )
        codes.put(code)

    threads = [threading.Thread(target=rank, args=(decode,)) for decode in decoders]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert [codes.get() for _ in decoders] == [0, 0, 0]
    for decode in decoders:
        with decode:
            assert decode.blocks(range(BLOCKS)) == words(range(BLOCKS))


def blocks_of(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_pages_checks_see_ferry(tmp_path):
    """docs/engines.md: its logging configuration, and its commands that look at a process."""
    (configuration,) = [json.loads(text) for text in blocks_of("json") if "loggers" in text]
    program = (
        "import json, logging.config, sys, mooncake.engine\n"
        "logging.config.dictConfig(json.loads(sys.argv[1]))\n"
        "engine = mooncake.engine.TransferEngine()\n"
        "assert engine.initialize('127.0.0.1', 'P2PHANDSHAKE', 'tcp', '') == 0\n"
        "print('open', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(configuration)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "open\n"
    (check,) = [text for text in blocks_of("sh") if "/proc/$PID" in text]
    environment = {**os.environ, "PID": str(process.pid)}
    deadline = time.monotonic() + 30
    while True:
        seen = subprocess.run(["bash", "-euc", check], env=environment, capture_output=True, text=True)
        # A thread sets its name when it first runs, which may be after `initialize` has returned.
        if "ferry-control" in seen.stdout or time.monotonic() > deadline:
            break
    said = process.communicate()[1]
    assert seen.returncode == 0, seen.stderr
    assert "ferry-control" in seen.stdout and "libferry.so" in seen.stdout
    assert f"mooncake.engine initialize: ferry {ferry.__version__} at 127.0.0.1:" in said


def test_the_pages_python_check_runs():
    (check,) = [text for text in blocks_of("sh") if "python -c 'import ferry" in text]
    environment = {
        **os.environ,
        "PATH": str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"],
    }
    said = subprocess.run(
        ["bash", "-euc", check], env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout.startswith(f"ferry {ferry.__version__} ")
