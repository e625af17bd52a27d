"""Samples of element-wise functions: arithmetic, powers, activations, their gradients, lists of tensors."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from diopi.conformance.samples import Maker, Sample, number, samples, table

LARGE = 5003  # more elements than any short way of a kernel takes, and no multiple of a vector's length


def both_forms(*names: str) -> list[str]:
    """The functions and their in-place forms."""
    return [form for name in names for form in (name, f"{name}Inp")]


def scalar_forms(*names: str) -> list[str]:
    """The same with a number as the second operand."""
    return [name + form for name in names for form in ("Scalar", "InpScalar")]


def written(make: Maker) -> bool:
    """Whether the first operand is written: then no two of its elements may share memory."""
    return "Inp" in make.function


def operand(make: Maker, *shape: int, low: float | None = None, high: float | None = None) -> torch.Tensor:
    """The operand that an in-place form writes."""
    return make(*shape, low=low, high=high, written=written(make))


def _unary(make: Maker, low: float | None = None, high: float | None = None) -> Iterator[Sample]:
    yield {"input": operand(make, 5, 7)}
    yield {"input": operand(make, 2, 3, 4, 5)}
    yield {"input": operand(make, 3, 17, low=low, high=high)}
    yield {"input": operand(make)}
    yield {"input": operand(make, 0, 3)}
    yield {"input": operand(make, LARGE)}


@samples(
    *both_forms("diopiNeg", "diopiAbs", "diopiFloor", "diopiCeil", "diopiExp", "diopiExpm1", "diopiSin"),
    *both_forms("diopiCos", "diopiTan", "diopiAtan", "diopiSinh", "diopiCosh", "diopiTanh", "diopiAsinh"),
    *both_forms("diopiSigmoid", "diopiErf", "diopiRelu", "diopiSilu", "diopiHardswish", "diopiSgn"),
    "diopiSign",
    "diopiConj",
)
def unary(make: Maker) -> Iterator[Sample]:
    """Defined everywhere; some values of them leave the range where the function changes much."""
    yield from _unary(make, -20.0, 20.0)


@samples(*both_forms("diopiLog", "diopiLog2", "diopiLog10", "diopiLog1p", "diopiSqrt", "diopiRsqrt"))
@samples(*both_forms("diopiReciprocal"))
def of_positive(make: Maker) -> Iterator[Sample]:
    """Logarithms, roots, reciprocals: positive numbers, and what gives NaN and infinities."""
    yield from _unary(make, 0.001, 50.0)


@samples(*both_forms("diopiAsin", "diopiAcos", "diopiAtanh", "diopiErfinv"))
def of_fractions(make: Maker) -> Iterator[Sample]:
    """Defined between -1 and 1."""
    yield from _unary(make, -1.0, 1.0)


@samples(*both_forms("diopiAcosh"))
def of_more_than_one(make: Maker) -> Iterator[Sample]:
    """Defined from 1 on."""
    yield from _unary(make, 1.0, 30.0)


# ---- activations with attributes ----


table(
    "diopiThreshold diopiThresholdInp",
    "input threshold value",
    ((5, 7), 0, 0),
    ((3, 2, 9), 1, 7),
    ((), 0, 3),
    ((0, 2), 0, 1),
    ((LARGE,), 2, 5),
    floating=[((4, 6), -0.5, 0.25)],
)


@samples("diopiThresholdBackward")
def threshold_backward(make: Maker) -> Iterator[Sample]:
    """The gradient passes where the threshold is exceeded."""
    for shape, limit in [((5, 7), 0), ((3, 2, 9), 1), ((), 0), ((0, 2), 0), ((LARGE,), 2)]:
        yield {"grad_output": make(*shape), "input": make(*shape), "threshold": limit}
    if make.floating:
        yield {"grad_output": make(4, 6), "input": make(4, 6), "threshold": -0.25}


@samples("diopiGelu", "diopiGeluBackward")
def gelu(make: Maker) -> Iterator[Sample]:
    """Both formulas."""
    for approximate in ("none", "tanh"):
        for shape in [(5, 7), (2, 3, 9), (LARGE,)]:
            yield _maybe_gradient(make, shape) | {"approximate": approximate}
    yield _maybe_gradient(make, ()) | {"approximate": "none"}
    yield _maybe_gradient(make, (3, 0)) | {"approximate": "tanh"}


def _maybe_gradient(make: Maker, shape: tuple[int, ...]) -> Sample:
    """The input of an activation, and for its backward form the gradient of its output."""
    sample: Sample = {"input": operand(make, *shape)}
    if "Backward" in make.function:
        sample["grad_output"] = make(*shape)
    return sample


table(
    "diopiLeakyRelu diopiLeakyReluInp",
    "input negative_slope",
    ((5, 7), 0.01),
    ((2, 3, 4, 5), 0.5),
    ((), 2),
    ((0, 4), 0.01),
    ((LARGE,), -0.25),
    ((9,), 0),
)
# From the input and from the result, which have the same signs where the slope is positive.
table(
    "diopiLeakyReluBackward",
    "grad_output input negative_slope input_is_result",
    ((5, 7), (5, 7), 0.01, False),
    ((2, 3, 9), (2, 3, 9), 0.5, True),
    ((), (), 2, False),
    ((0, 4), (0, 4), 0.01, False),
    ((LARGE,), (LARGE,), -0.25, False),
)


@samples(*both_forms("diopiHardtanh"), "diopiHardtanhBackward")
def hardtanh(make: Maker) -> Iterator[Sample]:
    """Limits on both sides; an unsigned dtype has no negative ones."""
    low = 0 if make.dtype == torch.uint8 else -1
    yield _maybe_gradient(make, (5, 7)) | {"min_val": low, "max_val": 1}
    yield _maybe_gradient(make, (2, 3, 9)) | {"min_val": 0, "max_val": 6}
    yield _maybe_gradient(make, (LARGE,)) | {"min_val": low * 2, "max_val": 3}
    yield _maybe_gradient(make, ()) | {"min_val": low, "max_val": 1}
    yield _maybe_gradient(make, (0, 3)) | {"min_val": low, "max_val": 1}
    if make.floating:
        yield _maybe_gradient(make, (4, 6)) | {"min_val": -0.25, "max_val": 0.75}


@samples("diopiHardswishBackward", "diopiSiluBackward")
def from_input(make: Maker) -> Iterator[Sample]:
    """Gradients from the input of the activation."""
    for shape in [(5, 7), (2, 3, 4, 5), (), (0, 3), (LARGE,)]:
        yield {"grad_output": make(*shape), "input": make(*shape)}
    yield {"grad_output": make(7, 5), "input": make(7, 5, low=-5.0, high=5.0)}


@samples("diopiTanhBackward", "diopiSigmoidBackward")
def from_result(make: Maker) -> Iterator[Sample]:
    """Gradients from the result of the activation."""
    for shape in [(5, 7), (2, 3, 4, 5), (), (0, 3), (LARGE,)]:
        yield {"grad_output": make(*shape), "output": make(*shape, low=0.0, high=1.0)}
    yield {"grad_output": make(7, 5), "output": make(7, 5)}


# ---- two operands ----

# The shapes of two operands that broadcast; an in-place form takes those whose result has the first one's.
Shapes = list[tuple[tuple[int, ...], tuple[int, ...]]]
PAIRS: Shapes = [
    ((3, 17), (3, 17)),
    ((4, 5, 6), (6,)),
    ((2, 3, 4, 5), (1, 3, 1, 1)),
    ((LARGE,), (LARGE,)),
    ((5, 1), (5, 1)),
    ((5, 1), (1, 7)),
    ((), ()),
    ((0, 3), (3,)),
    ((4, 3), ()),
]
# A few of them: the result always has the first one's shape.
BROADCAST: Shapes = [((3, 17), (3, 17)), ((4, 5, 6), (6,)), ((LARGE,), (LARGE,)), ((), ()), ((0, 3), (3,))]


def pairs(make: Maker, *, count: int = 9) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Shapes of two operands that the function takes."""
    for first, second in PAIRS[:count]:
        if not written(make) or torch.broadcast_shapes(first, second) == first:
            yield first, second


