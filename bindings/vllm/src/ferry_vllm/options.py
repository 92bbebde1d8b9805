"""The options of `kv_connector_extra_config`, and the settings of ferry's engine."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from vllm.config import ParallelConfig

# A lost peer's transfers are final after this time; ferry's own default is 3 s.
LEASE_MS = 1000


@dataclass
class Options:
    # Settings of the engine (docs/settings.md). Settings that are not named come from FERRY_* variables.
    settings: dict[str, Any] = field(default_factory=dict)
    # The model's name in the cache's key, for engines that load one model from different folders.
    model: str = ""
    # Whether a prompt is handed over while it is computed, if its proxy has given it an id.
    layerwise: bool = True
    # Whether the engines on both sides have draft layers, of the same draft model.
    draft: bool = False
    # auto, pull or push.
    mode: str = "auto"
    # How long an offer waits for its consumer, a take for its tokens, and a connection for its peer.
    lease_s: float = 30.0
    take_s: float = 120.0
    connect_s: float = 2.0
    # A peer that is silent for this long while something is expected of it is lost.
    silence_ms: int = 1000

    def __post_init__(self) -> None:
        if self.mode not in ("auto", "pull", "push"):
            raise ValueError(f"kv_connector_extra_config: mode {self.mode!r} is none of auto, pull, push")

    def engine(self, parallel: ParallelConfig, rank: int) -> dict[str, Any]:
        """The settings of a rank's engine. Ranks of one host listen at ports of their own, data parallel ranks too."""
        local = parallel.data_parallel_rank_local
        first = (parallel.data_parallel_index if local is None else local) * parallel.tensor_parallel_size
        settings = dict(self.settings)
        if "FERRY_LEASE_MS" not in os.environ:
            settings.setdefault("lease_ms", LEASE_MS)
        for key in ("listen_address", "advertise_address"):
            host, _, port = str(settings.get(key, "")).rpartition(":")
            if port.isdigit() and int(port) > 0:
                settings[key] = f"{host}:{int(port) + first + rank}"
        return settings
