"""vLLM computes the slots of new tokens with a Triton kernel; this is the same without Triton."""

from __future__ import annotations

from torch import Tensor


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
    """The slot of each token: its block's number times the block size, plus its place in the block.

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
