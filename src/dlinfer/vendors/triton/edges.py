"""What kernels of attention do before and after `tiles`: queries, heads of caches, results. `F` is a `Form`."""

from __future__ import annotations

import triton.language as tl  # type: ignore[import-not-found]

from dlinfer.vendors.triton.language import jit
from dlinfer.vendors.triton.tiles import elements


@jit
def queries(
    query: tl.tensor,
    rows: tl.tensor,
    valid: tl.tensor,
    element: tl.tensor,
    scales: tl.tensor,
    F: tl.constexpr,
    SECOND: tl.constexpr,
) -> tl.tensor:
    """A part of rows of queries; scales of single elements of the keys are multiplied in."""
    d, exists = elements(F, False, SECOND)
    q = tl.load(query + rows[:, None] + d[None, :] * element, mask=valid[:, None] & exists[None, :], other=0)
    if F.each:
        factor = tl.load(scales + d, mask=exists, other=0).to(tl.float32)
        q = (q.to(tl.float32) * factor[None, :]).to(q.dtype)
    return q


@jit
def parameters(
    at: tl.tensor, element: tl.tensor, F: tl.constexpr, VALUES: tl.constexpr, SECOND: tl.constexpr
) -> tl.tensor:
    """Scales or zeros of a part of a head."""
    d, exists = elements(F, VALUES, SECOND)
    return tl.load(at + d * element, mask=exists, other=0).to(tl.float32)


@jit
def side_of(
    base: tl.tensor,
    head: tl.tensor,
    block: tl.tensor,
    place: tl.tensor,
    head_stride: tl.tensor,
    element: tl.tensor,
    zeros: tl.tensor,
    scale_head: tl.tensor,
    scale_element: tl.tensor,
    F: tl.constexpr,
    VALUES: tl.constexpr,
) -> tuple[tl.tensor, ...]:
    """One head of a cache, as `tiles` has it."""
    zero0 = head
    zero1 = head
    if F.zeros:
        zero0 = parameters(zeros + head * scale_head, scale_element, F, VALUES, False)
        if (F.v1 if VALUES else F.k1) > 0:
            zero1 = parameters(zeros + head * scale_head, scale_element, F, VALUES, True)
    return base + head.to(tl.int64) * head_stride, block, place, element, zero0, zero1


@jit
def nothing_yet(F: tl.constexpr) -> tuple[tl.tensor, ...]:
    """The state before the first key."""
    m = tl.full([F.rows], float("-inf"), tl.float32)
    total = tl.full([F.rows], 0.0, tl.float32)
    acc0 = tl.full([F.rows, F.v0], 0.0, tl.float32)
    acc1 = tl.full([F.rows, F.v1 if F.v1 > 0 else 1], 0.0, tl.float32)
    return m, total, acc0, acc1, tl.full([F.keys], 0, tl.int32)


@jit
def store_part(
    to: tl.tensor,
    element: tl.tensor,
    valid: tl.tensor,
    acc: tl.tensor,
    total: tl.tensor,
    bad: tl.tensor,
    scales: tl.tensor,
    scale_element: tl.tensor,
    F: tl.constexpr,
    SECOND: tl.constexpr,
) -> None:
    """Weighted values over the sum of weights; a row that saw nothing is 0, one with a bad table NaN."""
    d, exists = elements(F, True, SECOND)
    result = acc / tl.where(total == 0, 1.0, total)[:, None]
    if F.bits > 0:
        result = result * parameters(scales, scale_element, F, True, SECOND)[None, :]
    result = tl.where(bad != 0, float("nan"), result).to(to.dtype.element_ty)
    tl.store(to[:, None] + d[None, :] * element, result, mask=valid[:, None] & exists[None, :])
