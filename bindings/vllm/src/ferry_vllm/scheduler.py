"""What is handed over: decides in vLLM's scheduler, and tells the workers by a `Step`.

A request's `kv_transfer_params` say what is wanted of it:

    do_remote_decode    its cache is to be offered: another engine decodes it
    do_remote_prefill   its cache is to be taken from `ferry_producers`
    ferry_id            the handoff: 32 hexadecimal digits, never used before

With an id from the proxy a prompt is offered from its first chunk on, so that the consumer may take it while it
is computed. Without one it is offered when it is computed; the answer has the id.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ferry import kv
from vllm.logger import init_logger
from vllm.v1.request import RequestStatus

from .messages import Offer, Step, Take

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request

logger = init_logger("vllm.ferry")
ID_BYTES = 16
WHOLE = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


@dataclass
class Prefill:
    """A prompt that is offered while it is computed."""

    request: Request
    id: bytes
    is_offered: bool = False
    is_sealed: bool = False
    # Blocks of the offer.
    count: int = 0


class Scheduler:
    def __init__(self, caches: KVCacheConfig, layerwise: bool) -> None:
        self.caches = caches
        self.layerwise = layerwise
        # Descriptors of the workers' engines, by rank.
        self.producers: list[str] = []
        self.prefills: dict[str, Prefill] = {}
        self.loading: set[str] = set()
        self.next = Step()

    def matched(self, request: Request, computed: int) -> tuple[int, bool]:
        """How many tokens the request's offer has beyond those that are here."""
        if _incoming(request) is None:
            return 0, False
        count = request.num_prompt_tokens - computed
        return max(count, 0), count > 0

    def allocated(self, request: Request, blocks: tuple[list[int], ...], external: int) -> None:
        handoff = _incoming(request)
        if handoff is not None:
            self._take(request, handoff, blocks, external)
        id = _outgoing(request)
        if id and self.layerwise and request.request_id not in self.prefills:
            self.prefills[request.request_id] = Prefill(request, id)

    def _take(self, request: Request, handoff: tuple[bytes, list[bytes]], blocks: Any, external: int) -> None:
        """Tells the workers to take; of a request that needs nothing, to let the producer free its blocks."""
        request.kv_transfer_params["do_remote_prefill"] = False
        tokens = request.num_prompt_tokens
        skip = tokens - external
        if external > 0:
            self.loading.add(request.request_id)
        wanted = self._blocks(blocks, skip, tokens) if external > 0 else [(0, [])] * len(blocks)
        self.next.takes.append(
            Take(request.request_id, *handoff, secrets.randbits(64), wanted, skip, tokens, external > 0)
        )

    def _blocks(self, blocks: Iterable[list[int]], first: int, end: int) -> list[tuple[int, list[int]]]:
        """Of each group, the blocks from the one with the first token on; those that have left a window are null."""
        lists = []
        groups = self.caches.transfer_groups
        for group, ids in zip(groups, self.caches.select_transfer_block_ids(blocks), strict=True):
            size = group.kv_cache_spec.block_size
            start = first // size
            ids = ids[: -(-end // size)]
            while start < len(ids) and ids[start] == 0:
                start += 1
            lists.append((start * size, ids[start:]))
        return lists

    def step(self, output: SchedulerOutput) -> Step:
        """What the workers do in this step."""
        for name in output.preempted_req_ids or ():
            prefill = self.prefills.get(name)
            if prefill is not None and prefill.is_offered:
                self.next.retracted.append(name)
                prefill.count, prefill.is_sealed = 0, False
        for name, prefill in self.prefills.items():
            scheduled = output.num_scheduled_tokens.get(name, 0)
            if scheduled and not prefill.is_sealed:
                blocks = output.kv_connector_block_state.get_block_ids(name)
                self.next.offers.append(self._chunk(prefill, blocks, scheduled))
        done, self.next = self.next, Step()
        return done

    def _chunk(self, prefill: Prefill, blocks: tuple[list[int], ...], scheduled: int) -> Offer:
        prompt = prefill.request.num_prompt_tokens
        before = prefill.request.num_computed_tokens
        tokens = min(before + scheduled, prompt)
        ((_, ids),) = self._blocks(blocks, 0, tokens)
        offer = Offer(
            request=prefill.request.request_id,
            id=prefill.id,
            blocks=[(0, ids[prefill.count :])],
            is_new=not prefill.is_offered,
            cached=min(before, prompt) if prefill.count == 0 else 0,
            tokens=tokens,
            sealed=prompt if tokens == prompt else 0,
        )
        prefill.is_offered, prefill.is_sealed, prefill.count = True, tokens == prompt, len(ids)
        return offer

    def loaded(self, requests: Iterable[str]) -> None:
        self.loading.difference_update(requests)

    def finished(self, request: Request, blocks: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        """Whether the request's blocks wait for the end of an offer, and what the consumer must know of it."""
        name = request.request_id
        if name in self.loading:
            self.next.cancelled.append(name)
        handoff = _incoming(request)
        if handoff is not None:
            self._take(request, handoff, blocks, 0)
        params = request.kv_transfer_params or {}
        if not params.get("do_remote_decode"):
            return False, None
        whole = request.status in WHOLE
        prefill = self.prefills.pop(name, None)
        if prefill is not None and prefill.is_offered:
            id = prefill.id
            if not whole or not prefill.is_sealed:
                self.next.aborted.append(name)
        elif whole and any(blocks):
            id = _outgoing(request) or kv.new_id()
            tokens = request.num_prompt_tokens
            lists = self._blocks(blocks, 0, tokens)
            self.next.offers.append(Offer(name, id, lists, True, tokens, tokens, tokens))
        elif id := _outgoing(request):
            # Somebody may wait for the proxy's id: an offer that ends tells so.
            self.next.offers.append(Offer(name, id, [(0, [])] * len(blocks), True, 0, 0, 0))
            self.next.aborted.append(name)
        else:
            return False, None
        self.next.finished.append(name)
        return True, {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "ferry_id": id.hex(),
            "ferry_producers": self.producers,
        }


def _outgoing(request: Request) -> bytes | None:
    """The proxy's id for a request that is to be offered."""
    params = request.kv_transfer_params or {}
    if not params.get("do_remote_decode") or not params.get("ferry_id"):
        return None
    return _read(request, "ferry_id", lambda text: _id(text))


def _incoming(request: Request) -> tuple[bytes, list[bytes]] | None:
    """The id and the producers of a request that is to be taken, and has not been."""
    params = request.kv_transfer_params or {}
    if not params.get("do_remote_prefill"):
        return None
    id = _read(request, "ferry_id", _id)
    producers = _read(request, "ferry_producers", lambda rows: [bytes.fromhex(row) for row in rows])
    return (id, producers) if id and producers else None


def _id(text: str) -> bytes:
    id = bytes.fromhex(text)
    if len(id) != ID_BYTES:
        raise ValueError(f"it has {len(id)} bytes instead of {ID_BYTES}")
    return id


def _read(request: Request, key: str, read: Any) -> Any:
    """A parameter of a request; None, with a line in the log, if it is not there or makes no sense."""
    try:
        return read(request.kv_transfer_params[key])
    except (KeyError, TypeError, ValueError) as error:
        logger.warning("request %s is computed here: kv_transfer_params.%s: %s", request.request_id, key, error)
        return None
