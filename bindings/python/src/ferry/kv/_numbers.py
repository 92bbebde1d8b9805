"""The numbers of ferry_kv.h as enums, and the ids of handoffs."""

from __future__ import annotations

from ctypes import addressof, sizeof
from typing import Any

from .._abi import library
from .._errors import call, encoded, invalid
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


class Id(bytes):
    """The id of a handoff: 16 bytes, which name one attempt to hand a sequence over. `str(id)` is 32 hex
    digits for the message that carries the id to another process; `Id.parse` reads them. A peer that knows
    an id may take its offer, so `repr`, which logs show, has only the first digits."""

    __slots__ = ()

    def __new__(cls, value: bytes | bytearray) -> Id:
        if not isinstance(value, (bytes, bytearray)) or len(value) != sizeof(CId):
            mend = ": Id.parse reads its 32 hex digits" if isinstance(value, str) else ""
            raise invalid(f"id must be {sizeof(CId)} bytes, not {value!r}{mend}")
        return super().__new__(cls, value)

    @classmethod
    def parse(cls, text: str) -> Id:
        """Returns the id of 32 hex digits."""
        found = CId()
        call(library.ferry_kv_id_parse, encoded(text, "text"), addressof(found))
        return cls(bytes(found.bytes))

    def __str__(self) -> str:
        return self.hex()

    def __repr__(self) -> str:
        return f"<ferry.kv.Id {self[:4].hex()}...>"


def id_of(id: Any) -> bytes:
    """Returns the id of a handoff as the library takes it."""
    return id if type(id) is Id else Id(id)


def new_id() -> Id:
    """Draws an id: 16 random bytes that name one attempt to hand a sequence over."""
    found = CId()
    call(library.ferry_kv_id_new, addressof(found))
    return Id(bytes(found.bytes))
