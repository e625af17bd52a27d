"""A view computes nothing: it is right when it shows the same part of its input as the reference's view."""

from __future__ import annotations

from typing import Any

import torch

from op_tools.verdict import Verdict
from op_tools.verdict.tolerance import Tolerance

Tensors = list[torch.Tensor]


def judge(mine: Any, own: Any, bases: tuple[Tensors, Tensors], tolerance: Tolerance) -> Verdict:
    """Compare shape, dtype, strides and offset of a view on the device with those of the reference's."""
    ours, theirs = _facts(mine, bases[0]), _facts(own, bases[1])
    wrong = [f"{name} {a} instead of {b}" for (name, a), (_, b) in zip(ours, theirs, strict=False) if a != b]
    if not wrong:
        return Verdict.plain("same", "", tolerance)
    reason = "the view shows another part of its input: " + ", ".join(wrong)
    return Verdict.plain("fail", reason, tolerance)


def _facts(value: Any, bases: Tensors) -> list[tuple[str, Any]]:
    if not isinstance(value, torch.Tensor):
        return [("value", value)]
    memory = value.untyped_storage()._cdata
    start = next((base.storage_offset() for base in bases if base.untyped_storage()._cdata == memory), 0)
    # Strides of dimensions of length one or of nothing at all say nothing.
    strides = [stride for stride, length in zip(value.stride(), value.shape, strict=True) if length > 1]
    return [
        ("shape", tuple(value.shape)),
        ("dtype", value.dtype),
        ("strides", strides if value.numel() else []),
        ("offset", value.storage_offset() - start if value.numel() else 0),
    ]
