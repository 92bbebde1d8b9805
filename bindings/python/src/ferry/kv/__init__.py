"""KV caches: layouts and resharding, and handing sequences over from prefill to decode workers.

A `Layout` says what one rank holds of a paged KV cache. A `Cache` is such a cache in registered memory of an
engine: a producer offers a sequence, layer by layer as it is computed, and a consumer takes it. A `Plan` says
which bytes go where. docs/kv.md has the contracts.
"""

from __future__ import annotations

from ._abi import MARK_COMPUTE, Stats
from ._blocks import BlockList
from ._cache import Cache
from ._events import Event, State
from ._layout import Group, Layer, Layout
from ._numbers import Arrangement, EntryKind, EventKind, GroupKind, Id, Mode, StateKind, new_id
from ._plan import Move, Plan
from ._timeline import Entry, Timeline, timeline_svg

FULL = GroupKind.FULL
WINDOW = GroupKind.WINDOW
LATENT = GroupKind.LATENT
STATE = GroupKind.STATE

PAIR_BLOCK_TOKEN_HEAD = Arrangement.PAIR_BLOCK_TOKEN_HEAD
PAIR_BLOCK_HEAD_TOKEN = Arrangement.PAIR_BLOCK_HEAD_TOKEN
BLOCK_PAIR_TOKEN_HEAD = Arrangement.BLOCK_PAIR_TOKEN_HEAD
BLOCK_PAIR_HEAD_TOKEN = Arrangement.BLOCK_PAIR_HEAD_TOKEN
BLOCK_HEAD_PAIR_TOKEN = Arrangement.BLOCK_HEAD_PAIR_TOKEN

AUTO = Mode.AUTO
PULL = Mode.PULL
PUSH = Mode.PUSH

LAYERS = EventKind.LAYERS
SENT = EventKind.SENT
RECEIVED = EventKind.RECEIVED
FAILED = EventKind.FAILED
CANCELLED = EventKind.CANCELLED
EXPIRED = EventKind.EXPIRED
PEER_LOST = EventKind.PEER_LOST

# The default kind of Timeline.mark.
COMPUTE = MARK_COMPUTE

__all__ = [
    "AUTO",
    "Arrangement",
    "BLOCK_HEAD_PAIR_TOKEN",
    "BLOCK_PAIR_HEAD_TOKEN",
    "BLOCK_PAIR_TOKEN_HEAD",
    "BlockList",
    "CANCELLED",
    "COMPUTE",
    "Cache",
    "EXPIRED",
    "Entry",
    "EntryKind",
    "Event",
    "EventKind",
    "FAILED",
    "FULL",
    "Group",
    "GroupKind",
    "Id",
    "LATENT",
    "LAYERS",
    "Layer",
    "Layout",
    "Mode",
    "Move",
    "PAIR_BLOCK_HEAD_TOKEN",
    "PAIR_BLOCK_TOKEN_HEAD",
    "PEER_LOST",
    "PULL",
    "PUSH",
    "Plan",
    "RECEIVED",
    "SENT",
    "STATE",
    "State",
    "StateKind",
    "Stats",
    "Timeline",
    "WINDOW",
    "new_id",
    "timeline_svg",
]

# As in ferry: classes print under the name by which programs know them, ferry.kv.Layout.
for _name in __all__:
    if isinstance(globals()[_name], type):
        globals()[_name].__module__ = __name__
del _name
