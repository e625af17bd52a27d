"""The worker: vLLM's worker for the CPU, without the kernels that only vLLM's builds for the CPU have."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

# vLLM gives torch stand-ins for streams and events when this is imported: it must come first.
import vllm.v1.worker.cpu.shm  # type: ignore[import-not-found]  # noqa: F401
from vllm.platforms import current_platform  # type: ignore[import-not-found]
from vllm.utils.torch_utils import set_random_seed  # type: ignore[import-not-found]
from vllm.v1.worker.cpu_model_runner import CPUModelRunner  # type: ignore[import-not-found]
from vllm.v1.worker.cpu_worker import CPUWorker  # type: ignore[import-not-found]
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment  # type: ignore[import-not-found]


class DlinferWorker(CPUWorker):
    """One process of the engine."""

    def __init__(self, vllm_config: Any, local_rank: int, rank: int, *args: Any, **kwargs: Any) -> None:
        # Not CPUWorker's: it binds memory by a compiled kernel.
        Worker.__init__(self, vllm_config, local_rank, rank, *args, **kwargs)
        share = vllm_config.cache_config.gpu_memory_utilization
        self.requested_cpu_memory = math.ceil(current_platform.get_device_total_memory() * share)

    def init_device(self) -> None:
        """Process groups, seed and model runner. Threads are left as the user set them."""
        self.device = torch.device("cpu")
        init_worker_distributed_environment(
            self.vllm_config,
            self.rank,
            self.distributed_init_method,
            self.local_rank,
            current_platform.dist_backend,
        )
        set_random_seed(self.model_config.seed)
        self.model_runner = CPUModelRunner(self.vllm_config, self.device)

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[None]:
        """Private to vLLM, which gives its own platforms memory that can sleep; here memory is torch's."""
        return nullcontext()
