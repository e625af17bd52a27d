"""Moves numbers by about one rounding, reproducibly and without touching anybody's random state."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch._decomp import get_decompositions
from torch.utils._python_dispatch import TorchDispatchMode

from op_tools.categories import category_of

# One rounding of float32, the arithmetic in which half dtypes are computed too.
ROUNDING = 2.0**-24
# Drawing numbers costs more than multiplying by them: drawn once, used again from another offset each time.
_POOL_SIZE = 1048573  # a prime: rows of a matrix never meet the same numbers
_STRIDE = 7919


@lru_cache(maxsize=4)
def _pool(device: str) -> torch.Tensor:
    """Uniform noise of RMS 1."""
    generator = torch.Generator(device).manual_seed(20240607)
    noise = torch.empty(_POOL_SIZE, dtype=torch.float64, device=device)
    return noise.uniform_(-1, 1, generator=generator).mul_(3**0.5)


class Factors:
    """Multiplies tensors by 1 + noise of RMS `size`; the same seed gives the same factors."""

    def __init__(self, seed: int, size: float) -> None:
        self._offset = seed * _STRIDE * 31 % _POOL_SIZE
        self._size = size

    def applied(self, value: Any) -> Any:
        """A float64 tensor, moved; anything else as it is."""
        is_exact = isinstance(value, torch.Tensor) and value.dtype in (torch.float64, torch.complex128)
        if not is_exact or value.layout != torch.strided:
            return value
        if value.is_complex():
            return torch.view_as_complex(self.applied(torch.view_as_real(value.resolve_conj()).contiguous()))
        noise = self._taken(value.numel(), str(value.device)).view(value.shape)
        # A factor, and not value + value * noise: that is nan for infinities, which masks are made of.
        return value * noise.mul(self._size).add_(1)

    def _taken(self, count: int, device: str) -> torch.Tensor:
        pool = _pool(device)
        start = self._offset
        self._offset = (self._offset + count + _STRIDE) % _POOL_SIZE
        if start + count <= _POOL_SIZE:
            return pool[start : start + count]
        return pool.roll(-start).repeat(-(-count // _POOL_SIZE))[:count]


def shortened(value: Any, bits: int, *, nearest: bool) -> Any:
    """A float64 tensor with so many significant bits, rounded to nearest or cut off; anything else as it is."""
    if not isinstance(value, torch.Tensor) or value.dtype != torch.float64:
        return value
    lost = 53 - bits
    pattern = value.contiguous().view(torch.int64)
    if nearest:
        pattern = pattern + (1 << (lost - 1))
    short = (pattern & -(1 << lost)).view(torch.float64)
    return torch.where(value.isfinite(), short, value)


@lru_cache(maxsize=1)
def _fused() -> dict[Any, Callable[..., Any]]:
    """Operators whose elements share sums of many others, and torch's own formulas for them."""
    aten = torch.ops.aten
    operators = [
        *(aten.native_batch_norm, aten.native_group_norm, aten.native_layer_norm),
        *(aten.native_batch_norm_backward, aten.native_group_norm_backward, aten.native_layer_norm_backward),
        *(aten._softmax, aten._softmax_backward_data, aten._log_softmax, aten._log_softmax_backward_data),
    ]
    return get_decompositions(operators)


class InnerRoundings(TorchDispatchMode):
    """Moves the result of every operator that makes one, forward and backward, as its rounding would.

    Cancellation blows up inner roundings (one minus a saturated softmax) that moving the inputs never shows. `fused`: so do
    the sums inside of operators that fuse several, which are run in steps.
    """

    def __init__(self, factors: Factors, *, fused: bool = False) -> None:
        super().__init__()
        self._factors = factors
        self._fused = fused
        self.has_fused = False  # whether there was one

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._fused and func in _fused():
            self.has_fused = True
            with self:
                return _fused()[func](*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        if not _computes(func):
            return result
        if isinstance(result, torch.Tensor):
            return self._factors.applied(result)
        if type(result) is tuple:
            return tuple(self._factors.applied(value) for value in result)
        return result


@lru_cache(maxsize=4096)
def _computes(func: Callable[..., Any]) -> bool:
    """Makes new values: no view, no writing, no plain copy."""
    if not isinstance(func, torch._ops.OpOverload) or func._schema.is_mutable:
        return False
    if any(value.alias_info is not None for value in func._schema.returns):
        return False
    if func.overloadpacket is torch.ops.aten.round:  # 2.9999999 stored as an integer is 2
        return False
    return category_of(func, str(func)) not in ("movement", "view", "index", "uninitialised", "random")
