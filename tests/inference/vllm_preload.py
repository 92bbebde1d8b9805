"""What the process that forks engines imports (vllm_engines.py): most of an engine's start."""

import vllm  # noqa: F401
import vllm.model_executor.model_loader  # noqa: F401
import vllm.model_executor.models.llama  # noqa: F401
import vllm.v1.engine.llm_engine  # noqa: F401
import vllm.v1.executor.uniproc_executor  # noqa: F401
import vllm.v1.worker.cpu_worker  # noqa: F401
from vllm import LLM  # noqa: F401
