"""The platform: which device, worker and attention vLLM shall use."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from vllm.platforms.interface import Platform, PlatformEnum  # type: ignore[import-not-found]

_PACKAGE = "dlinfer.framework.vllm_ext"


class DlinferPlatform(Platform):
    """vLLM on the CPU with dlinfer's operators. None of vLLM's own compiled kernels is needed."""

    _enum = PlatformEnum.OOT
    # vLLM makes devices of process groups from device_name, so it is torch's name of the device.
    device_name = "cpu"
    device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"
    device_control_env_var = "CPU_VISIBLE_MEMORY_NODES"
    # Small functions (log probabilities) are not worth the start of a compiler.
    simple_compile_backend = "eager"

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "cpu (dlinfer)"

    @classmethod
    def get_device_uuid(cls, device_id: int = 0) -> str:
        return f"cpu:{device_id}"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    @classmethod
    def get_current_memory_usage(cls, device: torch.device | None = None) -> float:
        with open("/proc/self/statm") as file:
            return float(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """There is one CPU."""

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """torch.manual_seed, which vLLM calls beside this, has set the CPU's."""

    @classmethod
    def inference_mode(cls) -> Any:
        return torch.no_grad()

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        return torch.get_num_threads()

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        return True

    @classmethod
    def opaque_attention_op(cls) -> bool:
        return True

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"

    @classmethod
    def import_kernels(cls) -> None:
        """vLLM's compiled kernels are for other devices: none is loaded."""

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        from vllm.triton_utils.dispatcher import register_kernels  # type: ignore[import-not-found]

        register_kernels(KERNELS)

    @classmethod
    def get_attn_backend_cls(
        cls, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        """dlinfer's attention, whatever is selected; ValueError: it cannot do what the model needs."""
        from dlinfer.framework.vllm_ext.attention import DlinferAttentionBackend

        reasons = DlinferAttentionBackend.validate_configuration(
            device_capability=None, **attn_selector_config._asdict()
        )
        if reasons:
            raise ValueError(f"dlinfer's attention cannot serve this model under vLLM: {', '.join(reasons)}")
        return f"{_PACKAGE}.attention.DlinferAttentionBackend"

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: Any) -> None:
        """Layers run as they are: no compiler, no captured graphs. Then vLLM asks every layer for the platform's form."""
        from vllm.config import CompilationMode, CUDAGraphMode  # type: ignore[import-not-found]

        vllm_config.compilation_config.mode = CompilationMode.NONE
        vllm_config.compilation_config.cudagraph_mode = CUDAGraphMode.NONE

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        """The worker of this platform; ValueError: what would run kernels that are not for the CPU."""
        from vllm.triton_utils import HAS_TRITON  # type: ignore[import-not-found]

        if HAS_TRITON:
            # vLLM asks only whether Triton works, not where.
            raise ValueError(
                "Triton works here, so vLLM would start its kernels on memory of the CPU; hide the device that Triton"
                " has from this process (for instance CUDA_VISIBLE_DEVICES=)"
            )
        for feature, given in (
            ("speculative decoding", vllm_config.speculative_config),
            ("LoRA", vllm_config.lora_config),
            ("KV transfer", vllm_config.kv_transfer_config),
        ):
            if given is not None:
                raise ValueError(
                    f"{feature} needs vLLM's own kernels; with DLINFER_VLLM_DEVICE it is not there"
                )
        vllm_config.compilation_config.cudagraph_capture_sizes = []
        vllm_config.scheduler_config.async_scheduling = False
        parallel = vllm_config.parallel_config
        parallel.disable_custom_all_reduce = True
        if parallel.worker_cls == "auto":
            parallel.worker_cls = f"{_PACKAGE}.worker.DlinferWorker"
        # A child of fork would inherit torch's threads as locks that nobody holds.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")


# ---- the slots of new tokens, which vLLM computes with a Triton kernel; this is the same without Triton ----


def compute_slots(
    num_tokens: int,
    max_num_tokens: int,
    query_start_loc_ptr: Tensor,
    positions_ptr: Tensor,
    block_table_ptr: Tensor,
    block_table_stride: int,
    slot_mapping_ptr: Tensor,
    KV_CACHE_BLOCK_SIZE: int,
    TOTAL_CP_WORLD_SIZE: int,
    TOTAL_CP_RANK: int,
    CP_KV_CACHE_INTERLEAVE_SIZE: int,
    PAD_ID: int,
    BLOCK_SIZE: int,
) -> None:
    """The slot of each token: its block's number times the block size, plus its offset in the block.

    The names are those of vLLM's kernel, by which they are passed; tensors stand where it has pointers.
    """
    if TOTAL_CP_WORLD_SIZE != 1:
        raise ValueError(f"context parallelism over {TOTAL_CP_WORLD_SIZE} ranks is not there, expected 1")
    starts = query_start_loc_ptr.long()
    positions = positions_ptr[:num_tokens]
    requests = starts.new_tensor(range(starts.numel() - 1)).repeat_interleave(
        starts.diff(), output_size=num_tokens
    )
    blocks = block_table_ptr[requests, positions // KV_CACHE_BLOCK_SIZE].long()
    slot_mapping_ptr[:num_tokens] = blocks * KV_CACHE_BLOCK_SIZE + positions % KV_CACHE_BLOCK_SIZE
    slot_mapping_ptr[num_tokens:max_num_tokens] = PAD_ID


KERNELS = {"vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel": compute_slots}
"""By the path of vLLM's kernel."""
