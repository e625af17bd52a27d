"""Attention, written out: the whole matrix of scores, then a softmax, in float32 (float64 for float64).

Layouts. Dense tensors are [batch, length, heads, width]; packed ones [total, heads, width] with the cumulative lengths of
their sequences. Query head h reads key head h // (heads / key heads). Query i of a sequence stands opposite key
i + keys - queries: causal attention sees the keys up to that one, a window the keys from `left` before to `right`
behind it (negative: unlimited), and ALiBi lowers a score by its slope times the distance to it. A query that sees no key gets
zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from diopi.conformance.references.gradients import upcast

Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]

# The saved maxima and sums of the customized functions hold every number eight times.
SAVED_WIDTH = 8


@dataclass(frozen=True)
class Scoring:
    """What a query sees, and how its scores are changed."""

    scale: float
    causal: bool = False
    left: int = -1
    right: int = -1
    slopes: Tensor | None = None
    """ALiBi: [heads], or [batch, heads]."""
    mask: Tensor | None = None
    """True hides: [queries, keys], or [batch or 1, heads or 1, queries, keys]."""
    keep: Tensor | None = None
    """What dropout keeps: [batch, heads, queries, keys]."""
    dropout: float = 0.0

    @property
    def determined(self) -> bool:
        """Whether the result does not depend on random numbers."""
        return self.dropout == 0 or self.keep is not None

    def of_sequence(self, batch: int, queries: int, keys: int) -> Scoring:
        """For one sequence: slopes are [heads] or [batch, heads], a mask is [queries, keys] or has batch and heads (or 1) first;
        packed sequences use the first rows and columns of a mask that they share."""
        slopes, mask, keep = self.slopes, self.mask, self.keep
        if slopes is not None and slopes.dim() == 2:
            slopes = slopes[batch]
        if mask is not None:
            mask = mask[batch if mask.shape[0] > 1 else 0] if mask.dim() == 4 else mask
            mask = mask[..., :queries, :keys]
        if keep is not None:
            keep = keep[batch, :, :queries, :keys]
        return replace(self, slopes=slopes, mask=mask, keep=keep)

    def hidden(self, heads: int, queries: int, keys: int) -> Tensor:
        """[heads, queries, keys], true where a key is not seen."""
        distance = torch.arange(keys)[None, :] - (torch.arange(queries)[:, None] + keys - queries)
        right = 0 if self.causal else self.right
        outside = torch.zeros(queries, keys, dtype=torch.bool)
        if self.left >= 0:
            outside |= distance < -self.left
        if right >= 0:
            outside |= distance > right
        hidden = outside.expand(heads, queries, keys)
        return hidden if self.mask is None else hidden | (self.mask != 0)


def _scores(q: Tensor, k: Tensor, scoring: Scoring) -> Tensor:
    """[heads, queries, keys]; minus infinity where a key is hidden."""
    queries, heads, _ = q.shape
    keys, key_heads, _ = k.shape
    if key_heads == 0 or heads % key_heads:
        raise ValueError(f"{heads} query heads cannot share {key_heads} key heads evenly")
    repeated = k.repeat_interleave(heads // key_heads, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q, repeated) * scoring.scale
    if scoring.slopes is not None:
        opposite = torch.arange(queries)[:, None] + keys - queries
        distance = (opposite - torch.arange(keys)[None, :]).abs()
        scores = scores - scoring.slopes.to(scores.dtype)[:, None, None] * distance
    return scores.masked_fill(scoring.hidden(heads, queries, keys), -torch.inf)


def _weights(scores: Tensor) -> Tensor:
    """Softmax over keys; zeros for a query that sees none."""
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def _attend(q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Pair:
    """One sequence upcast: its output [queries, heads, width] and its scores."""
    scores = _scores(q, k, scoring)
    weights = _weights(scores)
    if scoring.keep is not None:
        weights = weights * scoring.keep.to(weights.dtype) / (1 - scoring.dropout)
    repeated = v.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return torch.einsum("hqk,khd->qhd", weights, repeated), scores


def _attend_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, scoring: Scoring) -> Triple:
    """The gradients of one sequence by autograd.

    Below float64 the saved output is a rounded one, and an implementation may take the sum over `grad * out` from it, as the
    usual flash attention does. The reference in the call's own dtype does so too, so that its error says what is due to that.
    """
    with torch.enable_grad():
        leaves = [upcast(t).detach().requires_grad_() for t in (q, k, v)]
        exact, scores = _attend(leaves[0], leaves[1], leaves[2], scoring)
        grads = torch.autograd.grad(exact, leaves, upcast(grad))
    if q.dtype == torch.float64:
        return grads[0], grads[1], grads[2]
    off = ((upcast(out) - exact.detach()) * upcast(grad)).sum(-1).transpose(0, 1)  # [heads, queries]
    excess = _weights(scores.detach()) * off[..., None] * scoring.scale
    heads, key_heads = q.shape[1], k.shape[1]
    repeated = upcast(k).repeat_interleave(heads // key_heads, dim=1)
    grad_q = grads[0] - torch.einsum("hqk,khd->qhd", excess, repeated)
    surplus = torch.einsum("hqk,qhd->khd", excess, upcast(q))
    grad_k = grads[1] - surplus.unflatten(1, (key_heads, heads // key_heads)).sum(2)
    return grad_q, grad_k, grads[2]


# ---- several sequences ----


def _spans(cumulative: Tensor | Sequence[int]) -> list[tuple[int, int]]:
    ends = [int(n) for n in cumulative]
    return list(pairwise(ends))


def _judgeable(lse: Tensor, scoring: Scoring) -> Tensor | None:
    """Nothing where implementations differ: queries without keys, and ALiBi with causality, which may shift a row."""
    if (lse == -torch.inf).any() or (scoring.causal and scoring.slopes is not None):
        return None
    return lse


def _dense(q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> Pair:
    """Output and scores [batch, heads, queries, keys] of dense tensors, upcast."""
    out = upcast(q).new_zeros(*q.shape[:3], v.shape[3])
    scores = upcast(q).new_zeros(q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    for b in range(q.shape[0]):
        own = scoring.of_sequence(b, q.shape[1], k.shape[1])
        out[b], scores[b] = _attend(upcast(q[b]), upcast(k[b]), upcast(v[b]), own)
    return out, scores


def dense_attention(q: Tensor, k: Tensor, v: Tensor, scoring: Scoring) -> tuple[Tensor | None, Tensor | None]:
    """Output and logarithm of the softmax's divisor [batch, heads, queries]. With dropout only the latter is determined."""
    out, scores = _dense(q, k, v, scoring)
    return (out.to(q.dtype) if scoring.determined else None), _judgeable(scores.logsumexp(-1), scoring)


