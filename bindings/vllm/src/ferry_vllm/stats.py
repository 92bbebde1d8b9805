"""Counts of handoffs for vLLM's log and its /metrics."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

if TYPE_CHECKING:
    from ferry import kv

BUCKETS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0]


class Stats(KVConnectorStats):
    """`ends`: how many offers and takes have ended, by "offer RECEIVED" and so on. `tokens`: that were taken.
    `seconds`: of the takes that were received."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data or {})
        if not self.data:
            self.reset()

    def reset(self) -> None:
        self.data = {"ends": {}, "tokens": 0, "seconds": []}

    def ended(self, side: str, end: kv.EventKind, tokens: int = 0, seconds: float | None = None) -> None:
        name = f"{side} {end.name}"
        self.data["ends"][name] = self.data["ends"].get(name, 0) + 1
        self.data["tokens"] += tokens
        if seconds is not None:
            self.data["seconds"].append(seconds)

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        self.data["ends"] = dict(Counter(self.data["ends"]) + Counter(other.data["ends"]))
        self.data["tokens"] += other.data["tokens"]
        self.data["seconds"] = self.data["seconds"] + other.data["seconds"]
        return self

    def reduce(self) -> dict[str, int | float]:
        seconds = self.data["seconds"]
        mean = sum(seconds) / len(seconds) if seconds else 0.0
        return {**self.data["ends"], "tokens taken": self.data["tokens"], "mean take (ms)": round(mean * 1e3, 3)}

    def is_empty(self) -> bool:
        return not self.data["ends"]


class PromMetrics(KVConnectorPromMetrics):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._ends = self._counter_cls(
            name="vllm:ferry_handoffs_total",
            documentation="Offers and takes that have ended, by their terminal event.",
            labelnames=[*self._labelnames, "side", "end"],
        )
        self._tokens = self._counter_cls(
            name="vllm:ferry_tokens_total",
            documentation="Tokens that were taken from other engines.",
            labelnames=self._labelnames,
        )
        self._seconds = self._histogram_cls(
            name="vllm:ferry_take_seconds",
            documentation="From a take to its RECEIVED.",
            buckets=BUCKETS,
            labelnames=self._labelnames,
        )

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        values = self.per_engine_labelvalues[engine_idx]
        for name, count in transfer_stats_data["ends"].items():
            self._ends.labels(*values, *name.split(" ")).inc(count)
        self._tokens.labels(*values).inc(transfer_stats_data["tokens"])
        for seconds in transfer_stats_data["seconds"]:
            self._seconds.labels(*values).observe(seconds)
