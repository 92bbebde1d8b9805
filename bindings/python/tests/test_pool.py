"""Pools of several nodes: in this process, each on an engine of its own, and in two processes."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import hmac
import os
import re
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import positions
from test_fork import in_child

import ferry
from ferry import pool
from ferry.pool import Key, Keyspace, Outcome, Pool

LENGTH = 1 << 14
SPACE = Keyspace("tests", "llama", chunk_tokens=4)
PAGE = Path(__file__).resolve().parents[3] / "docs" / "pool.md"
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "pool.py"


def key(number: int) -> Key:
    return SPACE.key(b"%d" % number)


class Node:
    """A node, and registered memory with room for four values."""

    def __init__(self, engine: ferry.Engine, made: Pool) -> None:
        self.engine = engine
        self.pool = made
        self.memory = engine.alloc(4 * LENGTH)
        self.places = [self.memory.view[at * LENGTH : (at + 1) * LENGTH] for at in range(4)]

    def put(self, number: int, **options: Any) -> pool.Result:
        self.places[0][:] = positions(LENGTH, number)
        (result,) = self.pool.put([(key(number), self.places[0])], timeout=20, **options)
        return result

    def get(self, number: int) -> pool.Result:
        self.places[1][:] = bytes(LENGTH)
        (result,) = self.pool.get([(key(number), self.places[1])], timeout=20)
        assert not result.ok or self.places[1] == positions(LENGTH, number)
        return result


@contextmanager
def cluster(*lent: int, **options: Any) -> Iterator[list[Node]]:
    with ExitStack() as stack:
        engines = [stack.enter_context(ferry.Engine()) for _ in lent]
        nodes = [it.address for it in engines]
        made = []
        for number, (engine, memory_bytes) in enumerate(zip(engines, lent, strict=True)):
            opened = Pool(
                engine,
                nodes=nodes,
                memory_bytes=memory_bytes,
                name=f"node {number}",
                **{"chunk_tokens": SPACE.chunk_tokens, **options},
            )
            made.append(Node(engine, stack.enter_context(opened)))
        for node in made:
            node.pool.wait_nodes(len(lent), 20)
            # The index is made when the nodes have met: until then what nobody has is UNKNOWN.
            until, nobody = time.monotonic() + 20, key(2**40)
            while node.pool.exists([nobody])[0].outcome is not pool.Outcome.ABSENT:
                assert time.monotonic() < until
                time.sleep(0.001)
        yield made


def test_what_one_node_puts_every_node_gets() -> None:
    with cluster(1 << 22, 1 << 22, 0) as nodes:
        for number, node in enumerate(nodes):
            assert node.put(number).outcome is Outcome.OK
            again = node.put(number)
            # A client's put goes to the node that has most room, which may have become the other one.
            assert again.ok and (again.outcome is Outcome.HERE or node is nodes[2])
            for other in nodes:
                assert other.get(number).outcome is Outcome.OK
        missing = nodes[2].get(99)
        assert missing == (Outcome.ABSENT, 0, 0) and not missing.ok
        assert repr(missing.outcome) == "<Outcome.ABSENT: 2>"


def test_values_of_arrays_regions_and_pieces() -> None:
    numpy = pytest.importorskip("numpy")
    with cluster(1 << 22, 1 << 22) as (first, second):
        source = numpy.arange(300, dtype=numpy.uint64)
        target = numpy.zeros(300, dtype=numpy.uint64)
        first.engine.register(source)
        region = second.engine.register(target)
        assert first.pool.put([(key(1), [source[:100], source[100:]])])[0].ok
        assert second.pool.get([(key(1), region)])[0].ok
        assert (source == target).all()
        target[:] = 0
        assert second.pool.get([(key(1), (target[:7], target[7:]))])[0].ok
        assert (source == target).all()
        first.memory.view[:8] = b"12345678"
        assert first.pool.put([(key(2), first.memory)])[0].bytes == 4 * LENGTH
        assert second.pool.get([(key(2), target)])[0] == (
            Outcome.LENGTH,
            4 * LENGTH,
            first.pool.nodes()[0].id,
        )


def test_a_prefix_ends_at_its_first_miss() -> None:
    with cluster(1 << 22, 1 << 22) as (first, second):
        keys = [key(number) for number in range(6)]
        for number in (0, 1, 2, 4, 5):
            assert first.put(number).ok
        assert [it.ok for it in second.pool.exists(keys)] == [True, True, True, False, True, True]
        assert [it.ok for it in second.pool.exists(keys, prefix=True)] == [True] * 3 + [False] * 3
        assert (
            second.pool.prefix(keys) == 3
            and second.pool.prefix(keys[3:]) == 0
            and second.pool.prefix([]) == 0
        )
        assert [it.outcome.name for it in second.pool.remove(keys[2:4])] == ["OK", "ABSENT"]
        # The index hears of it after the caller.
        assert all(node.get(2).outcome in (Outcome.ABSENT, Outcome.EVICTED) for node in (first, second))


def test_a_value_is_where_the_put_prefers_and_on_as_many_nodes_as_it_says() -> None:
    with cluster(1 << 22, 1 << 22, 1 << 22) as nodes:
        ids = {node.name: node.id for node in nodes[0].pool.nodes()}
        assert set(ids) == {"node 0", "node 1", "node 2"}
        assert nodes[0].put(1, preferred="node 2").node == ids["node 2"]
        assert nodes[0].put(2, replicas=3).ok
        assert [node.pool.stats().values for node in nodes] == [1, 1, 2]


def test_keys_depend_on_the_tokens_and_on_nothing_of_the_process() -> None:
    keys = SPACE.keys_of(range(1000, 1011))
    assert len(keys) == 2 and len(set(keys)) == 2
    program = (
        "from ferry.pool import Keyspace; "
        "print(*Keyspace('tests', 'llama', chunk_tokens=4).keys_of(range(1000, 1011)))"
    )
    for seed in ("1", "2"):
        told = subprocess.check_output(
            [sys.executable, "-c", program], text=True, env={**os.environ, "PYTHONHASHSEED": seed}
        )
        assert [Key.parse(word) for word in told.split()] == keys
    assert Keyspace("tests", "qwen", chunk_tokens=4).keys_of(range(1000, 1011)) != keys
    assert Keyspace("tests", "llama", rope=b"yarn", chunk_tokens=4).keys_of(range(1000, 1011)) != keys
    assert Keyspace("tests", "llama", more={"layers": b"0-15"}, chunk_tokens=4).key(b"1") != SPACE.key(b"1")


def by_hand(tenant: bytes, model: bytes, own: bytes, secret: bytes | None) -> bytes:
    """The key of a program's own hash, by the bytes that pool/src/key/mod.rs documents."""

    def field(part: bytes) -> bytes:
        return struct.pack("<I", len(part)) + part

    def keyed(message: bytes) -> bytes:
        return (hmac.new(secret, message, "sha256") if secret else hashlib.sha256(message)).digest()

    pairs = {b"model": model, b"revision": b"", b"dtype": b"", b"scales": b"", b"rope": b""}
    rows = b"".join(field(name) + field(value) for name, value in sorted(pairs.items()))
    root = keyed(b"ferry-pool root2" + field(tenant) + struct.pack("<I", len(pairs)) + rows)
    tag = keyed(b"ferry-pool tag 2" + field(tenant))[:8]
    return hashlib.sha256(b"ferry-pool key 2" + root + bytes(17) + field(own)).digest()[:24] + tag


