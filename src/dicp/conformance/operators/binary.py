"""Operators of one element each of several tensors, with and without broadcasting."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dicp.conformance.declaration import FLOATING, GRIDS, SHAPES, DrawnValues, operator
from dicp.conformance.programs import CallArguments

aten = torch.ops.aten

NUMBERS = (*FLOATING, torch.int32, torch.int64)
WHOLE = (torch.int32, torch.int64, torch.uint8)
ONE = SHAPES[:2]

for _overload in (
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.maximum.default, aten.minimum.default,
    aten.eq.Tensor, aten.ne.Tensor, aten.lt.Tensor, aten.le.Tensor, aten.gt.Tensor, aten.ge.Tensor,
):  # fmt: skip
    operator(_overload, lambda d: d(d.normal(), d.normal()), SHAPES, NUMBERS)
    # A row beside a column, and a tensor beside one element.
    operator(
        _overload,
        lambda d: d(d.normal(d.shape[0], 1), d.normal(d.shape[1])),
        GRIDS[:1],
        (torch.float32, torch.int64),
    )

for _overload in (aten.add.Tensor, aten.sub.Tensor):
    operator(_overload, lambda d: d(d.normal(), d.normal(), alpha=3), ONE, NUMBERS)
for _overload in (
    aten.add.Scalar, aten.sub.Scalar, aten.mul.Scalar, aten.eq.Scalar, aten.ne.Scalar, aten.lt.Scalar, aten.le.Scalar,
    aten.gt.Scalar, aten.ge.Scalar, aten.rsub.Scalar,
):  # fmt: skip
    operator(_overload, lambda d: d(d.normal(), 2), ONE, (torch.float32, torch.bfloat16, torch.int64))

# What Python's numbers do to a dtype: an integer tensor and a float give the default dtype.
operator(aten.add.Tensor, lambda d: d(d.normal(), 0.5), ONE, (torch.int64, torch.float16))
operator(aten.mul.Tensor, lambda d: d(d.normal(), 0.5), ONE, (torch.int64, torch.bfloat16))
# Two dtypes: the wider is the result's.
operator(aten.add.Tensor, lambda d: d(d.normal(), d.integers(-9, 9)), ONE, (torch.float32, torch.float16))
operator(aten.mul.Tensor, lambda d: d(d.normal(), d.normal().float()), ONE, (torch.bfloat16, torch.float16))

operator(aten.div.Tensor, lambda d: d(d.normal(), d.positive()), SHAPES, NUMBERS)
operator(aten.div.Scalar, lambda d: d(d.normal(), 3), ONE)


def _rounded(mode: str) -> Callable[[DrawnValues], CallArguments]:
    return lambda d: d(d.normal(), d.positive(), rounding_mode=mode)


for _mode in ("floor", "trunc"):
    operator(
        aten.div.Tensor_mode,
        _rounded(_mode),
        ONE,
        (torch.float32, torch.int64, torch.int32),
    )
operator(aten.floor_divide.default, lambda d: d(d.normal(), d.positive()), ONE, (torch.float32, torch.int64))
operator(aten.fmod.Tensor, lambda d: d(d.normal(), d.positive()), ONE, (torch.float32, torch.int64))
operator(aten.remainder.Tensor, lambda d: d(d.normal(), d.positive()), ONE, (torch.float32, torch.int64))
operator(aten.remainder.Scalar, lambda d: d(d.normal(), -3), ONE, (torch.float32, torch.int32))
operator(aten.pow.Tensor_Tensor, lambda d: d(d.positive(), d.normal()), ONE)
operator(aten.atan2.default, lambda d: d(d.normal(), d.normal()), ONE)
operator(aten.hypot.default, lambda d: d(d.normal(), d.normal()), ONE)
operator(aten.copysign.Tensor, lambda d: d(d.normal(), d.normal()), ONE)
operator(aten.fmax.default, lambda d: d(d.normal(), d.normal()), ONE)
operator(aten.fmin.default, lambda d: d(d.normal(), d.normal()), ONE)

for _overload in (aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.bitwise_xor.Tensor):
    operator(_overload, lambda d: d(d.normal(), d.normal()), ONE, (*WHOLE, torch.bool))
for _overload in (aten.bitwise_left_shift.Tensor, aten.bitwise_right_shift.Tensor):
    operator(
        _overload, lambda d: d(d.normal(), d.integers(0, 4, dtype=d.dtype)), ONE, (torch.int32, torch.int64)
    )
for _overload in (aten.logical_and.default, aten.logical_or.default, aten.logical_xor.default):
    operator(_overload, lambda d: d(d.normal(), d.normal()), ONE, (torch.bool, torch.int64, torch.float32))

operator(aten.where.self, lambda d: d(d.booleans(), d.normal(), d.normal()), SHAPES, NUMBERS)
operator(aten.where.self, lambda d: d(d.booleans(d.shape[1]), d.normal(d.shape[0], 1), d.normal()), GRIDS)
operator(aten.masked_fill.Scalar, lambda d: d(d.normal(), d.booleans(), -3.5))
operator(aten.masked_fill.Tensor, lambda d: d(d.normal(), d.booleans(), torch.tensor(2, dtype=d.dtype)))
operator(aten.lerp.Scalar, lambda d: d(d.normal(), d.normal(), 0.3))
operator(aten.lerp.Tensor, lambda d: d(d.normal(), d.normal(), d.uniform(0, 1)))
operator(aten.addcmul.default, lambda d: d(d.normal(), d.normal(), d.normal(), value=0.5))
operator(aten.addcdiv.default, lambda d: d(d.normal(), d.normal(), d.positive(), value=2))
operator(aten.xlogy.Tensor, lambda d: d(d.normal(), d.positive()), ONE)
operator(aten.logaddexp.default, lambda d: d(d.normal(), d.normal()), ONE)
operator(aten.mse_loss.default, lambda d: d(d.normal(), d.normal()), ONE)
operator(aten.smooth_l1_loss.default, lambda d: d(d.normal(), d.normal(), 1, 0.5), ONE, (torch.float32,))
operator(
    aten.binary_cross_entropy.default,
    lambda d: d(d.uniform(0.05, 0.95), d.uniform(0, 1)),
    ONE,
    (torch.float32,),
)
operator(
    aten.binary_cross_entropy_with_logits.default,
    lambda d: d(d.normal(), d.uniform(0, 1)),
    ONE,
    (torch.float32,),
)