@samples(*both_forms("diopiAdd", "diopiSub"))
def additive(make: Maker) -> Iterator[Sample]:
    """The factor of the second operand is one, whole or not whole."""
    factors = [1, 2, -0.5] if make.floating else [1] if make.dtype == torch.bool else [1, 2, 3]
    for position, (first, second) in enumerate(pairs(make)):
        alpha = factors[position % len(factors)]
        yield {"input": operand(make, *first), "other": make(*second), "alpha": alpha}
    if make.dtype == torch.float32:  # operands of two dtypes
        other = make(4, 6, dtype=torch.float16)
        yield {"input": operand(make, 4, 6), "other": other, "alpha": 1}


@samples(*scalar_forms("diopiAdd", "diopiSub"))
def additive_scalar(make: Maker) -> Iterator[Sample]:
    """A number as the second operand."""
    for shape, other, alpha in [((5, 7), 2, 1), ((), 3, 2), ((0, 4), 1, 1), ((LARGE,), 5, 1)]:
        yield {"input": operand(make, *shape), "other": other, "alpha": alpha}
    if "Add" in make.function:  # a boolean is not subtracted
        yield {"input": operand(make, 2, 3, 9), "other": True, "alpha": 1}
    if make.floating:
        yield {"input": operand(make, 4, 6), "other": -0.75, "alpha": 0.5}


