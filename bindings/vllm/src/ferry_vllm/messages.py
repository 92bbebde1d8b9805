"""What the scheduler tells the workers at each step, and what each worker tells the scheduler once."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata, KVConnectorMetadata

# For each group, the position of the first block's first token, and the blocks' numbers.
Lists = list[tuple[int, list[int]]]


@dataclass
class Offer:
    """What this step adds to a request's offer."""

    request: str
    id: bytes
    blocks: Lists
    is_new: bool
    # Tokens that were in the blocks before this step, in all layers.
    cached: int
    # Tokens that are in the blocks after this step; each layer is told when it is computed.
    tokens: int
    # Tokens of the whole prompt, if this step completes it; 0 otherwise.
    sealed: int
    # In the worker: the number of layers that ferry knows to have these tokens.
    told: int = 0


@dataclass
class Take:
    """Blocks of a request that are to get the tokens of an offer."""

    request: str
    id: bytes
    # Descriptors of the producer's engines, by rank.
    producers: list[bytes]
    # A number that all ranks of this consumer have.
    taker: int
    # All empty for a request that needs nothing: the producer can free its blocks.
    blocks: Lists
    skip: int
    tokens: int
    # Whether vLLM waits for the request, and has not been told of its end.
    is_owed: bool


@dataclass
class Step(KVConnectorMetadata):
    """What the workers do in one step, in this order."""

    # Offered requests that have lost their blocks.
    retracted: list[str] = field(default_factory=list)
    offers: list[Offer] = field(default_factory=list)
    # Offered requests that end without a whole prompt.
    aborted: list[str] = field(default_factory=list)
    takes: list[Take] = field(default_factory=list)


@dataclass
class Rank(KVConnectorHandshakeMetadata):
    """Where one worker's engine is found."""

    descriptor: bytes
