"""A KV cache for a whole cluster, whose owners move the bytes.

A `Pool` is a node on an engine: it lends memory, or is a client. What one node puts, every node gets. A
`Keyspace` makes the keys, of token ids or of a program's own hashes. `Parts` makes values of the blocks of
engines that are sharded differently. docs/pool.md has the contracts.
"""

from __future__ import annotations

from ._abi import Stats
from ._keys import Image, Key, Keyspace
from ._parts import Parts, PartValues
from ._pool import Pool
from ._quotas import Quota
from ._results import Cost, Drained, Node, Outcome, Result

__all__ = [
    "Cost",
    "Drained",
    "Image",
    "Key",
    "Keyspace",
    "Node",
    "Outcome",
    "PartValues",
    "Parts",
    "Pool",
    "Quota",
    "Result",
    "Stats",
]

# As in ferry: classes print under the name by which programs know them, ferry.pool.Pool.
for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