@samples(*both_forms("diopiMul", "diopiBitwiseAnd", "diopiBitwiseOr"), "diopiMaximum", "diopiMinimum")
def binary(make: Maker) -> Iterator[Sample]:
    """Two tensors, broadcast."""
    for first, second in pairs(make):
        yield {"input": operand(make, *first), "other": make(*second)}


table(
    "diopiMulScalar diopiMulInpScalar",
    "input other",
    *[((5, 7), 2), ((), 3), ((0, 4), 1), ((LARGE,), 5), ((2, 3, 9), 0), ((2, 3, 9), True)],
    floating=[((4, 6), -0.75)],
)


def _roundings(make: Maker) -> list[int]:
    """Complex numbers are not rounded; a quotient that is not rounded has no place in a tensor of whole numbers."""
    if make.dtype.is_complex:
        return [0]
    return [1, 2] if written(make) and not make.floating else [0, 1, 2]


@samples(*both_forms("diopiDiv"))
def divided(make: Maker) -> Iterator[Sample]:
    """Each rounding; whole numbers are not divided by zero."""
    for mode in _roundings(make):
        for first, second in pairs(make, count=4 if mode else 9):
            other = make(*second) if make.floating else make.positive(*second)
            yield {"input": operand(make, *first), "other": other, "rounding_mode": mode}


@samples(*scalar_forms("diopiDiv"))
def divided_by_number(make: Maker) -> Iterator[Sample]:
    """Each rounding, a number as the divisor."""
    for mode in _roundings(make):
        for shape, other in [((5, 7), 3), ((), 2), ((0, 4), 2), ((LARGE,), number(make, -0.75, 7))]:
            yield {"input": operand(make, *shape), "other": other, "rounding_mode": mode}


@samples("diopiRemainderTensor")
def remainder_of_tensors(make: Maker) -> Iterator[Sample]:
    """The remainder has the sign of the divisor."""
    for first, second in pairs(make):
        other = make(*second) if make.floating else make.positive(*second)
        yield {"input": make(*first), "other": other}
    if make.dtype not in (torch.uint8, torch.bool):
        yield {"input": make(4, 6, low=-9, high=9), "other": make(4, 6, low=-7, high=-1)}


@samples("diopiRemainderScalar")
def remainder_by_number(make: Maker) -> Iterator[Sample]:
    """A number as the divisor."""
    for shape, other in [((5, 7), 3), ((), 2), ((0, 4), 2), ((LARGE,), 7)]:
        yield {"input": make(*shape), "other": other}
    if make.dtype != torch.uint8:
        yield {"input": make(4, 6), "other": number(make, -0.75, -4)}


