"""Operators of one element of one tensor."""

from __future__ import annotations

import torch

from dicp.conformance.declaration import FLOATING, SHAPES, operator

aten = torch.ops.aten

INTEGERS = (torch.int32, torch.int64)

# Defined everywhere, or nearly so.
for _overload in (
    aten.abs.default, aten.atan.default, aten.cos.default, aten.erf.default, aten.erfc.default, aten.exp.default,
    aten.exp2.default, aten.expm1.default, aten.neg.default, aten.reciprocal.default, aten.relu.default,
    aten.sigmoid.default, aten.sign.default, aten.silu.default, aten.sin.default, aten.sinh.default, aten.cosh.default,
    aten.tan.default, aten.tanh.default, aten.floor.default, aten.ceil.default, aten.trunc.default, aten.round.default,
    aten.isnan.default, aten.isinf.default, aten.signbit.default, aten.hardsigmoid.default, aten.hardswish.default,
    aten.mish.default, aten.square.default, aten.frac.default, aten.asinh.default, aten.log_sigmoid_forward.default,
):  # fmt: skip
    operator(_overload, lambda d: d(d.normal()))

for _overload in (
    aten.log.default, aten.log2.default, aten.log10.default, aten.log1p.default, aten.sqrt.default, aten.rsqrt.default,
    aten.lgamma.default,
):  # fmt: skip
    operator(_overload, lambda d: d(d.positive()))

for _overload in (aten.asin.default, aten.acos.default, aten.atanh.default):
    operator(_overload, lambda d: d(d.uniform(-0.95, 0.95)))

for _overload in (
    aten.abs.default,
    aten.neg.default,
    aten.sign.default,
    aten.relu.default,
    aten.square.default,
):
    operator(_overload, lambda d: d(d.normal()), SHAPES[:2], INTEGERS)

# Whole numbers in, floating ones out.
for _overload in (
    aten.exp.default,
    aten.sqrt.default,
    aten.reciprocal.default,
    aten.sigmoid.default,
    aten.tanh.default,
):
    operator(_overload, lambda d: d(d.positive()), SHAPES[:2], (torch.int64,))

operator(aten.bitwise_not.default, lambda d: d(d.normal()), SHAPES, (torch.int64, torch.int32, torch.bool))
operator(aten.logical_not.default, lambda d: d(d.normal()), SHAPES, (torch.float32, torch.int64, torch.bool))
operator(aten.clone.default, lambda d: d(d.normal()), SHAPES, (*FLOATING, *INTEGERS, torch.bool))
operator(
    aten._to_copy.default,
    lambda d: d(d.normal(), dtype=torch.float32),
    SHAPES,
    (torch.float16, torch.bfloat16),
)
operator(
    aten._to_copy.default, lambda d: d(d.normal(), dtype=torch.float16), SHAPES, (torch.float32, torch.int64)
)
operator(
    aten._to_copy.default, lambda d: d(d.normal(), dtype=torch.bfloat16), SHAPES, (torch.float32, torch.int32)
)
operator(
    aten._to_copy.default, lambda d: d(d.normal(), dtype=torch.int64), SHAPES, (torch.float32, torch.bool)
)
operator(
    aten._to_copy.default, lambda d: d(d.normal(), dtype=torch.bool), SHAPES, (torch.float32, torch.int32)
)

operator(aten.gelu.default, lambda d: d(d.normal()))
operator(aten.gelu.default, lambda d: d(d.normal(), approximate="tanh"))
operator(aten.elu.default, lambda d: d(d.normal(), 0.7))
operator(aten.leaky_relu.default, lambda d: d(d.normal(), 0.2))
operator(aten.hardtanh.default, lambda d: d(d.normal(), -0.5, 0.7))
operator(aten.softplus.default, lambda d: d(d.normal(), 1.5, 1.0))
operator(aten.threshold.default, lambda d: d(d.normal(), 0.1, -2.0))
operator(aten.clamp.default, lambda d: d(d.normal(), -0.5, 0.5))
operator(aten.clamp.default, lambda d: d(d.normal(), -3, 4), SHAPES[:2], INTEGERS)
operator(aten.clamp.Tensor, lambda d: d(d.normal(), -d.positive(), d.positive()), SHAPES[:2])
operator(aten.clamp_min.default, lambda d: d(d.normal(), 0.25))
operator(aten.clamp_max.default, lambda d: d(d.normal(), 0.25))
operator(aten.nan_to_num.default, lambda d: d(d.normal() / d.normal().round(), 0.5, 9.0, -9.0))
operator(aten.logit.default, lambda d: d(d.uniform(0.05, 0.95), 1e-3))
operator(aten.pow.Tensor_Scalar, lambda d: d(d.normal(), 2))
operator(aten.pow.Tensor_Scalar, lambda d: d(d.normal(), 3), SHAPES[:2], (torch.float32, torch.int64))
operator(aten.pow.Tensor_Scalar, lambda d: d(d.positive(), -0.5))
operator(aten.pow.Scalar, lambda d: d(1.7, d.normal()))
