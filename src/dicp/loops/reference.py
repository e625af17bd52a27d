"""What each primitive gives, on tensors of the CPU: the meaning that every vendor's code must have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from dicp.loops.primitives import FLOATS, PRIMITIVES, Number, Value, held, result_dtype

__all__ = ["TensorBuilder", "compute", "convert"]


def _floor_div(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="floor")


def _trunc_div(a: Tensor, b: Tensor) -> Tensor:
    return torch.div(a, b, rounding_mode="trunc")


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return (a.double() * b.double() + c.double()).to(a.dtype)


_FUNCTIONS: Mapping[str, Callable[..., Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in PRIMITIVES
        if hasattr(torch, name) and name not in ("select", "pow", "erfinv")
    },
    "select": torch.where,
    "pow": torch.pow,
    "erfinv": torch.erfinv,
    "floor_div": _floor_div,
    "trunc_div": _trunc_div,
    "shift_left": torch.bitwise_left_shift,
    "shift_right": torch.bitwise_right_shift,
    "fma": _fma,
}


def compute(primitive: str, *operands: Any, dtype: torch.dtype | None = None) -> Tensor:
    """A primitive of tensors and numbers, which take the dtype of the tensors beside them."""
    tensors = operands[1:] if primitive == "select" else operands
    of = next((o.dtype for o in tensors if isinstance(o, Tensor)), dtype)
    if of is None:
        raise TypeError(f"{primitive} of numbers alone needs a dtype")
    given = [o if isinstance(o, Tensor) else number(o, of) for o in operands]
    result = _FUNCTIONS[primitive](*given)
    return result.to(result_dtype(primitive, of))


def number(value: Number, dtype: torch.dtype) -> Tensor:
    """A number in a dtype; integers wrap."""
    if dtype in (torch.bool, *FLOATS):
        return torch.tensor(value, dtype=dtype)
    return torch.tensor(int(value), dtype=torch.int64).to(dtype)


def convert(value: Tensor, dtype: torch.dtype) -> Tensor:
    """As `Convert` of the loop IR does it."""
    return value.to(dtype).to(held(dtype))


class TensorBuilder:
    """Computes what a recipe builds, for all elements at once."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}

    def add(self, tensor: Tensor) -> Value:
        """A tensor as operand of recipes."""
        value = Value(f"t{len(self.values)}", tensor.dtype)
        self.values[value.name] = tensor
        return value

    def tensor(self, operand: Value | Number) -> Any:
        return self.values[operand.name] if isinstance(operand, Value) else operand

    def op(self, primitive: str, *operands: Value | Number, dtype: torch.dtype | None = None) -> Value:
        return self.add(compute(primitive, *(self.tensor(o) for o in operands), dtype=dtype))

    def constant(self, value: Number, dtype: torch.dtype) -> Value:
        return self.add(number(value, dtype))

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        return self.add(convert(self.values[value.name], dtype))
