"""The numbers of ferry_kv.h as enums, and the check of ids."""

from __future__ import annotations

from ctypes import sizeof

from .._errors import invalid
from .._numbers import Number
from ._abi import CId


class GroupKind(Number):
    """What a group of layers keeps of a sequence."""

    FULL = 1
    """Each token's keys and values, from the first token on."""
    WINDOW = 2
    """The keys and values of the last `window_tokens` tokens."""
    LATENT = 3
    """A latent vector for each token, as in MLA; the layers have one head and pairs=1."""
    STATE = 4
    """A state of fixed size, as in Mamba."""


class Arrangement(Number):
    """The order of the dimensions of a contiguous tensor, from the outermost; the elements are innermost."""

    PAIR_BLOCK_TOKEN_HEAD = 1
    PAIR_BLOCK_HEAD_TOKEN = 2
    BLOCK_PAIR_TOKEN_HEAD = 3
    BLOCK_PAIR_HEAD_TOKEN = 4
    BLOCK_HEAD_PAIR_TOKEN = 5


class Mode(Number):
    """Who moves the bytes of a take."""

    AUTO = 0
    """Pull on the same host, else push."""
    PULL = 1
    """The consumer READs the producer's memory."""
    PUSH = 2
    """The producer WRITEs into the consumer's memory."""


class EventKind(Number):
    """What has become of an offer or a take. All kinds but LAYERS are terminal."""

    LAYERS = 1
    SENT = 2
    RECEIVED = 3
    FAILED = 4
    CANCELLED = 5
    EXPIRED = 6
    PEER_LOST = 7


class StateKind(Number):
    UNKNOWN = 0
    """No offer and no take has the id, or it ended long ago."""
    OFFERED = 1
    TAKING = 2
    ENDING = 3
    """Stopped; the blocks are not the caller's yet."""
    ENDED = 4


class EntryKind(Number):
    """What an entry of a timeline tells, and which of its fields are set."""

    OFFERED = 1
    TAKEN = 2
    READY = 3
    """The layers from `first_layer` to before `end_layer` are ready up to `end_token`."""
    GRANTED = 4
    """For a take by pull: the producer told `peer`, or `peer` told the consumer, what may be read."""
    POSTED = 5
    """The transfer of the number `transfer` was posted: all fields of transfers are set."""
    FINAL = 6
    """It is final, with `status`. It began when it was posted."""
    ARRIVED = 7
    """For a take by push: the bytes that `peer` has written are here."""
    LAYERS = 8
    """For a take: the layers before `end_layer` are complete."""
    SEALED = 9
    """The offer is whole, with `end_token` tokens."""
    ENDED = 10
    """The terminal event: its kind is `event`, its status `status`."""
    MARK = 11
    """A mark of `Timeline.mark`: the layer is `first_layer`, the mark's kind `detail`."""


def id_of(id: bytes) -> bytes:
    """Returns the id of a handoff as the library takes it."""
    if not isinstance(id, (bytes, bytearray)) or len(id) != sizeof(CId):
        raise invalid(f"id must be {sizeof(CId)} bytes, not {id!r}")
    return bytes(id)
