"""The scheduler's half: decides what is handed over, and tells the workers by a `Step`.

A request's `kv_transfer_params` say what is wanted of it:

    do_remote_decode    its cache is to be offered: another engine decodes it
    do_remote_prefill   its cache is to be taken from `ferry_producers`
    ferry_id            the handoff: 32 hexadecimal digits, never used before

With an id from the proxy a prompt is offered from its first chunk on, so that the consumer may take it while it is
computed. Without one it is offered when it is computed; the answer has the id.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ferry import kv
from vllm.logger import init_logger
from vllm.v1.request import Request, RequestStatus

from .messages import Lists, Offer, Rank, Step, Take

logger = init_logger("vllm.ferry")
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


class SchedulerHalf:
    def init_scheduler(self, layerwise: bool, windows: list[int]) -> None:
        # By group, how many tokens are kept; 0 for all.
        self.layerwise, self.windows = layerwise, windows
        # Descriptors of the workers' engines, by rank.
        self.producers: list[str] = []
        self.prefills: dict[str, Prefill] = {}
        # Requests that take and have not ended, by id; samples of the same prompts, which wait for these.
        self.taking: dict[bytes, str] = {}
        self.samples: set[str] = set()
        self.next = Step()

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Rank]) -> None:
        self.producers = [rank.descriptor.hex() for _, rank in sorted(metadata.items())]

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        found = incoming(request)
        if found and self.taking.get(found[0], request.request_id) != request.request_id:
            # vLLM asks again. One take serves all samples of a prompt: the others find its blocks in vLLM's cache.
            self.samples.add(request.request_id)
            return None, False
        if request.request_id in self.samples:
            self.samples.remove(request.request_id)
            request.kv_transfer_params["do_remote_prefill"], found = False, None
        count = request.num_prompt_tokens - num_computed_tokens if found else 0
        return max(count, 0), count > 0

    def update_connector_output(self, connector_output: Any) -> None:
        ended = connector_output.finished_recving or ()
        self.taking = {id: name for id, name in self.taking.items() if name not in ended}

    def update_state_after_alloc(self, request: Request, blocks: Any, num_external_tokens: int) -> None:
        if found := incoming(request):
            self._take(request, found, blocks.get_block_ids(), num_external_tokens)
        id = outgoing(request)
        if id and self.layerwise and request.request_id not in self.prefills:
            self.prefills[request.request_id] = Prefill(request, id)

    def _take(self, request: Request, found: tuple[bytes, list[bytes]], blocks: Any, external: int) -> None:
        """Takes the tokens. If the request needs none, the take lets the producer free its blocks."""
        request.kv_transfer_params["do_remote_prefill"] = False
        name, tokens, awaited = request.request_id, request.num_prompt_tokens, external > 0
        skip = tokens - external
        wanted = self._lists(blocks if awaited else [[]] * len(blocks), skip, tokens)
        if awaited:
            self.taking[found[0]] = name
        self.next.takes.append(Take(name, *found, secrets.randbits(64), wanted, skip, tokens, awaited))

    def _lists(self, blocks: Sequence[list[int]], first: int, end: int) -> Lists:
        """For each group, the blocks from the one with the first token on, without those that have left a window."""
        lists = []
        config = self._kv_cache_config
        for group, ids in zip(config.transfer_groups, config.select_transfer_block_ids(blocks), strict=True):
            size = group.kv_cache_spec.block_size
            start, ids = first // size, ids[: -(-end // size)]
            while start < len(ids) and ids[start] == 0:
                start += 1
            lists.append((start * size, ids[start:]))
        return lists

    def _has_windows(self, request: Request, blocks: Sequence[list[int]]) -> bool:
        """Whether each window still has the last tokens of the prompt. Tokens that are generated move it on."""
        end = request.num_prompt_tokens
        lists = zip(self.windows, self._lists(blocks, 0, end), strict=True)
        return all(first <= (max(end - window, 0) if window else 0) for window, (first, _) in lists)

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        for name in scheduler_output.preempted_req_ids or ():
            if (prefill := self.prefills.get(name)) and prefill.is_offered:
                self.next.retracted.append(name)
                prefill.count, prefill.is_sealed = 0, False
        for name, prefill in self.prefills.items():
            scheduled = scheduler_output.num_scheduled_tokens.get(name, 0)
            if scheduled and not prefill.is_sealed:
                blocks = scheduler_output.kv_connector_block_state.get_block_ids(name)
                self.next.offers.append(self._chunk(prefill, blocks, scheduled))
        done, self.next = self.next, Step()
        return done

    def _chunk(self, prefill: Prefill, blocks: tuple[list[int], ...], scheduled: int) -> Offer:
        prompt, before = prefill.request.num_prompt_tokens, prefill.request.num_computed_tokens
        tokens = min(before + scheduled, prompt)
        ((_, ids),) = self._lists(blocks, 0, tokens)
        cached = min(before, prompt) if prefill.count == 0 else 0
        added, is_new, name = [(0, ids[prefill.count :])], not prefill.is_offered, prefill.request.request_id
        prefill.is_offered, prefill.is_sealed, prefill.count = True, tokens == prompt, len(ids)
        return Offer(name, prefill.id, added, is_new, cached, tokens, prompt if tokens == prompt else 0)

    def request_finished_all_groups(self, request: Request, block_ids: Any) -> tuple[bool, dict[str, Any] | None]:
        """Whether the request's blocks wait for the end of an offer, and what the consumer must know of it."""
        name, id = request.request_id, outgoing(request)
        if (found := incoming(request)) and name not in self.samples:
            self._take(request, found, block_ids, 0)
        self.samples.discard(name)
        if not (request.kv_transfer_params or {}).get("do_remote_decode"):
            return False, None
        whole = request.status in WHOLE and any(block_ids) and self._has_windows(request, block_ids)
        if (prefill := self.prefills.pop(name, None)) and prefill.is_offered:
            whole = whole and prefill.is_sealed
        elif whole or id:
            # A consumer may wait for the proxy's id: an offer that ends tells it.
            id, tokens = id or kv.new_id(), request.num_prompt_tokens if whole else 0
            lists = self._lists(block_ids, 0, tokens)
            self.next.offers.append(Offer(name, id, lists, True, tokens, tokens, tokens))
        else:
            return False, None
        if not whole:
            self.next.aborted.append(name)
        wanted = {"do_remote_prefill": True, "do_remote_decode": False}
        return True, {**wanted, "ferry_id": id.hex(), "ferry_producers": self.producers}


def outgoing(request: Request) -> bytes | None:
    """The proxy's id for a request that is to be offered."""
    params = request.kv_transfer_params or {}
    return handoff(request)[0] if params.get("do_remote_decode") and params.get("ferry_id") else None


def incoming(request: Request) -> tuple[bytes, list[bytes]] | None:
    """The id and the producers of a request that is to be taken, and has not been."""
    found = handoff(request) if (request.kv_transfer_params or {}).get("do_remote_prefill") else ()
    return found if all(found) and found else None


def handoff(request: Request) -> tuple[bytes, list[bytes]]:
    """What a request says of its handoff; nothing, with a line in the log, if that makes no sense."""
    params = request.kv_transfer_params
    try:
        id, producers = bytes.fromhex(params["ferry_id"]), map(bytes.fromhex, params.get("ferry_producers", []))
        if len(id) != 16:
            raise ValueError(f"ferry_id has {len(id)} bytes")
        return id, list(producers)
    except (KeyError, TypeError, ValueError) as error:
        logger.warning("request %s is computed here, for its kv_transfer_params: %r", request.request_id, error)
        return b"", []
