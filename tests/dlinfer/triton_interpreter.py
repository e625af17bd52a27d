"""Triton's interpreter with the roundings of a device, and with NumPy of today.

The interpreter of Triton 3.6 cuts float32 to bfloat16 and rounds wrongly to 8-bit floats; hardware rounds to the nearest,
halves to even, as torch does. Kernels are judged by roundings, so tests need the right ones. It takes the bits of bfloat16 for
numbers in products, and integers for the bits of bfloat16. It also takes arrays of one element for numbers, which NumPy 2.4
does no more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

_FORMS = {
    "fp32": (torch.float32, np.float32),
    "fp16": (torch.float16, np.float16),
    "bf16": (torch.bfloat16, np.uint16),
    "fp8e4nv": (torch.float8_e4m3fn, np.uint8),
}


def repair_interpreter() -> None:
    """Replaces the interpreter's conversions between floating dtypes and to numbers, and its products."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch_tensor, plain_cast = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.cast_impl

    def patch(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def convert(value: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        from_torch, from_numpy = _FORMS[source.name]
        to_torch, to_numpy = _FORMS[target.name]
        bits = torch.from_numpy(np.ascontiguousarray(value).view(_signed(from_numpy))).view(from_torch)
        converted = bits.to(torch.float32).to(to_torch).contiguous()
        return converted.view(_bits(to_torch)).numpy().view(to_numpy).reshape(value.shape)

    def dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        left, right = (_wide(convert, operand) for operand in (a, b))
        return interpreter.TensorHandle(np.matmul(left, right, dtype=d.data.dtype) + d.data, d.dtype.scalar)

    def cast(self: Any, source: Any, target: Any) -> Any:
        if target.scalar.name == "bf16" and not source.dtype.is_floating():
            source = plain_cast(self, source, tl.float32)
        return plain_cast(self, source, target)

    interpreter.InterpreterBuilder.cast_impl = cast
    interpreter._convert_float = convert
    interpreter.InterpreterBuilder.create_dot = dot
    interpreter._patch_lang_tensor = patch


def _wide(convert: Any, operand: Any) -> Any:
    """Operands of a product in float32; integers stay."""
    import triton.language as tl

    if not operand.dtype.is_floating():
        return operand.data
    return convert(operand.data, operand.dtype.scalar, tl.float32, None)


def _signed(kind: Any) -> Any:
    return {1: np.uint8, 2: np.int16, 4: np.int32}[np.dtype(kind).itemsize]


def _bits(kind: torch.dtype) -> torch.dtype:
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32}[kind.itemsize]
