"""A worker's half: one rank's engine and cache, which offer and take what the scheduler's `Step` says.

A request's blocks are vLLM's again when its id is in the transfer results: never before the terminal event of its
offer or take, and exactly once. Only connecting takes time, so threads do that, and the step goes on.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ferry
import torch
from ferry import kv
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank
from vllm.logger import init_logger

from .layout import describe
from .messages import Offer, Rank, Step, Take
from .options import Options
from .stats import Stats

logger = init_logger("vllm.ferry")
DIALS_MAX = 16
# How long a retraction may wait for those who read the blocks, before the offer is ended.
RETRACT_S = 0.2
CLOSE_S = 5.0


class WorkerHalf:
    # None in the scheduler.
    cache: kv.Cache | None = None

    def init_worker(self, options: Options) -> None:
        self.options, self.mode = options, kv.Mode[options.mode.upper()]
        # Ids by request; requests by id of offers that have not ended; requests that vLLM wants to free.
        self.ids: dict[str, bytes] = {}
        self.offers: dict[bytes, str] = {}
        self.finished: set[str] = set()
        # Takes that have not ended, by id; those of which vLLM has not been told, by request.
        self.takes: dict[bytes, Take] = {}
        self.taken: dict[str, Take] = {}
        # Offers of this step, and the tokens that each layer has when it is computed.
        self.computing: list[tuple[bytes, int]] = []
        self.peers: dict[bytes, ferry.Peer] = {}
        self.dials = ThreadPoolExecutor(DIALS_MAX, thread_name_prefix="ferry-dial")
        # Orders takes that begin on a dialling thread, and their cancellation.
        self.lock = threading.Lock()
        self.failures: deque[tuple[Take, Exception]] = deque()
        self.done, self.lost, self.counts = KVConnectorTransferResults(), set(), Stats()

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Opens the engine and the cache on vLLM's tensors, which are views of few storages."""
        rank = get_tensor_model_parallel_rank()
        self.places, layout = describe(self._vllm_config, self._kv_cache_config, kv_caches, rank, self.options.model)
        self.engine = ferry.Engine(**self.options.engine(rank))
        storages = {kv_caches[name].untyped_storage().data_ptr(): kv_caches[name] for name in self.places}
        regions = [self.engine.register(bytes_of(tensor)) for tensor in storages.values()]
        self.cache = kv.Cache(self.engine, layout, regions, silence_ms=self.options.silence_ms)
        logger.info("FerryConnector: rank %d is at %s", rank, self.engine.address)

    def get_handshake_metadata(self) -> Rank:
        return Rank(self.engine.descriptor)

    def shutdown(self) -> None:
        if self.cache is not None:
            self.dials.shutdown(wait=False, cancel_futures=True)
            with contextlib.suppress(ferry.Error):
                self.engine.close(CLOSE_S)

    # Offers.

    def handle_preemptions(self, kv_connector_metadata: Step) -> None:
        """Returns when nothing reads the blocks of requests that were preempted: vLLM overwrites them now."""
        for name in filter(self._is_open, kv_connector_metadata.retracted):
            try:
                self.cache.retract(self.ids[name], 0, RETRACT_S)
            except ferry.Error as error:
                # The consumer computes what it has not got.
                logger.warning("offer of %s ends with its preemption: %s", name, error)
                quietly(self.cache.abort, self.ids[name])
                while self._is_open(name):
                    if event := self.cache.wait(1.0):
                        self._event(event)

    def bind_connector_metadata(self, connector_metadata: Step) -> None:
        """Offers what this step adds, before the model runs."""
        super().bind_connector_metadata(connector_metadata)
        self.computing = []
        for offer in connector_metadata.offers:
            self.ids[offer.request] = offer.id
            try:
                if offer.is_new or self._is_open(offer.request):
                    self._offer(offer)
            except ferry.Error as error:
                logger.warning("offer of %s: %s", offer.request, error)
                connector_metadata.aborted.append(offer.request)
        for name in filter(self._is_open, connector_metadata.aborted):
            quietly(self.cache.abort, self.ids[name])
        self.finished.update(connector_metadata.finished)

    def _is_open(self, name: str) -> bool:
        """Whether a request has an offer that has not ended. Another request may have presented the same id."""
        return self.offers.get(self.ids[name]) == name

    def _offer(self, offer: Offer) -> None:
        blocks = [kv.Blocks(ids, first) for first, ids in offer.blocks]
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

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **_: Any) -> None:
        """A layer of this step is computed: its tokens may move."""
        if self.computing and (places := self.places.get(layer_name)):
            for id, tokens in self.computing:
                quietly(self.cache.ready, id, tokens, places)

    def wait_for_save(self) -> None: ...

    # Takes.

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        step = self._get_connector_metadata()
        for take in step.takes:
            if take.is_owed:
                self.taken[take.request] = take
            if not self._begin(take):
                self.dials.submit(self._dial, take)
        for take in filter(None, map(self.taken.get, step.cancelled)):
            with self.lock:
                if self.takes.get(take.id) is take:
                    quietly(self.cache.cancel, take.id)
                else:
                    self._report(take)

    def wait_for_layer_load(self, layer_name: str) -> None: ...

    def _dial(self, take: Take) -> None:
        try:
            for producer in take.producers:
                self.peers[producer] = self.engine.connect_descriptor(producer, self.options.connect_s)
            if not self._begin(take):
                raise ConnectionError("the producer was lost while the take began")
        except Exception as error:
            self.failures.append((take, error))

    def _begin(self, take: Take) -> bool:
        """Takes, if all producers are connected and known to be."""
        peers = [self.peers.get(producer) for producer in take.producers]
        if None in peers:
            return False
        # After a cancellation no byte may come; the producer learns that nothing is needed.
        with self.lock:
            blocks = [kv.Blocks(ids if take.is_owed else [], first) for first, ids in take.blocks]
            options = {"taker": take.taker, "skip_tokens": take.skip, "deadline": self.options.take_s}
            try:
                self.cache.take(take.id, peers, blocks, take.tokens, mode=self.mode, **options)
            except (ferry.PeerError, ferry.StaleError):
                self.peers = {key: peer for key, peer in self.peers.items() if key not in take.producers}
                return False
            except ferry.Error as error:
                self.failures.append((take, error))
                return True
            self.takes[take.id] = take
        return True

    def _report(self, take: Take) -> None:
        """Tells vLLM once that nothing writes a request's blocks any more."""
        if take.is_owed:
            take.is_owed = False
            del self.taken[take.request]
            self.done.finished_recving.add(take.request)

    def _fail(self, take: Take, why: str, valid: int, untrusted: set[int]) -> None:
        """Names the blocks of a take that vLLM has to compute. With several groups a number names no block."""
        logger.warning("take of %s: %s", take.request, why)
        if take.is_owed and len(take.blocks) > 1:
            self.done.failed_recving.add(take.request)
        elif take.is_owed:
            ((first, ids),) = take.blocks
            size = self._kv_cache_config.transfer_groups[0].kv_cache_spec.block_size
            whole = len(ids) if valid >= take.tokens else max(valid - first, 0) // size
            self.lost.update(ids[whole:], untrusted.intersection(ids))

    # Ends.

    def _event(self, event: kv.Event) -> None:
        if self.offers.pop(event.id, None) is not None:
            self.counts.ended(f"offer {event.kind.name}")
            return
        with self.lock:
            take = self.takes.pop(event.id)
        self.counts.ended(f"take {event.kind.name}", max(event.valid_tokens - take.skip, 0))
        if event.kind != kv.RECEIVED:
            untrusted = {block for _, block in event.untrusted}
            self._fail(take, f"{event.kind.name}: {event.message}", event.valid_tokens, untrusted)
        self._report(take)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """What has ended since the last call; a request that has failed is in it with its lost blocks."""
        while (event := self.cache.poll()) is not None:
            self._event(event)
        while self.failures:
            take, error = self.failures.popleft()
            self.counts.ended("take FAILED")
            self._fail(take, str(error), 0, set())
            self._report(take)
        ended = {name for name in self.finished if not self._is_open(name)}
        self.finished -= ended
        for name in ended:
            del self.ids[name]
        done, self.done = self.done, KVConnectorTransferResults()
        done.finished_sending.update(ended)
        return done

    def get_block_ids_with_load_errors(self) -> set[int]:
        lost, self.lost = self.lost, set()
        return lost

    def get_kv_connector_stats(self) -> Stats | None:
        if self.cache is None or self.counts.is_empty():
            return None
        counts, self.counts = self.counts, Stats()
        return counts


def quietly(call: Callable[..., None], *arguments: Any) -> None:
    """Calls for an offer or take that may have ended meanwhile: its event says why."""
    try:
        call(*arguments)
    except ferry.CallerError as error:
        logger.log(logging.DEBUG if isinstance(error, ferry.StaleError) else logging.WARNING, "%s", error)


def bytes_of(tensor: torch.Tensor) -> object:
    """All bytes of a tensor's storage."""
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    return flat.numpy() if tensor.device.type == "cpu" else flat
