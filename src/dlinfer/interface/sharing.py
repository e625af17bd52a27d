"""Whether what an operator writes is memory of its own: no element twice, and none that another argument reads.

A kernel that writes where it still reads gives wrong numbers, or indices that lead anywhere. Tensors of one storage are
common (both caches in one allocation, query, key and value in one matrix), so addresses are compared, not storages.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor

from dlinfer.errors import DlinferArgumentError
from dlinfer.interface.declaration import Operator

# Beyond this many steps two tensors of one storage are too entangled to be separated.
STEPS = 50_000
# Where addresses begin that stand for those of tensors.
_ORIGIN = 1 << 40


class Guard:
    """Checks the arguments of one operator. It runs for every layer of every token: bounds are looked at first."""

    def __init__(self, operator: Operator) -> None:
        names = operator.arguments
        self._operator, self._names = operator, names
        self._written = [names.index(name) for name in operator.writes]
        kinds = [str(argument.type) for argument in operator.parsed.arguments]
        tensors = [index for index, kind in enumerate(kinds) if kind in ("Tensor", "Optional[Tensor]")]
        self._read = [index for index in tensors if index not in self._written]
        self._over = {
            (names.index(pairs[0][0]), names.index(pairs[0][1])): [
                (names.index(a), names.index(b)) for a, b in pairs
            ]
            for pairs in operator.over.values()
        }

    def check(self, args: tuple[Any, ...]) -> None:
        """DlinferArgumentError: something that is written shares memory with something else."""
        first, last = self._written_range(args)
        count = len(args)
        for index in self._read:
            if index >= count:  # torch leaves defaults at the end of a call out
                break
            tensor = args[index]
            if tensor is None:
                continue
            start = tensor.data_ptr()
            if start < last and (
                start >= first or start + tensor.nbytes > first or not tensor.is_contiguous()
            ):
                for target in self._written:
                    value = args[target]
                    if value is None or self._may_lie_over(args, target, index):
                        continue
                    if overlap(value, tensor):
                        raise self._wrong(target, index)

    def _written_range(self, args: tuple[Any, ...]) -> tuple[int, int]:
        """Where all that is written begins and ends."""
        first = last = 0
        for count, index in enumerate(self._written):
            value = args[index]
            if value is None:
                continue
            low = value.data_ptr()
            high = low + (value.nbytes if value.is_contiguous() else self._own_extent(index, value))
            if not last:
                first, last = low, high
                continue
            if low < last and first < high:
                for earlier in self._written[:count]:
                    if not self._may_lie_over(args, index, earlier) and _meet(value, args[earlier]):
                        raise self._wrong(index, earlier)
            first, last = min(first, low), max(last, high)
        return first, last

    def _own_extent(self, index: int, value: Tensor) -> int:
        """`_extent` of a tensor that is written, no two elements of which may lie at one address."""
        reach = _reach(value.shape, value.stride())
        if reach < 0:
            text = f"has strides {list(value.stride())} for shape {list(value.shape)}: elements share memory that is"
            text = f"{text} written, expected memory of its own (an expanded tensor: clone it)"
            raise DlinferArgumentError(self._operator.name, self._names[index], text)
        return reach * value.itemsize

    def _may_lie_over(self, args: tuple[Any, ...], index: int, other: int) -> bool:
        pairs = self._over.get((index, other))
        return pairs is not None and all(_coincide(args[first], args[second]) for first, second in pairs)

    def _wrong(self, index: int, other: int) -> Exception:
        text = f"overlaps {self._names[other]} in memory, expected memory of its own"
        if pairs := self._over.get((index, other)):
            alike = (
                f"{self._names[first]} starts and steps as {self._names[second]}" for first, second in pairs
            )
            text = f"{text}, or that {' and '.join(alike)}"
        return DlinferArgumentError(self._operator.name, self._names[index], text)


def lies_over_itself(value: Tensor) -> bool:
    """Whether two elements lie at one address."""
    return not value.is_contiguous() and _reach(value.shape, value.stride()) < 0


def overlap(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors have memory in common."""
    distance = two.data_ptr() - one.data_ptr()
    if distance >= _extent(one) or distance + _extent(two) <= 0:
        return False
    return _meet(one, two)


def _meet(one: Tensor, two: Tensor) -> bool:
    """`overlap` of tensors whose bounds do."""
    distance = two.data_ptr() - one.data_ptr()
    shapes = one.shape, one.stride(), one.itemsize, two.shape, two.stride(), two.itemsize
    return one.device == two.device and _share(*shapes, distance)


def _extent(value: Tensor) -> int:
    """Bytes from the first to behind the last element."""
    if value.is_contiguous():
        return value.nbytes
    return abs(_reach(value.shape, value.stride())) * value.itemsize


def _coincide(one: Tensor, two: Tensor) -> bool:
    """Whether elements at equal indices, where both have them, are the same memory."""
    if one.data_ptr() != two.data_ptr() or one.dtype != two.dtype:
        return False
    if one.stride() == two.stride():
        return True
    steps = zip(one.shape, two.shape, one.stride(), two.stride(), strict=True)
    return all(a == b or min(m, n) < 2 for m, n, a, b in steps)


@lru_cache(maxsize=1024)
def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to behind the last, below 0 if two of them lie at one address."""
    if 0 in shape:
        return 0
    reach = 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
    return -reach if _repeats(shape, strides) else reach


@lru_cache(maxsize=1024)
def _share(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    size: int,
    other_shape: tuple[int, ...],
    other_strides: tuple[int, ...],
    other_size: int,
    distance: int,
) -> bool:
    """Whether two tensors, the second of which begins `distance` bytes after the first, have a byte in common."""
    return _share_memory(
        _array(0, shape, strides, size), _array(distance, other_shape, other_strides, other_size)
    )


def _repeats(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether two elements of a tensor lie at one address."""
    dims = sorted((stride, length) for stride, length in zip(strides, shape, strict=True) if length > 1)
    if not dims:
        return False
    if dims[0][0] and all(step >= length * below for (below, length), (step, _) in pairwise(dims)):
        return False  # each step is beyond all that lies below it
    for index, (stride, length) in enumerate(dims):
        steps, lengths = zip(*dims[:index], strict=True) if index else ((), ())
        further = _array(stride, (length - 1, *lengths), (stride, *steps), 1)
        if _share_memory(further, _array(0, lengths, steps, 1)):
            return True
    return False


def _array(start: int, shape: tuple[int, ...], strides: tuple[int, ...], size: int) -> np.ndarray:
    """Elements of `size` bytes at these addresses, of which nothing is ever read: NumPy compares addresses."""
    layout = {"data": (_ORIGIN + start, True), "shape": shape, "strides": tuple(size * s for s in strides)}
    return np.asarray(SimpleNamespace(__array_interface__={**layout, "typestr": f"|V{size}", "version": 3}))


def _share_memory(one: np.ndarray, two: np.ndarray) -> bool:
    try:
        return np.shares_memory(one, two, max_work=STEPS)  # type: ignore[arg-type]  # its stubs know the two names only
    except np.exceptions.TooHardError:
        return True