@pytest.mark.parametrize("length", [0, 16, 63, 64, 65, 200, 1024])
def test_a_secret_decides_the_keys_of_its_tenant(length: int) -> None:
    secret = bytes(at % 256 for at in range(length)) or None
    made = Keyspace("tenant é", "llama", secret=secret)
    assert made.key(b"own\0hash") == by_hand("tenant é".encode(), b"llama", b"own\0hash", secret)
    other = Keyspace("tenant é", "llama", secret=b"\1" + (secret or bytes(16))[1:])
    assert made.key(b"1")[:24] != other.key(b"1")[:24] and made.key(b"1")[24:] != other.key(b"1")[24:]
    assert made.key(b"1")[24:] == Keyspace("tenant é", "qwen", secret=secret).key(b"2")[24:]


def test_a_tenant_at_its_quota_loses_its_own_values() -> None:
    secret = bytes(range(32))
    quotas = {"tests": 3 * LENGTH, "secret": pool.Quota(2 * LENGTH, secret)}
    hidden, open_to_all = Keyspace("secret", "llama", secret=secret), Keyspace("secret", "llama")
    with cluster(1 << 22, quotas=quotas) as (node,):
        for space in (open_to_all, hidden):
            for number in range(4):
                assert node.pool.put([(space.key(b"%d" % number), node.places[0])], timeout=20)[0].ok
        for number in range(3):
            assert node.put(number).ok
        assert node.put(3).ok and not node.get(0).ok and node.get(1).ok
        too_long = node.pool.put([(key(9), node.memory)])[0]
        assert too_long.outcome is Outcome.TOO_LONG
        found = [it.ok for it in node.pool.exists([hidden.key(b"%d" % number) for number in range(4)])]
        assert found == [False, False, True, True]
        assert all(it.ok for it in node.pool.exists([open_to_all.key(b"%d" % at) for at in range(4)]))
        told = node.pool.metrics()
        assert 'ferry_pool_tenant_evictions_total{tenant="secret"} 2\n' in told
        assert f'ferry_pool_tenant_bytes{{tenant="tests"}} {3 * LENGTH}\n' in told
        assert 'ferry_pool_tenant_values{tenant="tests"} 3\n' in told
    assert repr(quotas["secret"]) == "<ferry.pool.Quota of 32768 bytes>"


