"""Counts of handoffs for vLLM's log and its /metrics."""

from __future__ import annotations

from collections import Counter
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

# The key of taken tokens, beside those of ends, such as "offer SENT".
TOKENS = "tokens taken"


class Stats(KVConnectorStats):
    """How many offers and takes have ended, by how, and how many tokens were taken."""

    def reset(self) -> None:
        self.data = {}

    def add(self, counts: dict[str, int]) -> None:
        self.data = dict(Counter(self.data) + Counter(counts))

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        self.add(other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        return self.data

    def is_empty(self) -> bool:
        return not self.data


class PromMetrics(KVConnectorPromMetrics):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        names = [*self._labelnames, "side", "end"]
        self._ends = self._counter_cls("vllm:ferry_handoffs", "Ended offers and takes.", names)
        self._tokens = self._counter_cls("vllm:ferry_tokens", "Tokens that were taken.", self._labelnames)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        values = self.per_engine_labelvalues[engine_idx]
        for what, count in transfer_stats_data.items():
            counter = self._tokens.labels(*values) if what == TOKENS else self._ends.labels(*values, *what.split(" "))
            counter.inc(count)
