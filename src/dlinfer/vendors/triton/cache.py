"""Writing keys and values into paged caches, quantised on the way if the cache is."""

from __future__ import annotations

import torch
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

from dlinfer.interface.declaration import FillQuantisation
from dlinfer.vendors.triton.arithmetic import rounded
from dlinfer.vendors.triton.launching import Launcher, beside, cdiv, jit, kernel, power_above

# Elements that one program writes.
_ELEMENTS = 1024


@jit
def _stored(
    x: tl.tensor,
    scale: tl.tensor,
    zero: tl.tensor,
    at: tl.tensor,
    inside: tl.tensor,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
) -> tl.tensor:
    """A quantised element as a whole number in float32; `at` is where its scale and zero lie."""
    number = tl.math.div_rn(x, tl.load(scale + at, mask=inside, other=1).to(tl.float32))
    if zero is not None:
        number += tl.load(zero + at, mask=inside, other=0).to(tl.float32)
    return rounded(tl.minimum(tl.maximum(number, LOW), HIGH))


@jit
def _write(
    states: tl.tensor,
    cache: tl.tensor,
    scale: tl.tensor,
    zero: tl.tensor,
    size: tl.tensor,
    head: tl.tensor,
    heads: tl.tensor,
    head_stride: tl.tensor,
    element_stride: tl.tensor,
    cache_head: tl.tensor,
    cache_element: tl.tensor,
    head_scale: tl.tensor,
    element_scale: tl.tensor,
    BITS: tl.constexpr,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
    SIZE: tl.constexpr,
) -> None:
    """The heads of one token; `states` and `cache` point to it."""
    stored = size // 2 if BITS == 4 else size
    d = tl.arange(0, SIZE)[None, :]
    h = head[:, None]
    inside = (h < heads) & (d < stored)
    row = states + h * head_stride + d * element_stride
    to = cache + h * cache_head + d * cache_element
    x = tl.load(row, mask=inside, other=0)
    if BITS == 0:
        tl.store(to, x, mask=inside)
    else:
        at = h * head_scale + d * element_scale
        number = _stored(x.to(tl.float32), scale, zero, at, inside, LOW, HIGH)
        if BITS == 4:
            y = tl.load(row + stored * element_stride, mask=inside, other=0).to(tl.float32)
            number += 16 * _stored(y, scale, zero, at + stored * element_scale, inside, LOW, HIGH)
        # Through int32: floats do not become unsigned bytes everywhere.
        tl.store(to, number.to(tl.int32).to(cache.dtype.element_ty), mask=inside)


@Launcher
def _fill_kernel(
    key: tl.tensor,
    key_cache: tl.tensor,
    value: tl.tensor,
    value_cache: tl.tensor,
    slots: tl.tensor,
    key_scale: tl.tensor,
    key_zero: tl.tensor,
    value_scale: tl.tensor,
    value_zero: tl.tensor,
    blocks: tl.tensor,
    block_size: tl.tensor,
    heads: tl.tensor,
    size: tl.tensor,
    size_v: tl.tensor,
    k0: tl.tensor,
    k1: tl.tensor,
    k2: tl.tensor,
    v0: tl.tensor,
    v1: tl.tensor,
    v2: tl.tensor,
    kc0: tl.tensor,
    kc1: tl.tensor,
    kc2: tl.tensor,
    kc3: tl.tensor,
    vc0: tl.tensor,
    vc1: tl.tensor,
    vc2: tl.tensor,
    vc3: tl.tensor,
    ks_head: tl.tensor,
    ks_element: tl.tensor,
    vs_head: tl.tensor,
    vs_element: tl.tensor,
    BITS: tl.constexpr,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_V: tl.constexpr,
) -> None:
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    block = slot // block_size
    offset = slot % block_size
    # A slot that does not exist is left out like -1.
    if (slot >= 0) & (block < blocks):
        head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
        _write(
            key + token * k0, key_cache + block * kc0 + offset * kc1, key_scale, key_zero, size, head, heads,
            k1, k2, kc2, kc3, ks_head, ks_element, BITS, LOW, HIGH, SIZE,
        )  # fmt: skip
        if value is not None:
            _write(
                value + token * v0, value_cache + block * vc0 + offset * vc1, value_scale, value_zero, size_v, head,
                heads, v1, v2, vc2, vc3, vs_head, vs_element, BITS, LOW, HIGH, SIZE_V,
            )  # fmt: skip


def matched(
    scale: Tensor | None, zero: Tensor | None, heads: int, size: int
) -> tuple[Tensor | None, Tensor | None, int, int]:
    """Scale and zero with as many elements, and the strides of heads and of elements."""
    if scale is None:
        return None, None, 0, 0
    if zero is not None and zero.numel() != scale.numel():
        scale, zero = _expanded(scale, heads, size), _expanded(zero, heads, size)
    count = scale.numel()
    strides = (0, 0) if count == 1 else (1, 0) if count == heads else (size, 1)
    return scale.contiguous(), None if zero is None else zero.contiguous(), *strides


def _expanded(parameter: Tensor, heads: int, size: int) -> Tensor:
    rows = parameter.reshape(1, 1) if parameter.numel() == 1 else parameter.reshape(heads, -1)
    return rows.expand(heads, size)


@kernel("fill_kv_cache")
def fill_kv_cache(
    key: Tensor,
    key_cache: Tensor,
    value: Tensor | None,
    value_cache: Tensor | None,
    kv_indices: Tensor,
    quantisation: FillQuantisation,
) -> None:
    key_scale, key_zero, value_scale, value_zero, quant_bits = quantisation
    tokens, heads, size = key.shape
    if not tokens or not heads:
        return
    size_v = 0 if value is None else value.shape[2]
    ks, kz, ks_head, ks_element = matched(key_scale if quant_bits else None, key_zero, heads, size)
    vs, vz, vs_head, vs_element = matched(value_scale if quant_bits else None, value_zero, heads, size_v)
    low, high = (0, 15) if quant_bits == 4 else (-128, 127) if key_cache.dtype == torch.int8 else (0, 255)
    share = 2 if quant_bits == 4 else 1
    width, width_v = power_above(size // share), power_above(max(size_v // share, 1))
    each = max(1, min(power_above(heads), _ELEMENTS // width))
    strides = (0, 0, 0) if value is None else value.stride()
    pages = (0, 0, 0, 0) if value_cache is None else value_cache.stride()
    _fill_kernel(
        (tokens, cdiv(heads, each)),
        (key, key_cache, value, value_cache, beside(kv_indices, key.device), ks, kz, vs, vz),
        (
            *key_cache.shape[:2], heads, size, size_v, *key.stride(), *strides, *key_cache.stride(), *pages,
            ks_head, ks_element, vs_head, vs_element,
        ),
        BITS=quant_bits, LOW=float(low), HIGH=float(high), HEADS=each, SIZE=width, SIZE_V=width_v,
        num_warps=min(4, max(1, each * width // 128)),
    )  # fmt: skip