@samples("diopiRemainder")
def remainder_of_number(make: Maker) -> Iterator[Sample]:
    """A number that is divided by every element."""
    for shape, value in [((5, 7), 10), ((), 7), ((0, 4), 2), ((LARGE,), 23)]:
        yield {"input": value, "other": make.positive(*shape)}
    if make.floating:
        yield {"input": -3.5, "other": make(4, 6)}


# ---- powers: whole numbers stay small, and have no negative exponents ----


def _base(make: Maker, *shape: int) -> torch.Tensor:
    return operand(make, *shape) if make.floating else operand(make, *shape, low=-3, high=3)


def _exponent(make: Maker, *shape: int) -> torch.Tensor:
    return make(*shape, low=-2.5, high=2.5) if make.floating else make(*shape, low=0, high=3)


@samples("diopiPow", "diopiPowInp")
def power(make: Maker) -> Iterator[Sample]:
    """The exponents that kernels treat specially, and others."""
    exponents = [2, 3, 0, 1] + ([0.5, -0.5, -1, -2, 1.7] if make.floating else [])
    for position, exponent in enumerate(exponents):
        yield {"input": _base(make, 3, 5 + position), "exponent": exponent}
    for shape in [(), (0, 3), (LARGE,)]:
        yield {"input": _base(make, *shape), "exponent": 2}


@samples("diopiPowTensor", "diopiPowInpTensor")
def power_of_tensors(make: Maker) -> Iterator[Sample]:
    """Both are tensors; positive bases have real powers."""
    for first, second in pairs(make):
        yield {"input": _base(make, *first), "exponent": _exponent(make, *second)}
    if make.floating:
        positive = make.positive(4, 6, written=written(make))
        yield {"input": positive, "exponent": _exponent(make, 4, 6)}


@samples("diopiPowScalar")
def power_of_number(make: Maker) -> Iterator[Sample]:
    """A number as the base; one is treated specially."""
    for shape, value in [((5, 7), 2), ((), 3), ((0, 3), 2), ((LARGE,), 1), ((2, 3, 9), 0)]:
        yield {"input": value, "exponent": _exponent(make, *shape)}
    if make.floating:
        yield {"input": 0.7, "exponent": make(4, 6)}


# ---- three operands ----


@samples(*both_forms("diopiAddcmul", "diopiAddcdiv"))
def product_added(make: Maker) -> Iterator[Sample]:
    """The first operand plus a factor times the product or quotient of two."""
    for (first, second), value in zip(BROADCAST, [1, 2, number(make, -0.5, 3), 1, 2], strict=True):
        added = operand(make, *first)
        yield {"input": added, "tensor1": make(*first), "tensor2": make.positive(*second), "value": value}
    yield {"input": operand(make, 5, 4), "tensor1": make(5, 1), "tensor2": make(4), "value": 1}


@samples("diopiLerpTensor")
def between_tensors(make: Maker) -> Iterator[Sample]:
    """Weights of every element."""
    for first, second in BROADCAST:
        yield {"input": make(*first), "end": make(*first), "weight": make(*second, low=0.0, high=1.0)}
    yield {"input": make(5, 1), "end": make(1, 4), "weight": make(5, 4)}


# One weight; kernels take another formula from a half on.
table(
    "diopiLerpScalar",
    "input end weight",
    ((3, 17), (3, 17), 0.25),
    ((4, 5, 6), (4, 5, 6), 0.75),
    ((LARGE,), (LARGE,), 0.5),
    ((), (), 1),
    ((0, 3), (0, 3), 0.1),
    ((7,), (7,), -2),
    ((5, 1), (4,), 0.3),
)
# A factor that float32 does not hold: it must arrive as the double that it is.
table(
    "diopiAddcmul diopiAddcmulInp diopiAddcdiv diopiAddcdivInp",
    "input tensor1 tensor2 value",
    floating=[((9, 7), (9, 7), lambda make: make.positive(9, 7), 1 / 3)],
)
