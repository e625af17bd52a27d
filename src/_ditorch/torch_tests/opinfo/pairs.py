"""Which pairs there are: the database read in a fixed order."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import torch

from _ditorch.torch_tests.outcomes import OpInfoCheck, OpInfoOptions, Pair, PairSelection

__all__ = ["ALL_DTYPES", "NO_DTYPE", "build", "dtype_named", "name_of", "operators"]

_ALIASES = {
    "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16",
    "half": "float16", "float": "float32", "double": "float64",
    "c32": "complex32", "c64": "complex64", "c128": "complex128",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "int": "int32", "long": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64", "b8": "bool",
}  # fmt: skip
NO_DTYPE = "-"  # of checks that are not made dtype by dtype
# What the check of dtypes tries, beside what an operator declares; the list of torch's own test.
ALL_DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip
_ONE_OF_A_KIND = (torch.float32, torch.int64, torch.complex64)


@cache
def operators(source: str) -> dict[str, Any]:
    """The database ``module:attribute`` by full name, in its own order."""
    module, _, attribute = source.partition(":")
    found: dict[str, Any] = {}
    for op in getattr(importlib.import_module(module), attribute):
        if op.full_name in found:
            raise ValueError(f"{source} holds {op.full_name} twice")
        found[op.full_name] = op
    return found


def dtype_named(name: str) -> torch.dtype:
    """``f32``, ``float32`` and ``torch.float32`` alike."""
    name = name.strip().removeprefix("torch.")
    dtype = getattr(torch, _ALIASES.get(name, name), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"no dtype is called {name!r}")
    return dtype


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def build(ops: Iterable[Any], selection: PairSelection, options: OpInfoOptions) -> list[Pair]:
    """All selected pairs; see the package's docstring for what counts."""
    pattern = re.compile(selection.ops or ".*")
    chosen = [op for op in ops if pattern.fullmatch(op.full_name)]
    pairs: list[Pair] = []
    for check in selection.checks:
        for op in chosen:
            pairs += _pairs(check, op, selection, options)
    return pairs


def _pairs(check: OpInfoCheck, op: Any, selection: PairSelection, options: OpInfoOptions) -> Iterator[Pair]:
    if check in (OpInfoCheck.ERRORS, OpInfoCheck.DTYPES):
        wanted = op.dtypes and selection.dtypes is None
        if wanted and (check is OpInfoCheck.DTYPES or _has_error_inputs(op)):
            yield Pair(check, op.full_name, NO_DTYPE)
        return
    dtypes = [dtype for dtype in _dtypes(check, op, options) if options.has_dtype(name_of(dtype))]
    if check is OpInfoCheck.GRADIENT:
        dtypes = dtypes[:1]
    if selection.dtypes is not None:
        dtypes = [dtype for dtype in dtypes if name_of(dtype) in selection.dtypes]
    for dtype in dtypes[:1] if selection.one_dtype else dtypes:
        yield Pair(check, op.full_name, name_of(dtype))


def _dtypes(check: OpInfoCheck, op: Any, options: OpInfoOptions) -> list[torch.dtype]:
    """The dtypes that both the CPU, which is the reference, and the device are declared to have."""
    if check is OpInfoCheck.GRADIENT:
        if not op.supports_autograd:
            return []
        mine, held_to = (op.supported_backward_dtypes(type_) for type_ in ("cpu", options.dtypes_of))
    else:
        mine, held_to = (op.supported_dtypes(type_) for type_ in ("cpu", options.dtypes_of))
    found = _ordered(set(mine) & set(held_to))
    if check is OpInfoCheck.NONCONTIGUOUS:
        return [dtype for dtype in found if dtype in _ONE_OF_A_KIND] or found[:1]
    if check is OpInfoCheck.OUT and not op.supports_out:
        return []
    if check is OpInfoCheck.INPLACE and op.inplace_variant is None:
        return []
    return found


def _ordered(dtypes: Iterable[torch.dtype]) -> list[torch.dtype]:
    """float32, float64 and complex64 first: the best one for whoever wants only one."""
    preferred = [torch.float32, torch.float64, torch.complex64, torch.int64]

    def rank(dtype: torch.dtype) -> tuple[int, str]:
        return (preferred.index(dtype) if dtype in preferred else len(preferred), str(dtype))

    return sorted(dtypes, key=rank)


def _has_error_inputs(op: Any) -> bool:
    """Some operators list inputs that only other devices refuse, and none for the CPU."""
    return op.error_inputs_func is not None and any(True for _ in op.error_inputs_func(op, "cpu"))
