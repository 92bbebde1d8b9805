"""The timeline of a cache: its recording, the program's own marks in it, and its picture."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import addressof, c_size_t, sizeof
from typing import NamedTuple

from .._abi import library
from .._errors import Status, call, text, unsigned
from .._numbers import number
from ._abi import MARK_COMPUTE, CEntry
from ._handle import Handle
from ._numbers import EntryKind, EventKind, id_of

# Entries that one call reads.
_PAGE = 4096


class Entry(NamedTuple):
    """One step of a handoff, or one of the program's marks; see ferry_kv_timeline_entry in ferry_kv.h. Fields
    that the kind doesn't set are 0. An entry may be pickled, and drawn in another process of the host."""

    kind: EntryKind
    number: int
    """Rises by one with each entry of a recording, from 0 on."""
    begin_ns: int
    """A time of `time.monotonic_ns`."""
    end_ns: int
    """The same as `begin_ns` for a step that takes no time."""
    id: int
    """The first four bytes of the handoff's id, as messages show them: `int.from_bytes(id[:4], "big")`."""
    detail: int
    """`status`, or the kind of a mark."""
    first_layer: int
    """For transfers, in the consumer's layout."""
    end_layer: int
    """The layer after the last one."""
    first_token: int
    end_token: int
    """The token after the last one."""
    bytes: int
    """Payload of a transfer."""
    peer: int
    """The other side of a transfer, the `handle` of a `ferry.Peer`."""
    transfer: int
    """The number of a transfer."""

    @property
    def status(self) -> Status | None:
        """The status of FINAL and ENDED; None otherwise."""
        is_end = self.kind in (EntryKind.FINAL, EntryKind.ENDED)
        return number(Status, self.detail) if is_end else None

    @property
    def event(self) -> EventKind | None:
        """The kind of the terminal event for ENDED; None otherwise."""
        return number(EventKind, self.first_layer) if self.kind == EntryKind.ENDED else None


class Timeline:
    """What happens to the handoffs of a cache, and when: `cache.timeline`. Nothing is recorded before
    `start`. Any thread may use it."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle

    def start(self, entries_max: int = 65_536) -> None:
        """Records from now on, and forgets what was recorded before. The newest `entries_max` entries are
        kept, at most 1,048,576; `Cache.stats` counts the others as `timeline_overwritten`."""
        wanted = unsigned(entries_max, "entries_max", 64)
        call(library.ferry_kv_timeline_start, self._handle.pointer, wanted)

    def stop(self) -> None:
        """Ends the recording, and forgets it. Does nothing while there is none."""
        call(library.ferry_kv_timeline_stop, self._handle.pointer)

    def mark(self, id: bytes, layer: int, begin_ns: int, end_ns: int, kind: int = MARK_COMPUTE) -> None:
        """Adds the program's own work on a layer, with times of `time.monotonic_ns`. `kind` is `kv.COMPUTE`,
        or a number of the program's own. Adds nothing while no recording is on. The id need not be that of
        an offer or a take."""
        numbers = unsigned(kind, "kind"), unsigned(layer, "layer")
        times = unsigned(begin_ns, "begin_ns", 64), unsigned(end_ns, "end_ns", 64)
        call(library.ferry_kv_timeline_mark, self._handle.pointer, id_of(id), *numbers, *times)

    def read(self, first: int = 0) -> list[Entry]:
        """Returns the entries from the number `first` on, the oldest first. A closed cache answers too. The
        entries stay recorded: read on from the last one's number + 1. If the first entry has a higher number
        than `first`, those before it were overwritten."""
        page, count = (CEntry * _PAGE)(), c_size_t(_PAGE)
        found: list[Entry] = []
        first = unsigned(first, "first", 64)
        while count.value == _PAGE:
            place = addressof(page), sizeof(CEntry), _PAGE
            call(library.ferry_kv_timeline_read, self._handle.pointer, first, *place, addressof(count))
            found += map(_entry, page[: count.value])
            first = found[-1].number + 1 if found else first
        return found


def timeline_svg(entries: Iterable[Entry]) -> str:
    """Draws entries as a picture, SVG: a lane for each layer, with compute above and transfers below, and
    lines where handoffs begin and end. They may be of several caches of one host, in any order, and some may
    be left out. Needs no cache."""
    rows = [_row(entry, at) for at, entry in enumerate(entries)]
    array = (CEntry * len(rows))(*rows)
    return text(library.ferry_kv_timeline_svg, addressof(array), len(rows)).decode()


# The fields of an entry, in their order.
_FIELDS = [(field[0], 8 * sizeof(field[1])) for field in CEntry._fields_[1:]]


def _entry(row: CEntry) -> Entry:
    what, *others = (getattr(row, name) for name, _ in _FIELDS)
    return Entry(number(EntryKind, what), *others)


def _row(entry: Entry, at: int) -> CEntry:
    row = CEntry(struct_size=sizeof(CEntry))
    for (name, bits), value in zip(_FIELDS, entry, strict=True):
        if name == "detail" and isinstance(value, int) and value < 0:
            value += 2**32  # A status is negative.
        setattr(row, name, unsigned(value, f"entries[{at}].{name}", bits))
    return row
