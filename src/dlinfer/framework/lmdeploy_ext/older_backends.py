"""`device_type` camb and maca: LMDeploy 0.18 has their backends, but has not brought them along with its attention.

Both build the attention's metadata with names of 0.16 and without the lengths on the CPU that attention now reads, and both
take a graph runner that records CUDA graphs. Here they get what ascend gets.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

__all__ = ["install"]


@functools.cache
def install() -> None:
    """Once in a process."""
    from lmdeploy.pytorch.backends.dlinfer.camb import CambOpsBackend
    from lmdeploy.pytorch.backends.dlinfer.maca import MacaOpsBackend

    for backend in (CambOpsBackend, MacaOpsBackend):
        backend.build_graph_runner = staticmethod(_graph_runner)
        backend.get_attention_metadata_cls = staticmethod(lambda: _metadata)


def _graph_runner(*args: Any, **kwargs: Any) -> Any:
    from dlinfer.framework.lmdeploy_ext.cudagraph.ascend_cudagraph import AscendGraphRunner

    return AscendGraphRunner(*args, **kwargs)


def _metadata(
    is_decoding: bool,
    block_offsets: torch.Tensor,
    *,
    q_start_loc: torch.Tensor,
    kv_seqlens: torch.Tensor,
    max_q_seq_len: int,
    max_kv_seq_len: int,
    cu_seq_lens_kv: torch.Tensor | None = None,
    attention_mask: Any = None,
    **rest: Any,
) -> Any:
    """The metadata of 0.18 from the names of 0.16. `q_start_loc` has the end of the last sequence too."""
    from lmdeploy.pytorch.backends.dlinfer.attention import DlinferAttentionMetadata

    ends = q_start_loc
    return DlinferAttentionMetadata(
        is_decoding,
        block_offsets,
        q_start_loc=ends[:-1],
        cu_seqlens_q=ends,
        cu_seqlens_q_cpu=ends.cpu(),
        kv_seqlens=kv_seqlens,
        kv_seqlens_cpu=kv_seqlens.cpu(),
        max_q_seqlen=max(max_q_seq_len, 1),
        # -1 says that nobody computed it.
        max_kv_seq_len=max(max_kv_seq_len, 0),
        attention_mask=attention_mask or (),
        **rest,
    )
