"""What surrounds attention in language models: rotary embedding, RMS normalisation, masked softmax, penalties, token and
paged attention."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from diopi.conformance.references.attention import Scoring, dense_attention
from diopi.conformance.references.gradients import upcast


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False) -> Tensor:
    """Of one sequence, each [length, heads, width]; the scale is the usual one."""
    scoring = Scoring(1 / math.sqrt(q.shape[2]), causal, mask=mask)
    made, _ = dense_attention(q[None], k[None], v[None], scoring)
    assert made is not None
    return made[0]


# ---- rotary embedding ----


def rotated(x: Tensor, cos: Tensor, sin: Tensor, conj: bool, interleaved: bool) -> Tensor:
    """Pairs of numbers as points of the plane, rotated by their angles (backwards if `conj`). A pair is two neighbours, or
    a number of the first half and its counterpart in the second. cos and sin are broadcast to one number of every pair."""
    values = upcast(x)
    pairs = (
        values.unflatten(-1, (x.shape[-1] // 2, 2)) if interleaved else torch.stack(values.chunk(2, -1), -1)
    )
    turn = torch.complex(upcast(cos), -upcast(sin) if conj else upcast(sin))
    rotated = torch.view_as_real(torch.complex(pairs[..., 0], pairs[..., 1]) * turn)
    return (rotated.flatten(-2) if interleaved else torch.cat(rotated.unbind(-1), -1)).to(x.dtype)


def rotated_heads(x: Tensor, cos: Tensor, sin: Tensor, dim: int) -> Tensor:
    """Heads of width `dim` for tokens; cos and sin have `dim` numbers for each token, one for each half."""
    cos, sin = (upcast(t).reshape(-1, 1, dim) for t in (cos, sin))
    heads = upcast(x).reshape(cos.shape[0], -1, dim)
    first, second = heads.chunk(2, dim=-1)
    return (heads * cos + torch.cat((-second, first), dim=-1) * sin).reshape(x.shape).to(x.dtype)


# ---- RMS normalisation ----


def rms_normalized(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    inv_rms: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The result, and one over the root of the mean square with dimensions of 1 (or in the shape that the caller gave)."""
    values = upcast(input)
    dims = tuple(range(-len(normalized_shape), 0))
    inverse = (values.square().mean(dims, keepdim=True) + eps).rsqrt()
    out = values * inverse
    if weight is not None:
        out = out * weight
    if bias is not None:
        out = out + bias
    return out.to(input.dtype), inverse if inv_rms is None else inverse.reshape(inv_rms.shape)


def rms_normalized_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    inv_rms: Tensor,
    normalized_shape: Sequence[int],
) -> tuple[Tensor | None, ...]:
    """The gradients of input, weight and bias by autograd; None for one that is absent. The inverses are the saved ones: eps,
    which not every caller knows, is what makes the mean square fit them."""
    with torch.enable_grad():
        leaves = [None if t is None else upcast(t).detach().requires_grad_() for t in (input, weight, bias)]
        x = leaves[0]
        assert x is not None
        squares = x.square().mean(tuple(range(-len(normalized_shape), 0)), keepdim=True)
        eps = upcast(inv_rms).reshape(squares.shape).square().reciprocal() - squares.detach()
        out = x * (squares + eps).rsqrt()
        out = out if leaves[1] is None else out * leaves[1]
        out = out if leaves[2] is None else out + leaves[2]
        grads = iter(torch.autograd.grad(out, [t for t in leaves if t is not None], upcast(grad_output)))
    return tuple(None if t is None else next(grads).to(t.dtype) for t in (input, weight, bias))


# ---- masked softmax ----


def _hidden(mask: Tensor | None, shape: torch.Size, triangle: bool) -> Tensor:
    """True where an element takes no part. A fixed triangle hides what is above the diagonal instead of a mask."""
    if triangle:
        return torch.ones(shape[-2:], dtype=torch.bool).triu(1).expand(shape)
    return torch.zeros(shape, dtype=torch.bool) if mask is None else (mask != 0).expand(shape)


def masked_softmax(input: Tensor, mask: Tensor | None, scale: float, triangle: bool) -> Tensor:
    """Softmax over the last dimension of scale * input among what is not hidden; zeros where everything is."""
    hidden = _hidden(mask, input.shape, triangle)
    shown = (upcast(input) * scale).masked_fill(hidden, -torch.inf)
    return shown.softmax(-1).masked_fill(hidden, 0.0).to(input.dtype)


def masked_softmax_backward(
    grad_output: Tensor, output: Tensor, mask: Tensor | None, scale: float, triangle: bool
) -> Tensor:
    """The gradient of the input, from the softmax's result."""
    y, grad = upcast(output), upcast(grad_output)
    shown = torch.ops.aten._softmax_backward_data(grad, y, -1, y.dtype) * scale
    return shown.masked_fill(_hidden(mask, output.shape, triangle), 0.0).to(output.dtype)


# ---- penalties ----


def penalized(
    logits: Tensor, presence: Tensor, frequency: Tensor, ids: Tensor, counts: Tensor, cumulative: Tensor
) -> Tensor:
    """logits[b, id] - frequency[b] * count - presence[b] for the tokens of each sequence."""
    values = upcast(logits).clone()
    for b in range(logits.shape[0]):
        tokens = slice(int(cumulative[b]), int(cumulative[b + 1]))
        which = ids[tokens].long()
        values[b, which] -= upcast(frequency)[b] * counts[tokens] + upcast(presence)[b]
    return values.to(logits.dtype)


