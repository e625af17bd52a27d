"""Triton's interpreter with the roundings of a device, with NumPy of today, and with the functions of CUDA's library.

The interpreter of Triton 3.6 cuts float32 to bfloat16 and rounds wrongly to 8-bit floats; hardware rounds to the nearest,
halves to even, as torch does. Kernels are judged by roundings, so tests need the right ones. It takes the bits of bfloat16 for
numbers in products, and integers for the bits of bfloat16. It also takes arrays of one element for numbers, which NumPy 2.4
does no more. Reductions and scans by functions of a kernel it computes element by element; here they are computed for all rows
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["MATHEMATICS", "repair_interpreter"]

_FORMS = {
    "fp32": (torch.float32, np.float32),
    "fp16": (torch.float16, np.float16),
    "bf16": (torch.bfloat16, np.uint16),
    "fp8e4nv": (torch.float8_e4m3fn, np.uint8),
}
_REPAIRED: list[str] = []


def repair_interpreter() -> None:
    """Replaces the interpreter's conversions between floating dtypes and to numbers, its products, reductions and scans."""
    import triton.language as tl  # type: ignore[import-not-found]
    from triton.runtime import interpreter  # type: ignore[import-not-found]

    if _REPAIRED:
        return
    _REPAIRED.append("interpreter")
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
    interpreter.ReduceOps.generic_reduce = _reduced
    interpreter.ScanOps.generic_scan = _scanned


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


# --- reductions and scans by a function ---


def _joined(op: Any, input: Sequence[Any], left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
    """What the function makes of states, element by element."""
    states = [
        op.to_tensor(s, given.dtype) for s, given in zip((*left, *right), (*input, *input), strict=True)
    ]
    result = op.combine_fn.fn(*states)
    given = result if isinstance(result, tuple) else (result,)
    return [np.broadcast_to(r.handle.data, s.shape).astype(s.dtype) for r, s in zip(given, left, strict=True)]


def _reduced(self: Any, input: Any) -> list[Any]:
    """Neighbours are joined until one is left."""
    whole = self.axis is None
    axis = 0 if whole else self.axis
    data = [given.handle.data.reshape(-1) if whole else given.handle.data for given in input]
    data = [np.moveaxis(d, axis, 0) for d in data]
    while len(data[0]) > 1:
        data = _joined(self, input, [d[::2] for d in data], [d[1::2] for d in data])
    found = [np.moveaxis(d, 0, axis) for d in data]
    if not self.keep_dims:
        found = [d[0].item() if whole else d[0] for d in data]
    return [self.to_tensor(f, given.dtype) for f, given in zip(found, input, strict=True)]


def _scanned(self: Any, input: Any) -> list[Any]:
    """Each joined with the one so far before it, then with that twice as far."""
    data = [np.moveaxis(given.handle.data, self.axis, 0) for given in input]
    step = 1
    while step < len(data[0]):
        joined = _joined(self, input, [np.roll(d, step, 0) for d in data], data)
        data = [np.concatenate([d[:step], j[step:]]) for j, d in zip(joined, data, strict=True)]
        step *= 2
    return [
        self.to_tensor(np.moveaxis(d, 0, self.axis), given.dtype)
        for d, given in zip(data, input, strict=True)
    ]


# --- what kernels call libdevice ---


class _Mathematics:
    """Functions of blocks, by torch on the CPU."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        compute = _FUNCTIONS.get(name) or getattr(torch, name, None)
        if compute is None:
            raise AttributeError(f"the interpreter has no function {name!r} of libdevice")

        def call(*operands: Any) -> Any:
            import triton.language as tl
            from triton.runtime.interpreter import TensorHandle

            arrays = np.broadcast_arrays(*(o.handle.data for o in operands))
            found = compute(*(torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)).numpy()
            scalar = operands[0].dtype.scalar
            shapes = [list(o.shape) for o in operands if o.type.is_block()]
            kind = tl.block_type(scalar, list(found.shape)) if shapes else scalar
            return tl.core.tensor(TensorHandle(found, scalar), kind)

        return call


_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "rint": torch.round,
    "pow": torch.pow,
    "atan2": torch.atan2,
    "lgamma": torch.lgamma,
}
MATHEMATICS = _Mathematics()
