"""Likely mistakes: each is answered by a sentence that names the argument, and where it can the mend."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from conftest import Pair, connected

import ferry
from ferry import kv


class Desk(NamedTuple):
    """What the mistakes are made with. `Any`, because a type checker would find most of them."""

    pair: Pair
    engine: Any
    peer: Any
    memory: Any
    inbox: Any
    layout: Any
    cache: Any
    id: kv.Id


def layout(**changed: Any) -> kv.Layout:
    layer = {"heads": 2, "elements": 8, "element_bytes": 2, "blocks": 4, "address": 4096}
    layer |= {"arrangement": kv.BLOCK_PAIR_TOKEN_HEAD, **changed.pop("layer", {})}
    told: dict[str, Any] = {"model": "m", "groups": [kv.Group(16)], "layers": [kv.Layer(name="l", **layer)]}  # type: ignore[arg-type]
    return kv.Layout(**{**told, **changed})


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    with connected() as pair:
        made: Any = layout(layer={"address": pair.local.address})
        cache: Any = kv.Cache(pair.source, made, pair.local)
        yield Desk(pair, pair.source, pair.peer, pair.local, pair.inbox, made, cache, kv.new_id())


class Cuda:
    __cuda_array_interface__ = {"version": 3, "data": (4096, False), "shape": (4, 2), "typestr": "<q"}


Mistake = Callable[[Desk], object]
MISTAKES: list[tuple[Mistake, str]] = [
    # Engines and settings.
    (lambda d: ferry.Engine(lane=4), 'unknown setting "lane"; did you mean "lanes"'),
    (lambda d: ferry.Engine(lanes="many"), "lanes.*many"),
    (lambda d: d.engine.connect(43125), 'address must be a str, like "node1:7000", not 43125'),
    (lambda d: d.engine.connect(("host", 1)), r'address must be a str, like "node1:7000", not \(.host., 1\)'),
    (lambda d: d.engine.connect("node7"), "node7"),
    (lambda d: d.engine.connect("node7:"), "node7:"),
    (lambda d: d.engine.connect(d.pair.target.address, timeout="5"), "timeout must be seconds.*'5'"),
    (lambda d: d.engine.connect(d.pair.target.address, timeout=-1), "timeout must be seconds.*-1"),
    (lambda d: d.engine.connect_descriptor("abc"), "descriptor must be the bytes of Engine.descriptor"),
    (lambda d: d.engine.queue(), "kind"),
    (lambda d: d.engine.queue(notifications=True, channel=16), "channel must be 0 to 15, not 16"),
    (lambda d: d.engine.queue(notifications=True, channel="a"), "channel must be 0 to 15, not 'a'"),
    (lambda d: ferry.Directory(d.engine, 7), "url must be a str"),  # type: ignore[arg-type]
    # Memory.
    (lambda d: d.engine.alloc("1 MiB"), "length must be an integer, not '1 MiB'"),
    (lambda d: d.engine.alloc(64, access="rw"), "access: one of REMOTE_READ, REMOTE_WRITE.*not 'rw'"),
    (lambda d: d.engine.alloc(64, access=4), "access"),
    (lambda d: d.engine.alloc(64, name=7), "name must be a str, not 7"),
    (lambda d: d.engine.alloc(64, name="x" * 64), "name"),
    (lambda d: d.engine.register("text"), "buffer has no buffer protocol: str"),
    (lambda d: d.engine.register(bytearray(64), kind="gpu"), "kind: one of AUTO, HOST, CUDA.*not 'gpu'"),
    (lambda d: d.engine.register(bytearray(64), device=0), "device: 0 is stated without its kind"),
    (lambda d: d.engine.register(bytes(64), access="REMOTE_WRITE"), "buffer.*(not writable|read-only)"),
    (lambda d: d.engine.register(bytearray(0)), "length is 0"),
    # Regions of a peer, and requests.
    (lambda d: d.peer.region("inbx"), "no region 'inbx'; did you mean 'inbox'[?] It has 'inbox'"),
    (lambda d: d.peer.region(7), "name must be a str, not 7"),
    (
        lambda d: d.peer.write([(d.memory, d.inbox.address, 8, d.inbox)]),
        r"requests\[0\].*RemoteRegion.request",
    ),
    (lambda d: d.peer.write([(d.memory.address, d.inbox, 8)]), r"requests\[0\].*RemoteRegion.request"),
    (lambda d: d.peer.write(d.inbox.request(d.memory)), "requests is one request: give a list of them"),
    (
        lambda d: d.peer.write([d.inbox.request(d.memory, offset=8)]),
        r"requests\[0\].*inbox|requests\[0\].*region",
    ),
    (lambda d: d.inbox.request(d.memory, offset=-8), "offset must be 0 to"),
    (lambda d: d.inbox.request(b"bytes"), "local must be a Memory or a Region, not b'bytes'"),
    (lambda d: d.peer.write([d.inbox.request(d.memory)], deadline="2"), "deadline must be seconds.*'2'"),
    (lambda d: d.peer.write([d.inbox.request(d.memory)], notify="text"), "notify must be bytes, not 'text'"),
    (lambda d: d.peer.notify("text"), "notify must be bytes, not 'text'"),
    (
        lambda d: d.peer.write([d.inbox.request(d.memory)], transports=["smoke"]),
        "transports: one of .*TCP.*smoke",
    ),
    (lambda d: d.peer.write([d.inbox.request(d.memory)], transports=1), "transports must be a list"),
    (lambda d: d.peer.write([d.inbox.request(d.memory)], prioritty=1), "prioritty.*priority"),
    (lambda d: d.peer.submit_write([d.inbox.request(d.memory)], queue=7), "queue must be a Queue, not 7"),
    (
        lambda d: d.peer.submit_write([d.inbox.request(d.memory)], start_after=7),
        "start_after must be an event",
    ),
    (lambda d: d.peer.submit_write_blocks([d.inbox.request(d.memory)]), "blocks must be .*Blocks"),
    (
        lambda d: d.engine.wait_all(d.peer.submit_write([d.inbox.request(d.memory)])),
        "transfers must be a list",
    ),
    # KV caches.
    (lambda d: kv.Id.parse("abc"), "32 hexadecimal digits"),
    (lambda d: kv.Id.parse(d.id), "text must be a str"),  # type: ignore[arg-type]
    (lambda d: d.cache.offer(str(d.id), [1]), "id must be 16 bytes.*Id.parse"),
    (lambda d: d.cache.offer(d.id, 1), "blocks must be block ids, not 1"),
    (lambda d: d.cache.offer(d.id, [1, 1]), "twice"),
    (lambda d: d.cache.offer(d.id, [9]), "9"),
    (lambda d: d.cache.take(d.id, d.peer, [1], 16), "producers must be a list of peers"),
    (lambda d: d.cache.take(d.id, [d.peer], [1], 16, mode="pool"), "mode: one of AUTO, PULL, PUSH.*'pool'"),
    (lambda d: d.cache.take(d.id, [d.peer], [1], 160), "block"),
    (lambda d: d.cache.ready(d.id, 16), "id"),
    (lambda d: d.cache.ended_failed("LOST"), "status: one of OK, .*not 'LOST'"),
    (lambda d: kv.Cache(d.engine, d.layout, b""), "memory"),  # type: ignore[arg-type]
    (lambda d: kv.Cache(d.engine, "layout", d.memory), "layout must be a Layout"),  # type: ignore[arg-type]
    (lambda d: layout(groups=[kv.Group(16, "whole")]), r"groups\[0\].kind: one of FULL, WINDOW.*'whole'"),
    (lambda d: layout(groups=[kv.Group(0)]), "block_tokens"),
    (lambda d: layout(groups=kv.Group(16)), "groups must be a list"),
    (lambda d: layout(tp=2), r"tp must be \(rank, size\), not 2"),
    (lambda d: layout(layer={"arrangement": None}), r"layers\[0\]: arrangement is missing.*Layer.of"),
    (lambda d: layout(layer={"arrangement": "NHD"}), r"layers\[0\]: arrangement: one of PAIR_BLOCK.*'NHD'"),
    (lambda d: layout(layer={"element_bytes": 0}), "element_bytes"),
    (lambda d: layout(layers=[kv.Layer.of(Cuda(), "l", "block token")]), "tensor"),
    (lambda d: kv.Layer.of([1, 2], "l"), "tensor must be a tensor of torch.*not list"),
]


@pytest.mark.parametrize("at", range(len(MISTAKES)), ids=lambda at: f"{at}")
def test_a_mistake_is_answered_by_a_sentence(desk: Desk, at: int) -> None:
    mistake, words = MISTAKES[at]
    with pytest.raises((ferry.Error, TypeError)) as caught:
        mistake(desk)
    assert re.search(words, str(caught.value)), caught.value
    assert isinstance(caught.value, ferry.CallerError) or "prioritty" in words


def test_a_missing_region_is_a_key_error(pair: Pair) -> None:
    with pytest.raises(KeyError) as caught:
        pair.peer.region("absent")
    assert isinstance(caught.value, ferry.NotRegisteredError)


def test_every_status_has_its_class() -> None:
    for status in ferry.Status:
        if status not in (ferry.Status.OK, ferry.Status.DRAINING):
            words = [word.capitalize() for word in status.name.split("_")]
            raised = getattr(ferry, "".join(words) + "Error")(status, "why")
            assert isinstance(raised, ferry.Error) and str(raised) == f"{status.name}: why"


def test_names_of_enums_are_taken(pair: Pair) -> None:
    with pair.target.alloc(64, access="remote_read", name="shown"):
        pair.peer.probe(10)
        assert pair.peer.region("shown").access is ferry.Access.REMOTE_READ
    for transports in (["TCP"], "tcp", "local,tcp", [ferry.Transport.TCP]):
        pair.peer.write([pair.request(64)], transports=transports)
