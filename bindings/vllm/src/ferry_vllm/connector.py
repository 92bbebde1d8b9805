"""The class that vLLM loads: passes its calls to `scheduler.py` in the scheduler, to `worker.py` in a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.platforms import current_platform

from .layout import KINDS, check, spec_of
from .messages import Rank, Step
from .options import Options
from .scheduler import Scheduler
from .stats import PromMetrics, Stats
from .worker import Worker

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request


class FerryConnector(KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        options = Options.of(self._kv_transfer_config.kv_connector_extra_config)
        check(vllm_config, kv_cache_config)
        # A layer's bytes are computed when vLLM names the layer only where kernels run in the calling thread. What
        # leaves a window while the prompt is computed would be offered still.
        kinds = {KINDS[type(spec_of(group, group.layer_names[0]))] for group in kv_cache_config.transfer_groups}
        layerwise = options.layerwise and current_platform.is_cpu() and len(kinds) == 1
        layerwise = layerwise and len(kv_cache_config.transfer_groups) == 1
        self.scheduler = self.worker = None
        if role == KVConnectorRole.SCHEDULER:
            self.scheduler = Scheduler(kv_cache_config, layerwise)
        else:
            self.worker = Worker(vllm_config, kv_cache_config, options)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        return Options.of(extra_config).layerwise

    # In the scheduler.

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int, bool]:
        return self.scheduler.matched(request, num_computed_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        return self._kv_cache_config.transfer_group_ids

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        self.scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> Step:
        return self.scheduler.step(scheduler_output)

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        self.scheduler.loaded(connector_output.finished_recving or ())

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.scheduler.finished(request, block_ids)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.scheduler.finished(request, (block_ids,))

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[tuple[int, int], Rank]) -> None:
        ranks = sorted(metadata.values(), key=lambda rank: rank.rank)
        self.scheduler.producers = [rank.descriptor.hex() for rank in ranks]

    # In a worker.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self.worker.open(kv_caches)

    def get_handshake_metadata(self) -> Rank | None:
        return self.worker.address()

    def handle_preemptions(self, kv_connector_metadata: Step) -> None:
        self.worker.retract(kv_connector_metadata)

    def bind_connector_metadata(self, connector_metadata: Step) -> None:
        super().bind_connector_metadata(connector_metadata)
        self.worker.begin(connector_metadata)

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **_: Any) -> None:
        self.worker.computed(layer_name)

    def wait_for_save(self) -> None:
        pass

    def start_load_kv(self, forward_context: Any, **_: Any) -> None:
        self.worker.load(self._get_connector_metadata())

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        return self.worker.results()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        results = self.worker.results()
        return results.finished_sending, results.finished_recving

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self.worker.lost_blocks()

    def shutdown(self) -> None:
        if self.worker is not None:
            self.worker.close()

    # Counts.

    def get_kv_connector_stats(self) -> Stats | None:
        return self.worker.stats() if self.worker is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        return Stats(data=data) if data else Stats()

    @classmethod
    def build_prom_metrics(cls, *arguments: Any) -> PromMetrics:
        return PromMetrics(*arguments)
