"""vLLM hands KV caches from prefill to decode engines over ferry.

    --kv-transfer-config '{"kv_connector": "FerryConnector", "kv_connector_module_path": "ferry_vllm", ...}'

`connector.py` has the class that vLLM loads, once in its scheduler and once in each worker. It has two halves, by
vLLM's own names: `scheduler.py` decides what is handed over, and `worker.py` offers and takes by `ferry.kv`.
`messages.py` is what the former tells the latter. `layout.py` describes vLLM's cache to ferry, `options.py` reads
the configuration, `stats.py` counts. docs/vllm.md is the page for users.
"""

from .connector import FerryConnector

__all__ = ["FerryConnector"]
