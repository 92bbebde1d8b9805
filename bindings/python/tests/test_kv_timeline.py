"""The timeline of a cache: the entries of handoffs, the program's marks, the bound, and the picture."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from typing import Any
from xml.etree import ElementTree

import pytest

np = pytest.importorskip("numpy")

from kv_workers import LAYERS, Rank  # noqa: E402

import ferry  # noqa: E402
from ferry import kv  # noqa: E402

SOURCE_IDS, TARGET_IDS, TOKENS = [5, 0, 3], [1, 6, 4], 40
KIND = kv.EntryKind
SVG = "{http://www.w3.org/2000/svg}"


def hand_over(producer: Rank, consumer: Rank, mode: kv.Mode) -> tuple[bytes, ferry.Peer]:
    id = kv.new_id()
    peer = consumer.engine.connect(producer.engine.address, 10)
    consumer.cache.take(id, [peer], TARGET_IDS, TOKENS, mode=mode, layers=True)
    producer.offer(id, SOURCE_IDS, TOKENS)
    assert (consumer.end(id).kind, producer.end(id).kind) == (kv.RECEIVED, kv.SENT)
    return id, peer


def of_kind(entries: list[kv.Entry], kind: kv.EntryKind) -> list[kv.Entry]:
    return [entry for entry in entries if entry.kind is kind]


@pytest.mark.parametrize("mode", [kv.PULL, kv.PUSH])
def test_a_handoff_is_recorded_on_both_sides(mode: kv.Mode) -> None:
    with Rank() as producer, Rank() as consumer:
        began = time.monotonic_ns()
        for rank in (producer, consumer):
            rank.cache.timeline.start()
        id, peer = hand_over(producer, consumer, mode)
        ours, theirs = producer.cache.timeline.read(), consumer.cache.timeline.read()
        for entries in (ours, theirs):
            assert [entry.number for entry in entries] == list(range(len(entries)))
            assert {entry.id for entry in entries} == {int.from_bytes(id[:4], "big")}
            times = [(entry.begin_ns, entry.end_ns) for entry in entries]
            assert all(began <= begin <= end <= time.monotonic_ns() for begin, end in times)
        (offered, ready, sealed, ended) = (
            of_kind(ours, kind)[0] for kind in (KIND.OFFERED, KIND.READY, KIND.SEALED, KIND.ENDED)
        )
        assert offered.number == 0 and offered.status is None and offered.event is None
        assert (ready.first_layer, ready.end_layer, ready.end_token) == (0, LAYERS, TOKENS)
        assert sealed.end_token == TOKENS
        assert ended is ours[-1] and (ended.event, ended.status) == (kv.SENT, ferry.Status.OK)
        assert theirs[0].kind is KIND.TAKEN and (theirs[-1].event, theirs[-1].status) == (kv.RECEIVED, 0)
        assert of_kind(theirs, KIND.LAYERS)[-1].end_layer == LAYERS
        mover = theirs if mode == kv.PULL else ours
        posted = {entry.transfer: entry for entry in of_kind(mover, KIND.POSTED)}
        final = {entry.transfer: entry for entry in of_kind(mover, KIND.FINAL)}
        assert posted and posted.keys() == final.keys()
        for number, entry in final.items():
            assert entry.status is ferry.Status.OK and entry.begin_ns == posted[number].begin_ns
            assert entry.first_layer < entry.end_layer <= LAYERS
            assert 0 <= entry.first_token < entry.end_token <= TOKENS
        received = consumer.cache.stats().bytes_received
        assert received and sum(entry.bytes for entry in final.values()) == received
        if mode == kv.PULL:
            assert of_kind(ours, KIND.GRANTED) and of_kind(theirs, KIND.GRANTED)
            assert {entry.peer for entry in final.values()} == {peer.handle}
        else:
            arrived = of_kind(theirs, KIND.ARRIVED)
            assert sum(entry.bytes for entry in arrived) == received
            assert {entry.peer for entry in arrived} == {peer.handle}


def test_nothing_is_recorded_unless_a_program_asks() -> None:
    with Rank() as producer, Rank() as consumer:
        timeline = producer.cache.timeline
        timeline.mark(kv.new_id(), 0, 1, 2)
        hand_over(producer, consumer, kv.AUTO)
        assert timeline.read() == []
        timeline.start()
        timeline.mark(kv.new_id(), 0, 1, 2)
        assert len(timeline.read()) == 1
        timeline.start()
        assert timeline.read() == []
        timeline.mark(kv.new_id(), 0, 1, 2)
        timeline.stop()
        timeline.stop()
        assert timeline.read() == []


def test_marks_are_read_page_by_page_and_the_newest_are_kept() -> None:
    with Rank() as rank:
        timeline, id = rank.cache.timeline, kv.new_id()
        timeline.start()
        count = 2 * 4096
        for at in range(count):
            timeline.mark(id, at, 10 * at, 10 * at + 7, kv.COMPUTE if at % 2 else 2**32 - 1)
        entries = timeline.read()
        assert [entry.number for entry in entries] == list(range(count))
        for at in (0, 4095, 4096, count - 1):
            found = entries[at]
            assert (found.kind, found.first_layer, found.detail % 2**32) == (
                KIND.MARK,
                at,
                kv.COMPUTE if at % 2 else 2**32 - 1,
            )
            assert (found.begin_ns, found.end_ns, found.id) == (
                10 * at,
                10 * at + 7,
                int.from_bytes(id[:4], "big"),
            )
            assert timeline.read(at) == entries[at:]
        assert timeline.read(count) == []
        timeline.start(entries_max=10)
        for at in range(25):
            timeline.mark(id, at, at, at)
        assert [entry.number for entry in timeline.read(3)] == list(range(15, 25))
        assert rank.cache.stats().timeline_overwritten == 15
        rank.cache.close(10)
        assert len(timeline.read()) == 10


def test_what_is_wrong_with_a_recording_is_named() -> None:
    with Rank() as rank:
        timeline, id = rank.cache.timeline, kv.new_id()
        for wrong in (0, 2**20 + 1):
            with pytest.raises(ferry.InvalidError, match=f"entries_max: {wrong} is not 1 to 1048576"):
                timeline.start(wrong)
        with pytest.raises(ferry.InvalidError, match="entries_max must be 0 to 2"):
            timeline.start(-1)
        timeline.start()
        with pytest.raises(ferry.InvalidError, match="end_ns: 4 is before begin_ns, 5"):
            timeline.mark(id, 0, 5, 4)
        for name, arguments in {
            "id must be 16 bytes": (b"7", 0, 0, 0, 1),
            "layer must be": (id, 2**32, 0, 0, 1),
            "begin_ns must be": (id, 0, -1, 0, 1),
            "end_ns must be": (id, 0, 0, 2**64, 1),
            "kind must be": (id, 0, 0, 0, 2**32),
        }.items():
            with pytest.raises(ferry.InvalidError, match=name):
                timeline.mark(*arguments)
        with pytest.raises(ferry.InvalidError, match="first must be"):
            timeline.read(2**64)
        assert timeline.read() == []


def bars(picture: str) -> Counter[tuple[str, int]]:
    """How many bars of each class there are in each lane."""
    found = ElementTree.fromstring(picture).iter(SVG + "rect")
    return Counter(
        (bar.attrib["class"], int(bar.attrib["data-layer"])) for bar in found if "class" in bar.attrib
    )


def test_the_picture_has_compute_and_transfers_of_several_caches() -> None:
    with Rank() as producer, Rank() as consumer:
        for rank in (producer, consumer):
            rank.cache.timeline.start()
        id, _ = hand_over(producer, consumer, kv.PULL)
        now = time.monotonic_ns()
        producer.cache.timeline.mark(id, 1, now, now + 1000)
        producer.cache.timeline.mark(id, 2, now, now + 1000, kind=7)
        ours, theirs = producer.cache.timeline.read(), consumer.cache.timeline.read()
    # As another process would have them.
    ours, theirs = pickle.loads(pickle.dumps((ours, theirs)))
    picture = kv.timeline_svg(ours + theirs)
    assert kv.timeline_svg(iter(ours + theirs)) == picture
    found = bars(picture)
    assert (found["compute", 1], found["mark", 2]) == (1, 1)
    assert all(found["transfer", layer] for layer in range(LAYERS))
    assert f"{id[:4].hex()}: Received, OK" in picture and f"{id[:4].hex()}: Sent, OK" in picture
    assert set(bars(kv.timeline_svg(ours))) == {("compute", 1), ("mark", 2)}
    failed = [entry._replace(detail=ferry.Status.TIMEOUT) for entry in of_kind(theirs, KIND.FINAL)]
    assert {kind for kind, _ in bars(kv.timeline_svg(failed))} == {"failed"}
    assert bars(kv.timeline_svg([])) == Counter()


def test_entries_that_are_none_are_named() -> None:
    good = kv.Entry(KIND.MARK, 0, 1, 2, 3, kv.COMPUTE, 0, 0, 0, 0, 0, 0, 0)
    assert bars(kv.timeline_svg([good])) == Counter({("compute", 0): 1})
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"number": -1}, r"entries\[1\].number must be 0 to"),
        ({"id": 2**32}, r"entries\[1\].id must be 0 to"),
        ({"bytes": "7"}, r"entries\[1\].bytes must be an integer, not '7'"),
        ({"detail": 2**32}, r"entries\[1\].detail must be 0 to"),
        ({"detail": None}, r"entries\[1\].detail must be an integer"),
        ({"kind": 99}, r"entries\[1\]"),
        ({"kind": KIND.FINAL, "detail": -99}, r"entries\[1\].detail is -99"),
    ]
    for changed, message in wrong:
        with pytest.raises(ferry.InvalidError, match=message):
            kv.timeline_svg([good, good._replace(**changed)])