def dense_visible(q: Tensor, k: Tensor, scoring: Scoring, wanted: bool) -> Tensor | None:
    """The debugging mask of the older functions: true where a key takes part for a query."""
    if not wanted or not scoring.determined:
        return None
    batch, queries, heads, _ = q.shape
    hidden = scoring.hidden(heads, queries, k.shape[1])
    return (~hidden).expand(batch, heads, queries, k.shape[1]).contiguous()


def dense_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, scoring: Scoring
) -> tuple[Tensor | None, ...]:
    """The gradients of q, k and v; with dropout none is determined unless what it kept is known."""
    if not scoring.determined:
        return None, None, None
    grads = tuple(torch.zeros_like(upcast(t)) for t in (q, k, v))
    for b in range(q.shape[0]):
        own = scoring.of_sequence(b, q.shape[1], k.shape[1])
        for whole, piece in zip(grads, _attend_backward(grad[b], q[b], k[b], v[b], out[b], own), strict=True):
            whole[b] = piece
    return tuple(g.to(q.dtype) for g in grads)


# ---- packed sequences ----


def packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cumulative_q: Tensor | Sequence[int],
    cumulative_k: Tensor | Sequence[int],
    longest: int,
    scoring: Scoring,
) -> tuple[Tensor | None, Tensor | None]:
    """Output, and the logarithm of the softmax's divisor [batch, heads, longest]: zero behind the end of a sequence."""
    out, scores = _packed(q, k, v, _spans(cumulative_q), _spans(cumulative_k), scoring)
    lse = upcast(q).new_zeros(len(scores), q.shape[1], longest)
    for b, own in enumerate(scores):
        lse[b, :, : own.shape[1]] = own.logsumexp(-1)
    return (out.to(q.dtype) if scoring.determined else None), _judgeable(lse, scoring)


def _packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    spans_q: list[tuple[int, int]],
    spans_k: list[tuple[int, int]],
    scoring: Scoring,
) -> tuple[Tensor, list[Tensor]]:
    """Output and the scores of each sequence."""
    out = upcast(q).new_zeros(*q.shape[:2], v.shape[2])
    scores = []
    for b, ((q0, q1), (k0, k1)) in enumerate(zip(spans_q, spans_k, strict=True)):
        own = scoring.of_sequence(b, q1 - q0, k1 - k0)
        out[q0:q1], seen = _attend(upcast(q[q0:q1]), upcast(k[k0:k1]), upcast(v[k0:k1]), own)
        scores.append(seen)
    return out, scores


def packed_visible(
    q: Tensor,
    cumulative_q: Tensor,
    cumulative_k: Tensor,
    longest_q: int,
    longest_k: int,
    scoring: Scoring,
    wanted: bool,
) -> Tensor | None:
    """The debugging mask of packed sequences [batch, heads, longest query, longest key]."""
    if not wanted or not scoring.determined:
        return None
    spans = list(zip(_spans(cumulative_q), _spans(cumulative_k), strict=True))
    visible = torch.zeros(len(spans), q.shape[1], longest_q, longest_k, dtype=torch.bool)
    for b, ((q0, q1), (k0, k1)) in enumerate(spans):
        visible[b, :, : q1 - q0, : k1 - k0] = ~scoring.hidden(q.shape[1], q1 - q0, k1 - k0)
    return visible


