"""Whether what an operator writes is memory of its own: no element twice, and none that another argument reads.

A kernel that writes where it still reads gives wrong numbers, or indices that lead anywhere. Tensors of one storage are
common (both caches in one allocation, query, key and value in one matrix), so places are compared, not storages.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any

from torch import Tensor

from dlinfer.interface.checks import wrong
from dlinfer.interface.declaration import Operator

Box = tuple[tuple[int, int, int], ...]
"""For each term of a sum: its factor, and the least and the greatest number it is taken times."""
# Beyond this many steps two tensors of one storage are too entangled to be told apart.
STEPS = 50_000


def guard(operator: Operator) -> Callable[[tuple[Any, ...]], None]:
    """What checks the arguments of a call of `operator`. Runs for every layer of every token: looks at bounds first."""
    names = operator.arguments
    written = [names.index(name) for name in operator.writes]
    kinds = [str(argument.type) for argument in operator.parsed.arguments]
    read = [p for p, kind in enumerate(kinds) if kind in ("Tensor", "Optional[Tensor]") and p not in written]

    def check(args: tuple[Any, ...]) -> None:
        first, last = _hull(operator, written, args)
        count = len(args)
        for place in read:
            if place >= count:  # torch leaves defaults at the end of a call out
                break
            tensor = args[place]
            if tensor is not None:
                start = tensor.data_ptr()
                if start < last and (
                    start >= first or start + tensor.nbytes > first or not tensor.is_contiguous()
                ):
                    for target in written:
                        _compare(operator, args, target, place)

    return check


def _hull(operator: Operator, written: list[int], args: tuple[Any, ...]) -> tuple[int, int]:
    """The bounds of all that is written, which lies apart."""
    first = last = 0
    for count, place in enumerate(written):
        value = args[place]
        if value is None:
            continue
        low = value.data_ptr()
        high = low + (value.nbytes if value.is_contiguous() else _own_extent(operator, place, value))
        if not last:
            first, last = low, high
            continue
        if low < last and first < high:
            for earlier in written[:count]:
                _compare(operator, args, place, earlier)
        first, last = min(first, low), max(last, high)
    return first, last


def lies_over_itself(value: Tensor) -> bool:
    """Whether two elements lie in one place."""
    return not value.is_contiguous() and _reach(value.shape, value.stride()) < 0


def overlap(one: Tensor, two: Tensor) -> bool:
    """Whether two tensors have memory in common."""
    distance = two.data_ptr() - one.data_ptr()
    if one.device != two.device or distance >= _extent(one) or distance + _extent(two) <= 0:
        return False
    return _share(one.shape, one.stride(), one.itemsize, two.shape, two.stride(), two.itemsize, distance)


def _extent(value: Tensor) -> int:
    """Bytes from the first to behind the last element."""
    if value.is_contiguous():
        return value.nbytes
    return abs(_reach(value.shape, value.stride())) * value.itemsize


def _own_extent(operator: Operator, place: int, value: Tensor) -> int:
    """`_extent` of a tensor that is written, no two elements of which may lie in one place."""
    reach = _reach(value.shape, value.stride())
    if reach < 0:
        text = f"has strides {list(value.stride())} for shape {list(value.shape)}: elements share memory that is written"
        text = f"{text}, expected memory of its own (an expanded tensor: clone it)"
        raise wrong(operator.name, operator.arguments[place], text)
    return reach * value.itemsize


def _compare(operator: Operator, args: tuple[Any, ...], place: int, other: int) -> None:
    """What is written beside another tensor of about the same place."""
    one, two = args[place], args[other]
    if one is None or two is None or not overlap(one, two):
        return
    names = operator.arguments
    text = f"overlaps {names[other]} in memory, expected memory of its own"
    pairs = operator.over.get(names[place], ())
    if pairs and pairs[0][1] == names[other]:
        if all(_coincide(args[names.index(first)], args[names.index(second)]) for first, second in pairs):
            return
        text += ", or that " + " and ".join(
            f"{first} starts and steps as {second}" for first, second in pairs
        )
    raise wrong(operator.name, names[place], text)


def _coincide(one: Tensor, two: Tensor) -> bool:
    """Whether elements at equal places, where both have them, are the same memory."""
    if one.data_ptr() != two.data_ptr():
        return False
    steps = zip(one.shape, two.shape, one.stride(), two.stride(), strict=True)
    return all(a == b or min(m, n) < 2 for m, n, a, b in steps)


@lru_cache(maxsize=1024)
def _reach(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to behind the last, below 0 if two of them lie in one place."""
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
    """Whether two tensors, the second of which begins `distance` bytes after the first, have a byte in common.

    Steps that both have are one term: only the difference of their numbers matters.
    """
    if 0 in shape or 0 in other_shape:
        return False
    least: dict[int, int] = {}
    most: dict[int, int] = {}
    for step, length in ((1, size), *zip((size * s for s in strides), shape, strict=True)):
        most[step] = most.get(step, 0) + length - 1
    for step, length in (
        (1, other_size),
        *zip((other_size * s for s in other_strides), other_shape, strict=True),
    ):
        least[step] = least.get(step, 0) - (length - 1)
    return _reaches(
        tuple((step, least.get(step, 0), most.get(step, 0)) for step in {*least, *most}), distance
    )


def _repeats(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether two elements of a tensor lie in one place."""
    dims = sorted((stride, length) for stride, length in zip(strides, shape, strict=True) if length > 1)
    if not dims:
        return False
    if dims[0][0] and all(step >= length * below for (below, length), (step, _) in pairwise(dims)):
        return False  # each step is beyond all that lies below it
    boxes = [
        ((dims[place][0], 1, dims[place][1] - 1), *((s, 1 - n, n - 1) for s, n in dims[:place]))
        for place in range(len(dims))
    ]
    return any(_reaches(box, 0) for box in boxes)


def _reaches(box: Box, wanted: int) -> bool:
    """Whether a sum of factors, each times a whole number within its bounds, is `wanted`.

    The largest factor first: what is left must be within reach of the others, which leaves few numbers to try.
    """
    terms = sorted(box, reverse=True)
    reach = [(0, 0)]
    for factor, least, most in reversed(terms):
        reach.append((reach[-1][0] + factor * least, reach[-1][1] + factor * most))
    reach.reverse()
    steps = 0
    open_ends = [(0, wanted)]
    while open_ends:
        depth, rest = open_ends.pop()
        if depth == len(terms):
            return True  # within the reach of no terms: nothing is left
        steps += 1
        if steps > STEPS:
            return True
        factor, least, most = terms[depth]
        low, high = reach[depth + 1]
        if not factor:
            open_ends += [(depth + 1, rest)] if low <= rest <= high else []
            continue
        first, last = max(least, -((high - rest) // factor)), min(most, (rest - low) // factor)
        open_ends += [
            (depth + 1, rest - factor * number) for number in range(first, min(last, first + STEPS) + 1)
        ]
    return False
