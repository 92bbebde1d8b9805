"""How the keys of a call ended, and what is known of nodes."""

from __future__ import annotations

from struct import iter_unpack
from typing import NamedTuple

from .._numbers import Number, number


class Outcome(Number):
    """How one key of a call ended. docs/pool.md says what to do about each."""

    OK = 0
    """Get: the value is in the memory. Put: it is stored. Exists: it exists. Remove: it is removed.
    Prefetch: it was brought into this node's memory."""
    HERE = 1
    """Put: the value was stored already, and no byte was moved. Prefetch: it was in this node's memory."""
    ABSENT = 2
    """No node has the value."""
    UNKNOWN = 3
    """The value was not found, and a node may still have it: nodes are missing, or the index is being
    rebuilt."""
    EVICTED = 4
    """Get: the index named an owner, which has evicted the value since."""
    OWNER_LOST = 5
    """Each owner of the value is lost or silent."""
    CORRUPT = 6
    """Get: the bytes of each owner did not match their checksum. The owners drop them."""
    FULL = 7
    """Put: no node has room, even after eviction. Prefetch: this node has none."""
    TOO_LONG = 8
    """Put: the value is longer than the memory of any node. Prefetch: it is longer than this node can
    bring."""
    LENGTH = 9
    """Get: the memory has another length than the value, whose length is in `bytes`."""
    FAILED = 10
    """The memory was unregistered meanwhile, or cannot be read or written."""
    CLOSED = 11
    """The pool or its engine was closed."""

    @property
    def ok(self) -> bool:
        """Whether the call did what it was to do for the key: OK or HERE."""
        return self <= Outcome.HERE


class Result(NamedTuple):
    """How one key of a call ended."""

    outcome: Outcome
    bytes: int
    """The length of the value where it is known, else 0."""
    node: int
    """The node that served, stored or has it: the `id` of a `Node`. 0: no node did, or several."""

    @property
    def ok(self) -> bool:
        """Whether the call did what it was to do for the key."""
        return self.outcome.ok


class Cost(NamedTuple):
    """The cost of a get of a prefix."""

    keys: int
    """Leading keys that exist."""
    bytes: int
    """Bytes of their values."""
    get: float | None
    """How many seconds a get of these takes. None: no get has been measured that this follows from."""
    load_keys: int
    """Leading keys to load: the caller computes from there on. All that exist if `best` is None."""
    best: float | None
    """How many seconds the get of these and the computing of all other keys take together. None as for `get`,
    or without a prefill rate."""


class Drained(NamedTuple):
    """The values of a node that was taken out."""

    moved: int
    """Values that drains have moved to other nodes since the node was opened."""
    here: int
    """Values that another node had already."""
    left: int
    """Values that no other node took: they stay in this node until it is closed. If there are 1,024 or more,
    the drain ended early."""


class Node(NamedTuple):
    """A node of the cluster, as another one knows it."""

    name: str
    """Empty before the node has greeted."""
    address: str
    id: int
    """What `Result.node` says of it; 0 before it has greeted."""
    member: bool
    """True if it lends memory, False if it is a client or has not greeted."""
    capacity: int
    """Bytes that it lends."""
    free: int
    """Bytes of these that hold no value, as it said last."""
    why: str
    """Why it is not connected, or cannot be a node of this cluster; empty if it is one."""


def results_of(found: bytes) -> list[Result]:
    """Returns the results in an array of ferry_pool_result. Keys that ended alike share one."""
    rows = list(iter_unpack("<IIQQ", found))
    made = {row: Result(number(Outcome, row[0]), row[2], row[3]) for row in set(rows)}
    return [made[row] for row in rows]