def packed_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    cumulative_q: Tensor | Sequence[int],
    cumulative_k: Tensor | Sequence[int],
    scoring: Scoring,
) -> tuple[Tensor | None, ...]:
    """The gradients of packed q, k and v; with dropout none is determined unless what it kept is known."""
    if not scoring.determined:
        return None, None, None
    grads = tuple(torch.zeros_like(upcast(t)) for t in (q, k, v))
    spans = zip(_spans(cumulative_q), _spans(cumulative_k), strict=True)
    for b, ((q0, q1), (k0, k1)) in enumerate(spans):
        own = scoring.of_sequence(b, q1 - q0, k1 - k0)
        made = _attend_backward(grad[q0:q1], q[q0:q1], k[k0:k1], v[k0:k1], out[q0:q1], own)
        for whole, piece, span in zip(grads, made, ((q0, q1), (k0, k1), (k0, k1)), strict=True):
            whole[span[0] : span[1]] += piece
    return tuple(g.to(q.dtype) for g in grads)


# ---- the customized functions: layouts by name, masks, saved maxima and sums ----


def _by_length(tensor: Tensor, layout: str, heads: int) -> Tensor:
    """Any of the four layouts as [batch, length, heads, width]."""
    match layout:
        case "BSND":
            return tensor
        case "BNSD":
            return tensor.transpose(1, 2)
        case "BSH":
            return tensor.unflatten(2, (heads, -1))
        case "SBH":
            return tensor.transpose(0, 1).unflatten(2, (heads, -1))
    raise ValueError(f"{layout!r} is not a layout; known are BSND, BNSD, BSH and SBH")


def _in_layout(tensor: Tensor, layout: str) -> Tensor:
    """[batch, length, heads, width] in one of the four layouts."""
    match layout:
        case "BNSD":
            return tensor.transpose(1, 2).contiguous()
        case "BSH":
            return tensor.flatten(2)
        case "SBH":
            return tensor.transpose(0, 1).flatten(2)
    return tensor


def _key_heads(q: Tensor, k: Tensor, layout: str, heads: int) -> int:
    """A layout without a dimension for heads: all heads of q and k are equally wide."""
    return heads * k.shape[2] // q.shape[2] if layout in ("BSH", "SBH") else k.shape[2]


def _saved(scores: Tensor) -> Pair:
    """The maximum and the sum of every row, eight times each."""
    largest = scores.amax(-1)
    total = (scores - largest[..., None]).exp().sum(-1)
    shape = (*largest.shape, SAVED_WIDTH)
    return largest[..., None].expand(shape).contiguous(), total[..., None].expand(shape).contiguous()


def customized_attention(
    q: Tensor, k: Tensor, v: Tensor, scoring: Scoring, heads: int, layout: str
) -> tuple[Tensor | None, ...]:
    """Output, (dropout's choice), maxima, sums, (weights): those in brackets are the implementation's own."""
    key_heads = _key_heads(q, k, layout, heads)
    out, scores = _dense(
        _by_length(q, layout, heads),
        _by_length(k, layout, key_heads),
        _by_length(v, layout, key_heads),
        scoring,
    )
    largest, total = _saved(scores)
    shown = _in_layout(out, layout).to(q.dtype) if scoring.determined else None
    return shown, None, largest, total, None


def customized_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, scoring: Scoring, heads: int, layout: str
) -> tuple[Tensor | None, ...]:
    """The gradients of q, k and v in their layout."""
    key_heads = _key_heads(q, k, layout, heads)
    widths = (heads, heads, key_heads, key_heads, heads)
    dense = [_by_length(t, layout, n) for t, n in zip((grad, q, k, v, out), widths, strict=True)]
    grads = dense_attention_backward(dense[0], dense[1], dense[2], dense[3], dense[4], scoring)
    return tuple(g if g is None else _in_layout(g, layout) for g in grads)


def customized_packed_attention(
    q: Tensor, k: Tensor, v: Tensor, ends_q: Sequence[int], ends_k: Sequence[int], scoring: Scoring
) -> tuple[Tensor | None, ...]:
    """As customized_attention for packed sequences, which end at `ends`; maxima and sums are [total, heads, 8]."""
    out, scores = _packed(q, k, v, _spans([0, *ends_q]), _spans([0, *ends_k]), scoring)
    saved = [_saved(own.transpose(0, 1)) for own in scores if own.shape[1]]
    largest, total = (torch.cat([pair[i] for pair in saved]) for i in range(2))
    return (out.to(q.dtype) if scoring.determined else None), None, largest, total, None