def test_a_chain_goes_on_from_its_parent() -> None:
    numpy = pytest.importorskip("numpy")
    tokens = list(range(20))
    whole, last = SPACE.chain(tokens)
    first, parent = SPACE.chain(tokens[:8])
    assert parent is not None and last is not None
    assert first + SPACE.keys_of(tokens[8:], parent=parent) == whole
    assert SPACE.chain(tokens[:3], parent=parent) == ([], parent)
    for kind in (numpy.uint32, numpy.int32, numpy.int64):
        assert SPACE.keys_of(numpy.array(tokens, kind)) == whole
    assert SPACE.keys_of(tokens, lora="sql")[0] != whole[0]
    assert SPACE.keys_of(tokens, salt=b"\0")[0] != whole[0]
    with_image = SPACE.keys_of(tokens, images=[pool.Image(b"cat", 9, 1)])
    assert with_image[:2] == whole[:2] and with_image[2] != whole[2]


def test_calls_of_an_event_loop() -> None:
    async def work(nodes: list[Node]) -> None:
        first, second = nodes
        puts = [
            first.pool.put_async([(key(number), first.places[number])], preferred="node 1")
            for number in range(4)
        ]
        assert all(results[0].ok for results in await asyncio.gather(*puts))
        gets = [second.pool.get_async([(key(number), second.places[number])]) for number in range(4)]
        assert all(results[0].ok for results in await asyncio.gather(*gets))
        keys = [key(number) for number in range(5)]
        assert await first.pool.prefix_async(keys) == 4
        assert [it.ok for it in await second.pool.exists_async(keys)] == [True] * 4 + [False]
        assert (await second.pool.remove_async(keys[:1]))[0].ok
        assert await first.pool.exists_async([]) == []
        # A cancel does not end the call, and later ones find their ends.
        cancelled = asyncio.ensure_future(first.pool.exists_async(keys))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert await first.pool.prefix_async(keys[1:]) == 3
        while first.pool._loops or second.pool._loops:
            await asyncio.sleep(0)

    with cluster(1 << 22, 1 << 22) as nodes:
        for at, place in enumerate(nodes[0].places):
            place[:] = positions(LENGTH, at)
        asyncio.run(work(nodes))
        assert bytes(nodes[1].memory.view) == bytes(nodes[0].memory.view)


