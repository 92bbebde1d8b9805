"""The class that vLLM loads: in the scheduler it is the one half, in a worker the other."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole, SupportsHMA
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import KVCacheConfig

from .layout import specs_of, window_of
from .options import Options
from .scheduler import SchedulerHalf
from .stats import PromMetrics, Stats
from .worker import WorkerHalf


class FerryConnector(SchedulerHalf, WorkerHalf, KVConnectorBase_V1, SupportsHMA):
    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        KVConnectorBase_V1.__init__(self, vllm_config, role, kv_cache_config)
        options = Options(**self._kv_transfer_config.kv_connector_extra_config)
        groups = specs_of(vllm_config, kv_cache_config, options.draft)
        if role == KVConnectorRole.SCHEDULER:
            # With windows, blocks that leave one before the prompt is complete would still be offered. If two
            # halves of a
            # batch take turns on a device, vLLM names a layer twice.
            windows = [window_of(next(iter(group.values()))) for group in groups]
            by_layer = windows == [0] and (current_platform.is_cpu() or current_platform.is_cuda())
            by_layer = by_layer and not vllm_config.parallel_config.use_ubatching
            self.init_scheduler(options.layerwise and by_layer, windows)
        else:
            self.init_worker(options)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Stats:
        return Stats(data or {})

    @classmethod
    def build_prom_metrics(cls, *arguments: Any) -> PromMetrics:
        return PromMetrics(*arguments)
