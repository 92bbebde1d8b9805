"""One rank's engine and cache: offers and takes what the scheduler's `Step` says, and tells how it ended.

A request's blocks are vLLM's again when its id is in `results`: never before the terminal event of its offer or
take, and exactly once. Only connecting takes time, so threads do that, and the step goes on.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ferry
import torch
from ferry import kv
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.logger import init_logger

from .layout import describe
from .messages import Offer, Rank, Step, Take
from .stats import Stats

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from .options import Options

logger = init_logger("vllm.ferry")
DIALS_MAX = 16
# How long a retraction may wait for those who read the blocks, before the offer is ended.
RETRACT_S = 0.2
CLOSE_S = 5.0


@dataclass
class Sent:
    """An offer. `has_ended`: nothing touches its blocks; `is_finished`: vLLM waits for that."""

    id: bytes
    has_ended: bool = False
    is_finished: bool = False


@dataclass
class Taken:
    """A take. Its lock orders the call of ferry and a cancellation."""

    take: Take
    lock: threading.Lock
    since: float
    has_begun: bool = False
    # Whether `results` still has to name the request.
    is_owed: bool = True


class Worker:
    def __init__(self, config: VllmConfig, caches: KVCacheConfig, options: Options) -> None:
        self.config, self.caches, self.options = config, caches, options
        self.mode = kv.Mode[options.mode.upper()]
        self.engine: ferry.Engine | None = None
        self.cache: kv.Cache | None = None
        # By request, and the requests by id.
        self.sent: dict[str, Sent] = {}
        self.offers: dict[bytes, str] = {}
        self.taken: dict[str, Taken] = {}
        self.takes: dict[bytes, Taken] = {}
        # Offers of this step, and the tokens that each layer has when it is computed.
        self.computing: list[tuple[bytes, int]] = []
        self.peers: dict[bytes, ferry.Peer] = {}
        self.dials = ThreadPoolExecutor(DIALS_MAX, thread_name_prefix="ferry-dial")
        self.failures: queue.SimpleQueue[tuple[Taken, Exception]] = queue.SimpleQueue()
        self.done = KVConnectorTransferResults()
        self.lost: set[int] = set()
        self.counts = Stats()

    def open(self, tensors: dict[str, torch.Tensor]) -> None:
        """Opens the engine and the cache on vLLM's tensors, which are views of few storages."""
        self.rank = get_tensor_model_parallel_rank()
        found = describe(self.config, self.caches, tensors, self.rank, self.options.model)
        self.split, self.places = found.split, found.places
        self.engine = ferry.Engine(**self.options.engine(self.rank))
        storages = {tensors[name].untyped_storage().data_ptr(): tensors[name] for name in self.places}
        regions = [self.engine.register(_bytes_of(tensor)) for tensor in storages.values()]
        self.cache = kv.Cache(self.engine, found.layout, regions, silence_ms=self.options.silence_ms)
        logger.info("FerryConnector: rank %d is at %s", self.rank, self.engine.address)

    def address(self) -> Rank | None:
        return Rank(self.rank, self.engine.descriptor) if self.engine is not None else None

    def close(self) -> None:
        self.dials.shutdown(wait=False, cancel_futures=True)
        if self.cache is not None:
            with contextlib.suppress(ferry.Error):
                self.cache.close(CLOSE_S)
                self.engine.close(CLOSE_S)

    # Offers.

    def retract(self, step: Step) -> None:
        """Returns when nothing reads the blocks of requests that were preempted: vLLM overwrites them now."""
        for name in step.retracted:
            sent = self.sent.get(name)
            if sent is None or sent.has_ended:
                continue
            try:
                self.cache.retract(sent.id, 0, RETRACT_S)
                continue
            except AttributeError:  # A library that cannot take back: the consumer computes.
                pass
            except ferry.Error as error:
                logger.warning("offer of %s: %s", name, error)
            self._abort(sent)
            while not sent.has_ended:
                self._event(self.cache.wait(1.0))

    def begin(self, step: Step) -> None:
        """Offers what this step adds, before the model runs."""
        self.computing = []
        for offer in step.offers:
            sent = self.sent.setdefault(offer.request, Sent(offer.id))
            try:
                if not sent.has_ended:
                    self._offer(offer)
            except ferry.Error as error:
                logger.warning("offer of %s: %s", offer.request, error)
                # What was never offered has no event.
                sent.has_ended = sent.id not in self.offers
                self._abort(sent)
        for name in step.aborted:
            self._abort(self.sent[name])
        for name in step.finished:
            self.sent[name].is_finished = True
            self._settle(name)

    def _offer(self, offer: Offer) -> None:
        blocks = self._blocks(offer.blocks)
        if offer.is_new:
            self.cache.offer(offer.id, blocks, lease=self.options.lease_s)
            self.offers[offer.id] = offer.request
        elif any(len(group.ids) for group in blocks):
            self.cache.extend(offer.id, blocks)
        if offer.cached:
            self.cache.ready(offer.id, offer.cached)
        if offer.sealed:
            self.cache.seal(offer.id, offer.sealed)
        if offer.tokens > offer.cached:
            self.computing.append((offer.id, offer.tokens))

    def _blocks(self, groups: list[tuple[int, list[int]]]) -> list[kv.Blocks]:
        """Blocks as the layout counts them."""
        lists = []
        for (first, ids), split in zip(groups, self.split, strict=True):
            lists.append(kv.Blocks([id * split + piece for id in ids for piece in range(split)], first))
        return lists

    def computed(self, layer: str) -> None:
        """A layer of this step is computed: its tokens may move."""
        if not self.computing:
            return
        place = self.places.get(layer)
        if place is None:
            return
        for id, tokens in self.computing:
            # An offer may end at any time; its event says why.
            with contextlib.suppress(ferry.StaleError):
                self.cache.ready(id, tokens, place)

    def _abort(self, sent: Sent) -> None:
        with contextlib.suppress(ferry.StaleError, ferry.InvalidError):
            self.cache.abort(sent.id)

    def _settle(self, name: str) -> None:
        """Tells vLLM of a request whose offer has ended, if it waits for that."""
        sent = self.sent[name]
        if sent.has_ended and sent.is_finished:
            del self.sent[name]
            self.done.finished_sending.add(name)

    # Takes.

    def load(self, step: Step) -> None:
        for take in step.takes:
            taken = Taken(take, threading.Lock(), time.monotonic(), is_owed=take.is_awaited)
            self.takes[take.id] = taken
            if take.is_awaited:
                self.taken[take.request] = taken
            if not self._begin_at_once(taken):
                self.dials.submit(self._dial, taken)
        for name in step.cancelled:
            taken = self.taken.get(name)
            if taken is not None:
                self._cancel(taken)

    def _begin_at_once(self, taken: Taken) -> bool:
        """Takes from peers that are connected already."""
        peers = [self.peers.get(producer) for producer in taken.take.producers]
        if None in peers:
            return False
        try:
            self._begin(taken, peers)
        except (ferry.PeerError, ferry.StaleError):
            return False
        except ferry.Error as error:
            self.failures.put((taken, error))
        return True

    def _dial(self, taken: Taken) -> None:
        try:
            peers = []
            for producer in taken.take.producers:
                peers.append(self.engine.connect_descriptor(producer, self.options.connect_s))
                self.peers[producer] = peers[-1]
            self._begin(taken, peers)
        except Exception as error:
            for producer in taken.take.producers:
                self.peers.pop(producer, None)
            self.failures.put((taken, error))

    def _begin(self, taken: Taken, peers: list[ferry.Peer]) -> None:
        take = taken.take
        with taken.lock:
            # After a cancellation no byte may come; the producer learns that nothing is needed.
            is_needed = taken.is_owed
            blocks = self._blocks(take.blocks) if is_needed else [kv.Blocks([])] * len(self.split)
            self.cache.take(
                take.id,
                peers,
                blocks,
                take.tokens,
                taker=take.taker,
                skip_tokens=take.skip,
                mode=self.mode,
                deadline=self.options.take_s,
            )
            taken.has_begun = True

    def _cancel(self, taken: Taken) -> None:
        with taken.lock:
            if taken.has_begun:
                with contextlib.suppress(ferry.StaleError, ferry.InvalidError):
                    self.cache.cancel(taken.take.id)
                return
            self._report(taken)

    def _report(self, taken: Taken) -> None:
        """Tells vLLM once that nothing writes a request's blocks any more."""
        if taken.is_owed:
            taken.is_owed = False
            del self.taken[taken.take.request]
            self.done.finished_recving.add(taken.take.request)

    def _fail(self, taken: Taken, valid: int, untrusted: set[int]) -> None:
        """Names the blocks of a take that vLLM has to compute. With several groups a number does not name a block."""
        take = taken.take
        if len(self.split) > 1:
            self.done.failed_recving.add(take.request)
            return
        ((first, ids),) = take.blocks
        size = self.caches.transfer_groups[0].kv_cache_spec.block_size
        whole = max(valid - first, 0) // size if valid < take.tokens else len(ids)
        self.lost.update(ids[whole:], untrusted.intersection(ids))

    # Ends.

    def _event(self, event: kv.Event | None) -> None:
        if event is None or not event.terminal:
            return
        name = self.offers.pop(event.id, None)
        if name is not None:
            self.counts.ended("offer", event.kind)
            self.sent[name].has_ended = True
            self._settle(name)
            return
        taken = self.takes.pop(event.id)
        if event.kind == kv.RECEIVED:
            tokens = taken.take.tokens - taken.take.skip
            self.counts.ended("take", event.kind, tokens, time.monotonic() - taken.since)
        else:
            self.counts.ended("take", event.kind)
            logger.warning("take of %s: %s: %s", taken.take.request, event.kind.name, event.message)
        if taken.is_owed and event.kind != kv.RECEIVED:
            self._fail(taken, event.valid_tokens, {block // self.split[group] for group, block in event.untrusted})
        self._report(taken)

    def results(self) -> KVConnectorTransferResults:
        """What has ended since the last call; a request that has failed is in it with its lost blocks."""
        while (event := self.cache.poll()) is not None:
            self._event(event)
        while not self.failures.empty():
            taken, error = self.failures.get()
            self.takes.pop(taken.take.id, None)
            self.counts.ended("take", kv.FAILED)
            logger.warning("take of %s: %s", taken.take.request, error)
            if taken.is_owed:
                self._fail(taken, 0, set())
                self._report(taken)
        done, self.done = self.done, KVConnectorTransferResults()
        return done

    def lost_blocks(self) -> set[int]:
        lost, self.lost = self.lost, set()
        return lost

    def stats(self) -> Stats | None:
        if self.counts.is_empty():
            return None
        counts, self.counts = self.counts, Stats()
        return counts


def _bytes_of(tensor: torch.Tensor) -> object:
    """All bytes of a tensor's storage."""
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    return flat.numpy() if tensor.device.type == "cpu" else flat