def test_a_prefetch_brings_values_and_an_estimate_says_whether_that_pays() -> None:
    async def in_a_loop(node: Node) -> None:
        results = await node.pool.prefetch_async([key(number) for number in range(3)])
        assert [it.outcome.name for it in results] == ["HERE", "HERE", "ABSENT"]
        assert (await node.pool.estimate_async([key(0)], value_bytes=7)).bytes == LENGTH

    keys = [key(number) for number in range(4)]
    with cluster(1 << 22, 1 << 22, 0) as (first, second, client):
        assert all(first.put(number).ok for number in (0, 1, 3))
        unknown = pool.Cost(2, 2 * LENGTH, None, 2, None)
        assert client.pool.estimate(keys, value_bytes=LENGTH, prefill_tokens_per_s=1) == unknown
        results = second.pool.prefetch(keys, prefix=True, timeout=20)
        assert [it.outcome.name for it in results] == ["OK", "OK", "ABSENT", "ABSENT"]
        assert results[0].bytes == LENGTH and results[0].node == second.pool.nodes()[1].id
        assert second.get(1).ok and second.pool.stats().hits_here == 1
        asyncio.run(in_a_loop(second))
        with pytest.raises(ferry.InvalidError, match="prefetch: this node lends no memory"):
            client.pool.prefetch(keys)
        # A long get of whatever the client finds: four values.
        places = [(key(0), client.memory.view[:LENGTH])]
        assert client.pool.get(places)[0].ok
        cost = client.pool.estimate(keys[:1], prefill_tokens_per_s=1, chunk_tokens=2)
        assert cost.get is not None and cost.get > 0 and cost.bytes == LENGTH
        assert cost == (1, LENGTH, cost.get, 1, cost.get)
        assert client.pool.estimate(keys[:1], prefill_tokens_per_s=10**15)[3] == 0
        assert client.pool.estimate(keys[2:])[:2] == (0, 0)
        with pytest.raises(ferry.InvalidError, match="value_bytes"):
            client.pool.estimate(keys, value_bytes=-1)


def test_a_node_that_is_taken_out_moves_its_values() -> None:
    with cluster(1 << 22, 1 << 22, 0) as (first, second, client):
        assert all(first.put(number).ok for number in range(5))
        assert second.put(0, preferred="node 1").ok
        with pytest.raises(ferry.InvalidError, match="lends no memory"):
            client.pool.drain()
        drained = first.pool.drain(timeout=20)
        assert drained == pool.Drained(4, 1, 0) and drained == first.pool.drain()
        with pytest.raises(ferry.InvalidError, match="node 1.* is the only node"):
            second.pool.drain()
        stats = first.pool.stats()
        assert (stats.values, stats.drained, stats.drained_here, stats.is_draining) == (0, 4, 1, 1)
        # A put goes elsewhere, whoever asks.
        assert first.put(5).node == client.put(6, preferred="node 0").node == second.pool.nodes()[0].id
        first.pool.close()
        assert all(client.get(number).ok for number in range(7))


def test_threads_and_an_event_loop_share_a_pool() -> None:
    with cluster(1 << 22, 1 << 22) as (first, second):
        assert first.put(1).ok
        wrong: list[object] = []

        def ask() -> None:
            for _ in range(50):
                found = second.pool.exists([key(1), key(2)], timeout=20)
                if [it.ok for it in found] != [True, False]:
                    wrong.append(found)

        async def work() -> None:
            for _ in range(50):
                assert await second.pool.prefix_async([key(1), key(2)]) == 1

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        asyncio.run(work())
        for thread in threads:
            thread.join()
        assert wrong == []


def test_a_timeout_leaves_the_call_alone() -> None:
    with cluster(1 << 22, 0) as (_, client):
        # Whether a call ends within no time is not certain; afterwards each one has its own end.
        for number in range(20):
            try:
                assert client.pool.exists([key(number)], timeout=0)[0].outcome is Outcome.ABSENT
            except ferry.TimeoutError as error:
                assert "goes on" in str(error)
            assert client.pool.exists([key(number)] * 2, timeout=20) == [(Outcome.ABSENT, 0, 0)] * 2
        assert client.pool._calls == {}


