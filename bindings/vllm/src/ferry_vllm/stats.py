"""Counts of handoffs for vLLM's log and its /metrics."""

from __future__ import annotations

from collections import Counter
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats


class Stats(KVConnectorStats):
    """`ends`: how many offers and takes have ended, by "offer SENT" and so on; `tokens`: that were taken."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data or {"ends": {}, "tokens": 0})

    def reset(self) -> None:
        self.data = {"ends": {}, "tokens": 0}

    def ended(self, what: str, tokens: int = 0) -> None:
        self.data["ends"][what] = self.data["ends"].get(what, 0) + 1
        self.data["tokens"] += tokens

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        self.data["ends"] = dict(Counter(self.data["ends"]) + Counter(other.data["ends"]))
        self.data["tokens"] += other.data["tokens"]
        return self

    def reduce(self) -> dict[str, int | float]:
        return {**self.data["ends"], "tokens taken": self.data["tokens"]}

    def is_empty(self) -> bool:
        return not self.data["ends"]


class PromMetrics(KVConnectorPromMetrics):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        names = [*self._labelnames, "side", "end"]
        self._ends = self._counter_cls("vllm:ferry_handoffs", "Ended offers and takes.", names)
        self._tokens = self._counter_cls("vllm:ferry_tokens", "Tokens that were taken.", self._labelnames)

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        values = self.per_engine_labelvalues[engine_idx]
        for what, count in transfer_stats_data["ends"].items():
            self._ends.labels(*values, *what.split(" ")).inc(count)
        self._tokens.labels(*values).inc(transfer_stats_data["tokens"])
