"""A worker's half: one rank's engine and cache, which offer and take what the scheduler's `Step` says.

A request's blocks are vLLM's again when its id is in the transfer results: never before the terminal event of its
offer or take, and exactly once. Only connecting takes time, so threads do that, and the step goes on.
"""

from __future__ import annotations

import sys
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
from vllm.platforms import current_platform

from .layout import describe
from .messages import Offer, Rank, Step, Take
from .options import Options
from .stats import TOKENS, Stats

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
        # Takes that have not ended, by id; takes whose end vLLM has not been told, by request.
        self.takes: dict[bytes, Take] = {}
        self.taken: dict[str, Take] = {}
        # Offers of tokens that this step computes.
        self.computing: list[Offer] = []
        self.peers: dict[bytes, ferry.Peer] = {}
        self.dials = ThreadPoolExecutor(DIALS_MAX, thread_name_prefix="ferry-dial")
        # Orders takes that begin on a dialling thread, and their cancellation.
        self.lock = threading.Lock()
        self.failures: deque[tuple[Take, Exception]] = deque()
        self.done, self.lost, self.counts = KVConnectorTransferResults(), set(), Stats()

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Opens the engine and the cache on vLLM's tensors, which are views of few storages."""
        rank = get_tensor_model_parallel_rank()
        self.places, layout = describe(self._vllm_config, self._kv_cache_config, kv_caches, rank, self.options)
        self.engine = ferry.Engine(**self.options.engine(self._vllm_config.parallel_config, rank))
        storages = {kv_caches[name].untyped_storage().data_ptr(): kv_caches[name] for name in self.places}
        flat = [each.new_empty(0, dtype=torch.uint8).set_(each.untyped_storage()) for each in storages.values()]
        regions = [self.engine.register(tensor) for tensor in flat]
        self.cache = kv.Cache(self.engine, layout, regions, silence_ms=self.options.silence_ms)
        logger.info("FerryConnector: rank %d is at %s", rank, self.engine.address)

    def get_handshake_metadata(self) -> Rank:
        return Rank(self.engine.descriptor)

    def shutdown(self) -> None:
        if self.cache is not None:
            self.dials.shutdown(wait=False, cancel_futures=True)
            quietly(self.engine.close, CLOSE_S)

    # Offers.

    def handle_preemptions(self, kv_connector_metadata: Step) -> None:
        """Returns when nothing reads the blocks of requests that were preempted: vLLM overwrites them now."""
        for name in filter(self._is_open, kv_connector_metadata.retracted):
            try:
                self.cache.retract(self.ids[name], 0, RETRACT_S)
            except ferry.Error as error:
                # The consumer computes what it has not got.
                logger.warning("offer of %s ends with its preemption: %s", name, error)
                quietly(self.cache.cancel_offer, self.ids[name])
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
            quietly(self.cache.cancel_offer, self.ids[name])

    def _is_open(self, name: str) -> bool:
        """Whether a request has an offer that has not ended. Another request may have presented the same id."""
        return self.offers.get(self.ids[name]) == name

    def _offer(self, offer: Offer) -> None:
        blocks = [kv.BlockList(ids, first) for first, ids in offer.blocks]
        if offer.is_new:
            self.cache.offer(offer.id, blocks, lease=self.options.lease_s)
            self.offers[offer.id] = offer.request
        elif any(len(group.ids) for group in blocks):
            self.cache.extend(offer.id, blocks)
        if offer.cached:
            # For a whole prompt vLLM has the last token, so the device is done; it may still compute a cached
            # prefix.
            ready = self._ready if offer.cached < offer.tokens else self.cache.ready
            ready(offer.id, offer.cached)
        if offer.sealed:
            self.cache.seal(offer.id, offer.sealed)
        if offer.tokens > offer.cached:
            self.computing.append(offer)

    def _ready(self, id: bytes, tokens: int, layers: tuple[int, int] | None = None) -> None:
        """Says that tokens are in their blocks, or will be when the device has done what it was given so far."""
        if current_platform.is_cuda():
            self.cache.ready_after(id, tokens, torch.cuda.current_stream(), layers)
        else:
            self.cache.ready(id, tokens, layers)

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **_: Any) -> None:
        """A layer of this step is computed, or given to the device: its tokens may move."""
        self._tell(*self.places.get(layer_name, (0, 0)))

    def wait_for_save(self) -> None:
        """Tells the layers that vLLM has not named: in a CUDA graph of the whole step it names none. vLLM also calls
        this if the step has failed; then they are not computed."""
        _, end = max(self.places.values())
        if sys.exc_info()[0] is None:
            self._tell(0, end)
        for offer in self.computing:
            if offer.sealed and offer.told < end:
                quietly(self.cache.cancel_offer, offer.id)

    def _tell(self, first: int, end: int) -> None:
        """Reports the layers before `end` as computed, if those before `first` are. A call that is refused, because
        too many wait for the device, is repeated with the others at the end of the step."""
        for offer in self.computing:
            if first <= offer.told < end and quietly(self._ready, offer.id, offer.tokens, (offer.told, end)):
                offer.told = end

    # Takes.

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        for take in self._get_connector_metadata().takes:
            if take.is_owed:
                self.taken[take.request] = take
            if not self._begin(take):
                self.dials.submit(self._dial, take)

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
            blocks = [kv.BlockList(ids if take.is_owed else [], first) for first, ids in take.blocks]
            options = {"taker": take.taker, "skip_tokens": take.skip, "deadline": self.options.take_s}
            try:
                self.cache.take(take.id, peers, blocks, take.tokens, mode=self.mode, **options)
            except (ferry.PeerError, ferry.StaleError):
                # In place: threads that dial add peers meanwhile.
                for key in take.producers:
                    self.peers.pop(key, None)
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
        """Names the blocks of a take that vLLM has to compute. With several groups a number alone names no block."""
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
            self.counts.add({f"offer {event.kind.name}": 1})
            return
        with self.lock:
            take = self.takes.pop(event.id)
        self.counts.add({f"take {event.kind.name}": 1, TOKENS: max(event.valid_tokens - take.skip, 0)})
        if event.kind != kv.RECEIVED:
            untrusted = {block for _, block in event.untrusted}
            self._fail(take, f"{event.kind.name}: {event.message}", event.valid_tokens, untrusted)
        self._report(take)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """What has ended since the last call; a request that has failed is in it with its lost blocks."""
        for take in filter(None, map(self.taken.get, finished_req_ids)):
            with self.lock:
                if self.takes.get(take.id) is take:
                    quietly(self.cache.cancel_take, take.id)
                else:
                    self._report(take)
        self.finished |= finished_req_ids & self.ids.keys()
        while (event := self.cache.poll()) is not None:
            self._event(event)
        while self.failures:
            take, error = self.failures.popleft()
            self.counts.add({"take FAILED": 1})
            self._fail(take, str(error), 0, set())
            self._report(take)
        done, self.done = self.done, KVConnectorTransferResults()
        for name in [name for name in self.finished if not self._is_open(name)]:
            self.finished.remove(name)
            del self.ids[name]
            done.finished_sending.add(name)
        return done

    def get_block_ids_with_load_errors(self) -> set[int]:
        lost, self.lost = self.lost, set()
        return lost

    def get_kv_connector_stats(self) -> Stats | None:
        if self.cache is None or self.counts.is_empty():
            return None
        counts, self.counts = self.counts, Stats()
        return counts


def quietly(call: Callable[..., None], *arguments: Any) -> bool:
    """Makes a call about what may have ended meanwhile: its event says why. False if refused for another reason."""
    try:
        call(*arguments)
    except ferry.StaleError as error:
        logger.debug("%s", error)
    except ferry.Error as error:
        logger.warning_once("%s", str(error))
        return False
    return True
