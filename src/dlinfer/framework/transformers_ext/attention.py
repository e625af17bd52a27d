"""`attn_implementation="dlinfer"`: attention of transformers' models by the operators of dlinfer.

A key tensor [batch, heads, length, size] of transformers is a paged cache with one page for each sequence, seen from another
side: nothing is copied, whichever cache of transformers it comes from.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils import logging

from dlinfer.interface.registry import OVERLOADS

NAME = "dlinfer"
_paged = OVERLOADS["paged_prefill_attention"]
_decode = OVERLOADS["paged_decode_attention"]
_logger = logging.get_logger(__name__)

# What some models hand over and no operator has: leaving it out would give other results.
_UNKNOWN = {
    "s_aux": "attention sinks",
    "position_bias": "a bias for each head and distance",
    "cache": "the cache of continuous batching",
    "head_mask": "a mask of heads",
}


def register() -> None:
    """Tells transformers the name. Masks are those of sdpa: true shows a key, and no mask where 'causal' says it all."""
    AttentionInterface.register(NAME, dlinfer_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)


def dlinfer_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: query [batch, heads, new, size]; gives [batch, new, heads, value_size].

    A sliding window is in the mask already. Where gradients are wanted, torch's own attention runs.
    """
    _refuse_unknown(kwargs)
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        return _with_gradients(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, softcap, kwargs
        )
    batch, heads, new, size = query.shape
    causal = new > 1 and attention_mask is None
    if causal:
        causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    # Behind the new tokens a static cache is still empty; transformers leaves the mask out of the first call only.
    length = new if causal and key.shape[2] > new else key.shape[2]
    scale = size**-0.5 if scaling is None else scaling
    rows = query.transpose(1, 2).reshape(batch * new, heads, size)
    key, value = key[:, :, :length].transpose(1, 2), value[:, :, :length].transpose(1, 2)
    output = rows.new_empty([batch * new, heads, value.shape[-1]])
    table = torch.arange(batch, dtype=torch.int32, device=query.device).unsqueeze(1)
    lengths = torch.full([batch], length, dtype=torch.int32, device=query.device)
    if new == 1 and attention_mask is None:
        _decode(rows, key, value, table, lengths, length, output, scale, None, -1, softcap or 0.0)
    else:
        cu_seqlens_q = torch.arange(batch + 1, dtype=torch.int32, device=query.device) * new
        mask = None if attention_mask is None else _by_row(attention_mask, batch, new, length)
        _paged(
            rows, key, value, table, cu_seqlens_q, lengths, new, length, output, scale, causal, mask, None, -1, -1,
            softcap or 0.0,
        )  # fmt: skip
    return output.view(batch, new, heads, -1), None


def _refuse_unknown(kwargs: dict[str, Any]) -> None:
    for name, meaning in _UNKNOWN.items():
        if kwargs.get(name) is not None:
            raise ValueError(
                f"attn_implementation='{NAME}' has no operator for {name} ({meaning});"
                " load this model with attn_implementation='eager' or 'sdpa'"
            )
    if kwargs.get("output_attentions"):
        _logger.warning_once(
            f"attn_implementation='{NAME}' keeps no attention weights: output_attentions gives None. Use 'eager' for them."
        )


def _by_row(mask: Tensor, batch: int, new: int, length: int) -> Tensor:
    """[batch or 1, 1, new, at least length] of transformers as [batch * new, length]; true hides a key."""
    if mask.dim() != 4 or mask.shape[1] != 1 or mask.shape[0] not in (1, batch) or mask.shape[2] != new:
        raise ValueError(
            f"attn_implementation='{NAME}': attention_mask has shape {list(mask.shape)}, expected"
            f" [{batch} or 1, 1, {new}, {length}] (one mask for all heads)"
        )
    rows = mask[:, 0, :, :length].expand(batch, new, length).reshape(batch * new, length)
    return ~rows if rows.dtype == torch.bool else rows


def _with_gradients(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    is_causal: bool | None,
    softcap: float | None,
    kwargs: dict[str, Any],
) -> tuple[Tensor, None]:
    """The operators of dlinfer have no gradients."""
    if softcap is not None:
        raise ValueError(
            f"attn_implementation='{NAME}' has no gradients, and torch's own attention no soft cap:"
            " train this model with attn_implementation='eager', or call it under torch.no_grad()"
        )
    _logger.warning_once(
        f"attn_implementation='{NAME}': gradients are wanted, so torch's own attention (sdpa) runs."
        " Under torch.no_grad() dlinfer's runs."
    )
    return sdpa_attention_forward(
        module, query, key, value, mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **kwargs
    )