def penalized_flat(
    logits: Tensor, presence: Tensor, frequency: Tensor, repetition: Tensor, ids: Tensor, counts: Tensor
) -> Tensor:
    """One entry for each token; ids are positions among all logits. A positive logit is divided by the repetition penalty,
    another one multiplied; then the two other penalties are subtracted."""
    flat = upcast(logits).flatten().clone()
    which = ids.long()
    old, again = flat[which], upcast(repetition)
    flat[which] = (
        torch.where(old > 0, old / again, old * again) - upcast(frequency) * counts - upcast(presence)
    )
    return flat.view(logits.shape).to(logits.dtype)


# ---- key/value caches and attention over them ----


def copied_to(out: Tensor, k: Tensor, dest_loc: Tensor) -> Tensor:
    """out[dest_loc] = k"""
    return out.index_copy(0, dest_loc.long(), k)


def _located(cache: Tensor, b_loc: Tensor, batch: int, length: int, max_input_len: int) -> Tensor:
    """The rows of one sequence in the cache; its positions are at the end of the first max_input_len columns."""
    return cache[b_loc[batch, max_input_len - length : max_input_len].long()]


def token_scores(
    q: Tensor, k: Tensor, b_loc: Tensor, b_start_loc: Tensor, b_seq_len: Tensor, max_input_len: int
) -> Tensor:
    """q k / sqrt(width) of one query for each sequence: [heads, sum of the lengths]."""
    scores = upcast(q).new_zeros(q.shape[1], int(b_seq_len.sum()))
    for b, (start, length) in enumerate(zip(b_start_loc.tolist(), b_seq_len.tolist(), strict=True)):
        keys = upcast(_located(k, b_loc, b, length, max_input_len))
        repeated = keys.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        scores[:, start : start + length] = torch.einsum("hd,jhd->hj", upcast(q[b]), repeated)
    return (scores / math.sqrt(q.shape[2])).to(q.dtype)


def token_values(
    logics: Tensor, v: Tensor, b_loc: Tensor, b_start_loc: Tensor, b_seq_len: Tensor, max_input_len: int
) -> Tensor:
    """softmax(logics) v of one query for each sequence: [batch, heads, width]."""
    heads = logics.shape[0]
    out = upcast(v).new_zeros(len(b_seq_len), heads, v.shape[2])
    for b, (start, length) in enumerate(zip(b_start_loc.tolist(), b_seq_len.tolist(), strict=True)):
        values = upcast(_located(v, b_loc, b, length, max_input_len))
        weights = upcast(logics[:, start : start + length]).softmax(-1)
        repeated = values.repeat_interleave(heads // v.shape[1], dim=1)
        out[b] = torch.einsum("hj,jhd->hd", weights, repeated)
    return out.to(v.dtype)


def context_attention(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """Causal attention of each packed sequence to itself; rows of no sequence are zero."""
    out = torch.zeros_like(q)
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        rows = slice(start, start + length)
        out[rows] = _attention(q[rows], k[rows], v[rows], causal=True)
    return out


def paged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    lengths: Sequence[int],
    heads: int,
    kv_heads: int,
    dim: int,
    block_table: Tensor,
    block_size: int,
) -> Tensor:
    """One query for each sequence over the keys of its blocks; true in the mask [batch, .., most keys] hides a key."""
    queries = q.reshape(len(lengths), 1, heads, dim)
    pages = [cache.reshape(-1, block_size, kv_heads or heads, dim) for cache in (k, v)]
    out = torch.zeros_like(queries)
    for b, length in enumerate(lengths):
        blocks = block_table[b, : math.ceil(length / block_size)].long()
        keys, values = (page[blocks].flatten(0, 1)[:length] for page in pages)
        hidden = None if mask is None else mask.reshape(len(lengths), -1)[b, None, :length]
        out[b] = _attention(queries[b], keys, values, hidden)
    return out.view(q.shape)


def prompt_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    lengths: Sequence[int],
    max_input_len: int,
    heads: int,
    kv_heads: int,
    dim: int,
) -> Tensor:
    """Sequences padded to max_input_len; true in the mask [batch, .., max_input_len, max_input_len] hides a key. Rows behind
    the end of a sequence are zero."""
    padded = [
        t.reshape(len(lengths), max_input_len, n, dim)
        for t, n in ((query, heads), (key, kv_heads or heads), (value, kv_heads or heads))
    ]
    out = torch.zeros_like(padded[0])
    for b, length in enumerate(lengths):
        hidden = None
        if mask is not None:
            one = mask.reshape(-1, max_input_len, max_input_len)
            hidden = one[b if one.shape[0] > 1 else 0, :length, :length]
        q, k, v = (t[b, :length] for t in padded)
        out[b, :length] = _attention(q, k, v, hidden)
    return out.view(query.shape)


def matmul_on_one_rank(x1: Tensor, x2: Tensor, bias: Tensor | None) -> Tensor:
    """x1 x2 + bias: in a group of one the reduction changes nothing."""
    made = upcast(x1) @ upcast(x2)
    return (made if bias is None else made + bias).to(x1.dtype)