def test_what_is_counted() -> None:
    with cluster(1 << 22) as (node,):
        node.put(1), node.put(1), node.get(1), node.get(2)
        found = node.pool.stats()
        assert (found.gets, found.hits, found.hits_here, found.puts, found.values) == (2, 1, 1, 2, 1)
        assert node.pool.gets_ended("absent") == 1 and node.pool.puts_ended(Outcome.HERE) == 1
        assert 'ferry_pool_gets_total{outcome="ABSENT"} 1\n' in node.pool.metrics()
        assert repr(node.pool) == "<ferry.pool.Pool 'node 0', 1 nodes, 1 values here>"
        own, *others = node.pool.nodes()
        assert (
            own.name == "node 0" and own.member and own.capacity == 1 << 22 and own.why == "" and not others
        )


def test_a_node_has_the_values_of_its_file_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {"file": tmp_path / "pool", "file_bytes": 8 << 20}
    with cluster(1 << 20, **options) as (node,):
        assert node.put(1).outcome is Outcome.OK
        while node.pool.stats().file_saved == 0:
            assert node.pool.stats().file_failures == 0
    with cluster(1 << 20, **options) as (node,):
        assert node.pool.stats().file_values == 1
        assert node.get(1).ok
        stats = node.pool.stats()
        assert (stats.file_loaded, stats.file_evictions) == (1, 0)
        assert 0 < stats.file_free < stats.file_capacity < 8 << 20
        with pytest.raises(ferry.BusyError, match="another node has it"), ferry.Engine() as engine:
            Pool(engine, memory_bytes=1 << 20, **options)


def test_a_forked_child_does_not_keep_the_file(tmp_path: Path) -> None:
    options: dict[str, Any] = {"file": tmp_path / "pool", "file_bytes": 8 << 20}
    ends, end = os.pipe()
    try:
        with cluster(1 << 20, **options):
            child = os.fork()
            if child == 0:
                os.close(end)
                os.read(ends, 1)
                os._exit(0)
        with cluster(1 << 20, **options):
            pass
    finally:
        os.close(end)
        os.waitpid(child, 0)
        os.close(ends)


def mistakes(node: Node) -> dict[str, tuple[type[ferry.Error], Callable[[], object]]]:
    made, stranger = node.pool, bytearray(64)
    return {
        r"values\[0\] must be \(key, memory\)": (ferry.InvalidError, lambda: made.put([key(1)])),  # type: ignore[list-item]
        "values must be a list": (ferry.InvalidError, lambda: made.put("x")),  # type: ignore[arg-type]
        r"values\[1\]: its key must be a ferry.pool.Key": (
            ferry.InvalidError,
            lambda: made.get([(key(1), node.memory), (b"short", node.memory)]),
        ),
        r"values\[0\]\.memory\[0\]: ": (ferry.NotRegisteredError, lambda: made.put([(key(1), stranger)])),
        r"values\[0\]: .*not writable": (ferry.InvalidError, lambda: made.get([(key(1), b"constant")])),
        r"values\[0\] has no buffer protocol": (ferry.InvalidError, lambda: made.put([(key(1), 7)])),  # type: ignore[list-item]
        r"keys\[1\]: its key must be": (ferry.InvalidError, lambda: made.exists([key(1), "x"])),  # type: ignore[list-item]
        "keys must be a list of keys, not one": (ferry.InvalidError, lambda: made.exists(key(1))),  # type: ignore[arg-type]
        "keys has 65537 entries": (ferry.LimitError, lambda: made.exists([key(1)] * 65537)),
        "options.replicas: 9": (ferry.InvalidError, lambda: node.put(1, replicas=9)),
        "preferred must be": (ferry.InvalidError, lambda: node.put(1, preferred="")),
        "timeout must be seconds": (ferry.InvalidError, lambda: made.exists([], timeout=-1)),
        "outcome: one of OK, HERE": (ferry.InvalidError, lambda: made.gets_ended("gone")),
        "the engine has a pool already": (ferry.BusyError, lambda: Pool(node.engine)),
        "options.unit_bytes": (ferry.InvalidError, lambda: Pool(node.engine, unit_bytes=1000)),
        r"nodes\[0\] must be a str": (ferry.InvalidError, lambda: Pool(node.engine, nodes=[7])),  # type: ignore[list-item]
        "nodes must be a list": (ferry.InvalidError, lambda: Pool(node.engine, nodes="a:1")),
        r"quotas\['a'\] must be": (ferry.InvalidError, lambda: Pool(node.engine, quotas={"a": -1})),
        "quotas must be a dict": (ferry.InvalidError, lambda: Pool(node.engine, quotas=["a"])),  # type: ignore[arg-type]
        "quotas must be a str": (ferry.InvalidError, lambda: Pool(node.engine, quotas={7: 1})),  # type: ignore[dict-item]
        r"quotas\['a'\].secret must be bytes, not a str$": (
            ferry.InvalidError,
            lambda: Pool(node.engine, quotas={"a": pool.Quota(1, "hidden")}),  # type: ignore[arg-type]
        ),
        "options.quotas: a node with quotas lends memory": (
            ferry.InvalidError,
            lambda: Pool(node.engine, quotas={"a": 1 << 20}),
        ),
        "2 nodes are not there yet": (ferry.TimeoutError, lambda: made.wait_nodes(2, 0)),
    }


