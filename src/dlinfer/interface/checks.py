"""Words and conditions that the checks of all families share. Each raises DlinferArgumentError for one argument."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch
from torch import Tensor

from dlinfer.errors import DlinferArgumentError

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int32, torch.int64)


def wrong(operator: str, argument: str, problem: str) -> DlinferArgumentError:
    """The error to raise."""
    return DlinferArgumentError(operator, argument, problem)


def listed(dtypes: Sequence[torch.dtype]) -> str:
    """float32, bfloat16 or int8."""
    names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def has_dtype(
    operator: str, argument: str, value: Tensor, dtypes: Sequence[torch.dtype] = FLOATS, why: str = ""
) -> None:
    """One of some dtypes."""
    if value.dtype not in dtypes:
        raise wrong(operator, argument, f"dtype is {listed([value.dtype])}, expected {listed(dtypes)}{why}")


def has_rank(operator: str, argument: str, value: Tensor, *ranks: int) -> None:
    """One of some numbers of dimensions."""
    if value.dim() not in ranks:
        wanted = " or ".join(str(rank) for rank in ranks)
        raise wrong(operator, argument, f"has shape {list(value.shape)}, expected {wanted} dimensions")


def has_shape(operator: str, argument: str, value: Tensor, shape: Sequence[int | None], meaning: str) -> None:
    """A shape; None fits any length. `meaning` is how the documentation writes it."""
    given = value.shape
    if len(given) == len(shape) and all(b is None or a == b for a, b in zip(given, shape, strict=True)):
        return
    wanted = ", ".join("any" if length is None else str(length) for length in shape)
    raise wrong(operator, argument, f"has shape {list(given)}, expected [{wanted}] ({meaning})")


def same_device(operator: str, first: str, one: Tensor, second: str, other: Tensor) -> None:
    """Two tensors that a kernel reads together."""
    if one.device != other.device:
        raise wrong(operator, second, f"is on {other.device}, expected {one.device} like {first}")


def together(one: Tensor, two: Tensor, three: Tensor, four: Tensor) -> bool:
    """Whether four tensors are on one device; the CPU is quicker to see than to compare."""
    if one.is_cpu:
        return two.is_cpu and three.is_cpu and four.is_cpu
    return one.device == two.device == three.device == four.device


def same_dtype(operator: str, first: str, one: Tensor, second: str, other: Tensor) -> None:
    """Two tensors of one dtype."""
    if one.dtype != other.dtype:
        raise wrong(
            operator,
            second,
            f"dtype is {listed([other.dtype])}, expected {listed([one.dtype])} like {first}",
        )


def is_vector(operator: str, argument: str, value: Tensor, length: int, meaning: str, like: Tensor) -> None:
    """A 1-D tensor of int32 or int64 on the CPU or beside `like`, the operator's first argument."""
    has_dtype(operator, argument, value, INTEGERS)
    if not value.is_cpu and value.device != like.device:
        raise wrong(operator, argument, f"is on {value.device}, expected {like.device} or cpu")
    if value.dim() != 1 or value.shape[0] != length:
        raise wrong(operator, argument, f"has shape {list(value.shape)}, expected [{length}] ({meaning})")


def positive(operator: str, argument: str, value: float, *, zero: bool = False) -> None:
    """A finite number above 0 (or 0)."""
    if not (0 < value < inf or (zero and value == 0)):
        raise wrong(
            operator,
            argument,
            f"is {value}, expected a finite number {'of at least 0' if zero else 'above 0'}",
        )


def finite(operator: str, argument: str, value: float) -> None:
    """A number that is neither infinite nor none at all."""
    if not -inf < value < inf:
        raise wrong(operator, argument, f"is {value}, expected a finite number")
