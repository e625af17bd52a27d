"""Correct and faulty ways to compute: the sums, products and constants from which the corpus's formulas are built.

A formula is written once, over a `How`. With another order or block length it is a correct variant, as another
chip would compute it; with a fault it is a wrong one, as a broken kernel would.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

Tensor = torch.Tensor

Fault = Literal[
    "dropped last block",
    "dropped last term",
    "counts one too few",
    "missing eps",
    "wrong eps",
    "misplaced eps",
    "biased variance",
    "no maximum",
    "two roundings",
    "wrong scale",
    "forgotten bias",
    "mask off by one",
    "restarts at a block",
    "duplicates overwrite",
    "half sums",
    "TF32 inputs",
]
# Faults that are arithmetic of lower precision: the label counts as found.
LOWER_PRECISION: tuple[Fault, ...] = ("half sums", "TF32 inputs")


@dataclass(frozen=True)
class How:
    """One way to compute: sums are cut into blocks, taken from the front or from the back, or split into lanes.

    `backwards` also chooses the other formula where there is one, `online` the one that reads its input once (a running
    maximum and sum, Welford's update, Winograd's tiles).
    """

    block: int = 64
    backwards: bool = False
    fault: Fault | None = None
    dtype: torch.dtype = torch.float32  # what half sums and inner results are rounded to
    lanes: int = (
        0  # split-K: so many partial sums, added as a tree; half sums are rounded where one is handed on
    )
    online: bool = False

    def _pieces(self, length: int) -> list[tuple[int, int]]:
        if self.fault == "dropped last block":
            length -= max(1, length // 16)
        if self.fault == "dropped last term":
            length -= 1
        pieces = [(start, min(self.block, length - start)) for start in range(0, length, self.block)]
        return pieces[::-1] if self.backwards else pieces

    def _lane_pieces(self, length: int) -> list[tuple[int, int]]:
        size = -(-length // self.lanes)
        return [(start, min(size, length - start)) for start in range(0, length, size)]

    def _rounded(self, partial: Tensor) -> Tensor:
        return partial.to(self.dtype).to(partial.dtype) if self.fault == "half sums" else partial

    def handed(self, x: Tensor) -> Tensor:
        """Terms that lanes take over in the format of their sums."""
        return self._rounded(x)

    def sum(self, x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
        if self.lanes and self.fault in (None, "half sums"):
            parts = [x.narrow(dim, start, size) for start, size in self._lane_pieces(x.shape[dim])]
            return _tree([part.sum(dim, keepdim) for part in parts], self._rounded)
        total: Tensor | None = None
        for start, size in self._pieces(x.shape[dim]):
            part = x.narrow(dim, start, size).sum(dim, keepdim)
            total = self._rounded(part if total is None else total + part)
        assert total is not None
        return total

    def mean(self, x: Tensor, dim: int, keepdim: bool = False) -> Tensor:
        count = x.shape[dim] - (self.fault == "counts one too few")
        return self.sum(x, dim, keepdim) / count

    def sum_all(self, x: Tensor) -> Tensor:
        return self.sum(x.reshape(-1), 0)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        if self.fault == "TF32 inputs":
            a, b = _tf32(a), _tf32(b)
        if self.lanes and self.fault is None:
            pieces = self._lane_pieces(a.shape[-1])
            return _tree([a.narrow(-1, i, n) @ b.narrow(-2, i, n) for i, n in pieces], self._rounded)
        total: Tensor | None = None
        for start, size in self._pieces(a.shape[-1]):
            part = a.narrow(-1, start, size) @ b.narrow(-2, start, size)
            total = self._rounded(part if total is None else total + part)
        assert total is not None
        return total

    def cumsum(self, x: Tensor, dim: int) -> Tensor:
        if self.fault == "half sums":
            running, columns = None, []
            for column in x.unbind(dim):
                running = self._rounded(column if running is None else running + column)
                columns.append(running)
            return torch.stack(columns, dim)
        parts, carry = [], None
        for piece in x.split(self.block, dim):
            part = piece.cumsum(dim)
            if carry is not None and self.fault != "restarts at a block":
                part = part + carry
            carry = part.narrow(dim, part.shape[dim] - 1, 1)
            parts.append(part)
        return torch.cat(parts, dim)

    def eps(self, value: float) -> float:
        if self.fault == "wrong eps":
            return value * 100
        return 0.0 if self.fault == "missing eps" else value

    def inverse_root(self, variance: Tensor, eps: float) -> Tensor:
        """1 / sqrt(variance + eps)."""
        if self.fault == "misplaced eps":
            return 1 / (variance.sqrt() + eps)
        total = variance + self.eps(eps)
        return 1 / total.sqrt() if self.backwards else total.rsqrt()

    def variance(self, x: Tensor, dim: int, keepdim: bool = False, *, correction: int = 0) -> Tensor:
        """Of the population unless a correction is asked for; Welford's update where `online`."""
        count = x.shape[dim]
        divisor = count - (1 - correction if self.fault == "biased variance" else correction)
        if self.online and self.fault is None:
            squares = _welford(x, dim)
        else:
            centred = x - self.mean(x, dim, True)
            squares = self.sum(centred * centred, dim, True)
        result = squares / divisor
        return result if keepdim else result.squeeze(dim)

    def top(self, x: Tensor, dim: int) -> Tensor:
        """What a softmax takes off before it takes powers."""
        largest = x.amax(dim, True).detach()
        return largest * 0 if self.fault == "no maximum" else largest

    def exponentials(self, x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
        """(exp(x - top), their sum, top); in one pass over blocks where `online`."""
        if not (self.online and self.fault is None):
            top = self.top(x, dim)
            powers = (x - top).exp()
            return powers, self.sum(powers, dim, True), top
        top, total = x.narrow(dim, 0, 1).detach() - 1e4, torch.zeros_like(x.narrow(dim, 0, 1))
        for piece in x.split(self.block, dim):
            new = torch.maximum(top, piece.amax(dim, True).detach())
            total = total * (top - new).exp() + (piece - new).exp().sum(dim, True)
            top = new
        return (x - top).exp(), total, top

    def inner(self, x: Tensor) -> Tensor:
        """An inner result: rounded once more by a kernel that keeps it in the dtype of its output."""
        if self.fault != "two roundings":
            return x
        return x + (x.detach().to(self.dtype).to(x.dtype) - x.detach())

    def scale(self, value: float) -> float:
        # sqrt(d) taken for d one too large, as from a padded head.
        return (value**-2 + 1) ** -0.5 if self.fault == "wrong scale" else value

    def bias(self, value: Tensor) -> Tensor:
        return value * 0 if self.fault == "forgotten bias" else value

    def causal(self, rows: int, columns: int) -> Tensor:
        return torch.ones(rows, columns, dtype=torch.bool).tril(1 if self.fault == "mask off by one" else 0)

    def add_at(self, target: Tensor, index: Tensor, rows: Tensor) -> Tensor:
        """target[index[i]] += rows[i], one after the other."""
        if self.fault == "duplicates overwrite":
            return target.index_copy(0, index, target[index] + rows)
        order = range(len(index) - 1, -1, -1) if self.backwards else range(len(index))
        out = list(target.unbind(0))
        for row in order:
            position = int(index[row])
            out[position] = self._rounded(out[position] + rows[row])
        return torch.stack(out)


def _tree(parts: list[Tensor], handed: Callable[[Tensor], Tensor]) -> Tensor:
    """Each lane adds what its neighbour hands over."""
    while len(parts) > 1:
        pairs = [a + handed(b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + ([parts[-1]] if len(parts) % 2 else [])
    return parts[0]


def _welford(x: Tensor, dim: int) -> Tensor:
    """The sum of squared distances from the mean, updated number by number."""
    mean = torch.zeros_like(x.narrow(dim, 0, 1))
    squares = torch.zeros_like(mean)
    for count, value in enumerate(x.split(1, dim), 1):
        distance = value - mean
        mean = mean + distance / count
        squares = squares + distance * (value - mean)
    return squares


def _tf32(x: Tensor) -> Tensor:
    """Rounded to ten explicit bits, to nearest; differentiable as the identity."""
    rounded = ((x.detach().contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return x + (rounded - x).detach()


def truncated(exact: Tensor, dtype: torch.dtype) -> Tensor:
    """Cut off instead of rounded: the neighbour towards zero wherever rounding went away from it."""
    rounded = exact.to(dtype)
    beyond = rounded.double().abs() > exact.abs()
    bits = rounded.view(torch.int32 if dtype == torch.float32 else torch.int16)
    return torch.where(beyond, bits - 1, bits).view(dtype)