def test_mistakes_are_named() -> None:
    with cluster(1 << 22) as (node,):
        for told, (kind, make) in mistakes(node).items():
            with pytest.raises(kind, match=told):
                make()
        readable = node.engine.register(bytearray(64), access="REMOTE_READ")
        with pytest.raises(ferry.AccessError, match="grants peers no REMOTE_WRITE") as caught:
            node.pool.get([(key(1), node.memory), (key(2), readable)])
        assert caught.value.request_index == 1
        assert node.put(1).ok


@pytest.mark.parametrize(
    ("told", "make"),
    {
        "tenant: 0 bytes": lambda: Keyspace("", "llama"),
        "model: 0 bytes": lambda: Keyspace("a", ""),
        "chunk_tokens must be": lambda: Keyspace("a", "b", chunk_tokens=0),
        "scales must be bytes": lambda: Keyspace("a", "b", scales="x"),  # type: ignore[arg-type]
        "secret: 15 bytes, .* take 32 random bytes": lambda: Keyspace("a", "b", secret=bytes(15)),
        "secret: 0 bytes": lambda: Keyspace("a", "b", secret=b""),
        "secret must be bytes, not a str$": lambda: Keyspace("a", "b", secret="hidden"),  # type: ignore[arg-type]
        "model: twice": lambda: Keyspace("a", "b", more={"model": b""}),
        "hash: 0 bytes": lambda: SPACE.key(b""),
        "hash: 10000 bytes": lambda: SPACE.key(bytes(10_000)),
        "hash must be bytes": lambda: SPACE.key("x"),  # type: ignore[arg-type]
        "tokens: ": lambda: SPACE.keys_of([-1]),
        "tokens: .*large|tokens: .*greater": lambda: SPACE.keys_of([1 << 32]),
        "parent must be the 32 bytes": lambda: SPACE.keys_of([1], parent=b"x"),
        "parent: 32 zero bytes": lambda: SPACE.keys_of([1], parent=bytes(32)),
        "image: it has no tokens": lambda: SPACE.keys_of([1], images=[(b"x", 0, 0)]),
        "key must be 32 bytes": lambda: Key(b"x"),
        "64 hexadecimal digits": lambda: Key.parse("x"),
    }.items(),
)
def test_mistakes_of_keys_are_named(told: str, make: Callable[[], object]) -> None:
    with pytest.raises(ferry.InvalidError, match=told):
        make()


