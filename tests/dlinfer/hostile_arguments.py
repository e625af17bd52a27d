"""Values that no caller should pass, made from a value that is right: other types, dtypes, shapes, memory and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, nan
from typing import Any

import torch
from torch import Tensor

INTEGERS = (torch.int32, torch.int64)
Hostile = tuple[str, Any]
"""What was done, and the value."""


def hostile(value: Any) -> Iterator[Hostile]:
    """Everything that can be wrong with one argument alone."""
    if isinstance(value, Tensor):
        yield from _tensors(value)
    elif isinstance(value, bool):
        yield from (("None", None), ("text", "yes"), ("several", torch.ones(2)), ("list", [True]))
    elif isinstance(value, int):
        yield from _integers(value)
    elif isinstance(value, float):
        yield from _floats()
    elif isinstance(value, torch.dtype):
        yield from (("None", None), ("number", 3), ("text", "int8"), ("int16", torch.int16))
        yield from (("complex", torch.complex64), ("bool", torch.bool), ("tensor", torch.ones(2)))
    elif isinstance(value, str):
        yield from (("None", None), ("number", 3), ("nonsense", "nonsense"), ("tensor", torch.ones(2)))
    elif isinstance(value, (list, tuple)):
        yield from _lists(value)
    elif value is None:
        yield from (("text", "text"), ("number", 3), ("list", [1.5, "x"]), ("empty tensor", torch.empty(0)))
        yield from (
            ("complex", torch.ones(3, dtype=torch.complex64)),
            ("many dimensions", torch.ones([1] * 6)),
        )
    else:
        yield from (("text", "text"), ("number", 3), ("tensor", torch.ones(2)))


def _integers(value: int) -> Iterator[Hostile]:
    yield from (("None", None), ("text", "4"), ("fraction", 1.5), ("nan", nan), ("list", [value]))
    yield from (("several", torch.ones(2)), ("one more", value + 1), ("one less", value - 1), ("zero", 0))
    for power in (31, 62, 63):
        yield f"2**{power}", 2**power
        yield f"-2**{power} - 1", -(2**power) - 1


def _floats() -> Iterator[Hostile]:
    yield from (("None", None), ("text", "1"), ("list", [1.0]), ("several", torch.ones(2)), ("complex", 1j))
    yield from (("nan", nan), ("inf", inf), ("-inf", -inf), ("too large", 10**400))


def _lists(values: Any) -> Iterator[Hostile]:
    yield from (("number", 3), ("text", "text"), ("list of text", ["text"]), ("list of numbers", [3, 4, 5]))
    yield from (("too many", [*values, *values, torch.ones(2, 2), torch.ones(2, 2)]), ("None", None))
    for index, value in enumerate(values):
        if value is None:
            continue
        for label, other in hostile(value):
            changed = list(values)
            changed[index] = other
            yield f"[{index}] {label}", changed


def _tensors(value: Tensor) -> Iterator[Hostile]:
    yield from (
        ("None", None),
        ("number", 3),
        ("text", "text"),
        ("list", value.tolist()[:2] if value.dim() else [1]),
    )
    yield from _dtypes(value)
    yield from _shapes(value)
    yield from _memory(value)
    if value.dtype in INTEGERS and value.numel():
        yield from _numbers(value)


def _dtypes(value: Tensor) -> Iterator[Hostile]:
    for dtype in (
        torch.float64,
        torch.float16,
        torch.int64,
        torch.int16,
        torch.uint8,
        torch.bool,
        torch.complex64,
    ):
        if dtype != value.dtype:
            yield str(dtype).removeprefix("torch."), value.to(dtype)


def _shapes(value: Tensor) -> Iterator[Hostile]:
    yield "a dimension in front", value.unsqueeze(0)
    yield "a dimension behind", value.unsqueeze(-1)
    yield "two dimensions in front", value[None, None].expand(2, 1, *value.shape).contiguous()
    yield "single number", value.new_ones(())
    yield "empty", value.new_empty(0)
    if value.dim() > 1:
        yield "flat", value.reshape(-1)
    for dim in range(value.dim()):
        length = value.shape[dim]
        if length:
            yield f"one less in {dim}", value.narrow(dim, 0, length - 1).clone()
            yield f"nothing in {dim}", value.narrow(dim, 0, 0).clone()
            yield f"one more in {dim}", torch.cat((value, value.narrow(dim, 0, 1)), dim)
            yield f"twice in {dim}", torch.cat((value, value), dim)
        else:
            shape = list(value.shape)
            shape[dim] = 1
            yield f"one more in {dim}", value.new_zeros(shape)


def _memory(value: Tensor) -> Iterator[Hostile]:
    yield "on meta", value.to("meta")
    yield (
        "sparse",
        value.to_sparse() if value.dim() and value.dtype != torch.float8_e4m3fn else value.to("meta"),
    )
    if value.dim() > 1:
        yield "transposed", value.transpose(0, -1).contiguous().transpose(0, -1)
    for dim in range(value.dim()):
        if value.shape[dim] > 1:
            yield f"stride 0 in {dim}", value.narrow(dim, 0, 1).expand(value.shape)
    if value.dim() and value.numel() > 1:
        room = value.new_zeros(sum(value.shape) + 1)
        yield "overlapping itself", room.as_strided(value.shape, [1] * value.dim())


def _numbers(value: Tensor) -> Iterator[Hostile]:
    least, most = torch.iinfo(value.dtype).min, torch.iinfo(value.dtype).max
    for number in (-1, -2, 0, 1, 10**6, most, least):
        for index in sorted({0, value.numel() - 1}):
            changed = value.clone().contiguous()
            changed.view(-1)[index] = number
            yield f"{number} at {'the end' if index else 'the start'}", changed
    yield "one more everywhere", value + 1
    yield "one less everywhere", value - 1
    yield "backwards", value.flip(0)
    yield "all the same", torch.full_like(value, int(value.reshape(-1)[0]))


def overlapping(
    arguments: dict[str, Any], written: tuple[str, ...]
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What is written in the memory of another argument: (which, where, both arguments anew)."""
    for name in written:
        for other, value in arguments.items():
            if other == name or not (_real(arguments[name]) and _real(value)):
                continue
            for shift in ("at its start", "one element on", "at its end"):
                made = _sharing(arguments[name], value, shift)
                yield name, f"in the memory of {other}, {shift}", {name: made[0], other: made[1]}


def _real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.numel() > 1


def _sharing(output: Tensor, other: Tensor, shift: str) -> tuple[Tensor, Tensor]:
    """Both, contiguous, in one memory; `other` keeps its values at its start."""
    step = max(output.itemsize, other.itemsize)
    length = other.numel() * other.itemsize
    offsets = {"at its start": 0, "one element on": step, "at its end": (length - 1) // step * step}
    start = offsets[shift]
    room = torch.zeros(
        -(-max(length, start + output.numel() * output.itemsize) // step) * step, dtype=torch.uint8
    )
    there = room[:length].view(other.dtype).view(other.shape)
    there.copy_(other)
    return room[start : start + output.numel() * output.itemsize].view(output.dtype).view(output.shape), there
