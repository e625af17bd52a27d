"""Primitives of `dicp.loops.primitives` as expressions of Triton."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from dicp.vendor.TritonGraph.expressions import HELD_TYPES, literal_text

__all__ = ["primitive_text"]

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
}
# Of the same name in CUDA's library.
_LIBRARY = frozenset(
    (
        *(
            "exp",
            "exp2",
            "expm1",
            "log",
            "log1p",
            "log2",
            "log10",
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
        ),
        *(
            "sinh",
            "cosh",
            "tanh",
            "asinh",
            "acosh",
            "atanh",
            "erf",
            "erfc",
            "erfinv",
            "lgamma",
            "pow",
            "fmod",
        ),
        *("copysign", "hypot", "atan2", "nextafter", "trunc"),
    )
)
Text = Callable[..., str]


def primitive_text(primitive: str, given: Sequence[str], dtype: torch.dtype) -> str:
    """Of operands of that dtype."""
    if primitive in _INFIX:
        text = f"({given[0]} {_INFIX[primitive]} {given[1]})"
        return f"{text}.to({HELD_TYPES[dtype]})" if _narrow(primitive, dtype) else text
    if primitive == "select":
        return f"tl.where({', '.join(given)})"
    if dtype.is_floating_point:
        if primitive in _LIBRARY:
            return f"libdevice.{primitive}({', '.join(given)})"
        return _FLOATS[primitive](dtype, *given)
    if dtype is torch.bool:
        return _BOOLS[primitive](*given)
    return _integer_text(primitive, given, dtype)


def _narrow(primitive: str, dtype: torch.dtype) -> bool:
    return primitive in ("add", "sub", "mul") and dtype in (torch.int8, torch.int16, torch.uint8)


def _one(dtype: torch.dtype) -> str:
    return literal_text(1.0, dtype)


def _divided(dtype: torch.dtype, a: str, b: str) -> str:
    """Triton's own division of float32 is not rounded correctly."""
    return f"tl.div_rn({a}, {b})" if dtype is torch.float32 else f"({a} / {b})"


def _sign(dtype: torch.dtype, x: str) -> str:
    held = HELD_TYPES[dtype]
    return f"(({x} > 0).to({held}) - ({x} < 0).to({held}))"


def _sign_bit(dtype: torch.dtype, x: str) -> str:
    return f"({x}.to(tl.int{8 * dtype.itemsize}, bitcast=True) < 0)"


_FLOATS: Mapping[str, Text] = {
    "div": _divided,
    "neg": lambda d, x: f"({x} * -1.0)",
    "abs": lambda d, x: f"tl.abs({x})",
    "sign": _sign,
    "minimum": lambda d, a, b: f"device.minimum({a}, {b})",
    "maximum": lambda d, a, b: f"device.maximum({a}, {b})",
    "fmin": lambda d, a, b: f"tl.where(({a} < {b}) | ({b} != {b}), {a}, {b})",
    "fmax": lambda d, a, b: f"tl.where(({a} > {b}) | ({b} != {b}), {a}, {b})",
    "remainder": lambda d, a, b: f"device.float_remainder({a}, {b})",
    "isnan": lambda d, x: f"({x} != {x})",
    "isinf": lambda d, x: f'(tl.abs({x}) == float("inf"))',
    "isfinite": lambda d, x: f'(tl.abs({x}) < float("inf"))',
    "signbit": _sign_bit,
    "fma": lambda d, a, b, c: f"tl.fma({a}, {b}, {c})",
    "reciprocal": lambda d, x: _divided(d, _one(d), x),
    "sqrt": lambda d, x: f"tl.sqrt_rn({x})" if d is torch.float32 else f"tl.sqrt({x})",
    "rsqrt": lambda d, x: f"tl.rsqrt({x})",
    "floor": lambda d, x: f"tl.floor({x})",
    "ceil": lambda d, x: f"tl.ceil({x})",
    "round": lambda d, x: f"libdevice.rint({x})",
    "sigmoid": lambda d, x: f"device.sigmoid({x})",
    "digamma": lambda d, x: f"device.digamma({x})",
}
_BOOLS: Mapping[str, Text] = {
    "minimum": lambda a, b: f"({a} & {b})",
    "maximum": lambda a, b: f"({a} | {b})",
    "bitwise_not": lambda x: f"({x} == 0)",
}
# The names of functions for signed and for unsigned integers, and whether they are told the width.
_DIVISIONS: Mapping[str, tuple[str, str, bool]] = {
    "trunc_div": ("trunc_div", "unsigned_div", False),
    "floor_div": ("floor_div", "unsigned_div", False),
    "fmod": ("trunc_rest", "unsigned_rest", False),
    "remainder": ("floor_rest", "unsigned_rest", False),
    "pow": ("signed_power", "unsigned_power", True),
    "shift_left": ("shift_left", "shift_left", True),
    "shift_right": ("signed_shift_right", "unsigned_shift_right", True),
    "gcd": ("gcd", "unsigned_gcd", False),
}


def _integer_text(primitive: str, given: Sequence[str], dtype: torch.dtype) -> str:
    held, signed = HELD_TYPES[dtype], dtype is not torch.uint8
    if primitive in _DIVISIONS:
        signed_name, unsigned_name, told = _DIVISIONS[primitive]
        arguments = [*given, str(8 * dtype.itemsize)] if told else list(given)
        return f"device.{signed_name if signed else unsigned_name}({', '.join(arguments)})"
    texts: Mapping[str, Text] = {
        "neg": lambda x: f"(0 - {x}).to({held})",
        "abs": lambda x: f"tl.abs({x}).to({held})" if signed else x,
        "sign": lambda x: _sign(dtype, x),
        "minimum": lambda a, b: f"tl.minimum({a}, {b})",
        "maximum": lambda a, b: f"tl.maximum({a}, {b})",
        "bitwise_not": lambda x: f"({x} ^ {'-1' if signed else '255'}).to({held})",
    }
    return texts[primitive](*given)