def test_nodes_that_cannot_be_of_one_cluster_say_why() -> None:
    changes: dict[str, dict[str, Any]] = {
        "two nodes have the name": {"name": "node 0"},
        "give all nodes the same chunk_tokens": {"chunk_tokens": 8},
        "is of cluster": {"cluster": "another"},
    }
    with cluster(1 << 22) as (node,):
        for told, change in changes.items():
            options: dict[str, Any] = {"chunk_tokens": 4, **change}
            with ferry.Engine() as engine, Pool(engine, nodes=[node.engine.address], **options) as other:
                while told not in other.nodes()[1].why:
                    with pytest.raises(ferry.TimeoutError):
                        other.wait_nodes(2, 0.01)


def test_nodes_of_a_directory() -> None:
    """Rust tests cover those in etcd."""
    with ferry.Engine() as one, ferry.Engine() as other:
        url = f"static:pool/ferry/one={one.address}"
        with pytest.raises(ferry.InvalidError, match="options.directory: url begins neither"):
            Pool(one, directory="consul:a")
        with pytest.raises(ferry.InvalidError, match="options.directory: ttl is 3601s"):
            Pool(one, directory="etcd:http://127.0.0.1:1", directory_ttl_s=3601)
        with pytest.raises(ferry.UnreachableError, match="options.directory: url: etcd does not answer"):
            Pool(one, directory="etcd:http://127.0.0.1:1", directory_timeout_ms=100)
        with Pool(one, memory_bytes=1 << 20, name="one", directory=url), Pool(other, directory=url) as client:
            client.wait_nodes(2, timeout=20)
            assert [it.name for it in client.nodes()][1:] == ["one"]


def test_a_closed_pool_and_a_closed_engine_refuse_calls() -> None:
    with cluster(1 << 22, 1 << 22) as (first, second):
        first.pool.close()
        first.pool.close()
        second.engine.close()
        for node in (first, second):
            for refused in (lambda: node.put(1), lambda: node.pool.prefix([key(1)])):  # noqa: B023
                with pytest.raises(ferry.ClosedError):
                    refused()
            with pytest.raises(ferry.ClosedError):
                asyncio.run(node.pool.exists_async([key(1)]))
            assert node.pool.stats().puts == 0
        assert repr(first.pool).endswith("closed>")


def test_a_pool_that_is_not_closed_ends_before_its_engine() -> None:
    engine = ferry.Engine()
    alive = weakref.ref(engine)
    made = Pool(engine, memory_bytes=1 << 20)
    del engine
    gc.collect()
    assert alive() is not None and made.prefix([key(1)]) == 0
    del made
    gc.collect()
    assert alive() is None


def test_a_forked_child_is_refused() -> None:
    with cluster(1 << 20) as (node,):

        def child() -> None:
            for use in (lambda: node.put(1), lambda: node.pool.stats(), lambda: node.pool.nodes()):
                with pytest.raises(ferry.ClosedError):
                    use()
            node.pool.close()
            assert repr(node.pool) == "<ferry.pool.Pool CLOSED>"

        in_child(child)
        assert node.put(1).ok


def test_the_programs_of_the_page() -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    told = [subprocess.check_output([sys.executable, "-c", it], text=True, timeout=60) for it in programs]
    parts = "0 chunks have both parts\n4 chunks have both parts\nOK OK OK OK 1 2\n"
    assert told == ["0 OK OK OK OK 3\n", "2 of 4 chunks are there\n", parts]


def test_the_example_in_two_processes() -> None:
    with subprocess.Popen(
        [sys.executable, str(EXAMPLE), "lend"], stdout=subprocess.PIPE, text=True
    ) as lender:
        try:
            assert lender.stdout is not None
            address = lender.stdout.readline().strip()
            told = subprocess.check_output(
                [sys.executable, str(EXAMPLE), "use", address], text=True, timeout=60
            )
            again = subprocess.check_output(
                [sys.executable, str(EXAMPLE), "use", address], text=True, timeout=60
            )
        finally:
            lender.kill()
    assert re.search(r"^0 of 4 chunks are in the pool$", told, re.MULTILINE), told
    assert told.endswith("got 4 chunks: OK OK OK OK\n"), told
    assert again.startswith("4 of 4 chunks are in the pool\n"), again
