"""Makes the tensors of samples: seeded, in one dtype, layout and range of values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

# contiguous. offset: starts behind the beginning of its storage. strided: gaps between elements and rows. transposed: the
# last two dimensions exchanged in memory. expanded: all of the first dimension reads the same memory. channels_last: of 4
# and 5 dimensions.
LAYOUTS = ("contiguous", "offset", "strided", "transposed", "expanded", "channels_last")
# normal. huge: near the largest finite number, so that products overflow. tiny: near the smallest normal number and below.
# special: NaN, infinities and signed zeros among ordinary numbers.
VALUES = ("normal", "huge", "tiny", "special")

_OFFSET = 3


class Maker:
    """Makes the tensors of one variation of a sample; the same seed makes the same tensors."""

    def __init__(
        self, function: str, dtype: torch.dtype, seed: int, layout: str = "contiguous", values: str = "normal"
    ) -> None:
        self.function = function
        self.dtype = dtype
        self.layout = layout
        self.values = values
        self._random = torch.Generator().manual_seed(seed)
        self._seed = seed

    @property
    def floating(self) -> bool:
        return self.dtype.is_floating_point or self.dtype.is_complex

    @property
    def real_dtype(self) -> torch.dtype:
        """The dtype of one component of a complex number; the dtype itself otherwise."""
        return self.dtype.to_real()

    def __call__(
        self,
        *shape: int,
        low: float | None = None,
        high: float | None = None,
        dtype: torch.dtype | None = None,
        written: bool = False,
    ) -> torch.Tensor:
        """A tensor of the variation. With `low` or `high` its values are uniform between them, whatever the variation;
        `written` says that the function writes to it, so no two elements may share memory."""
        dtype = dtype or self.dtype
        ranged = low is not None or high is not None
        values = self._uniform(shape, dtype, low, high) if ranged else self._drawn(shape, dtype)
        return self.laid_out(values, written=written)

    def positive(
        self, *shape: int, low: float = 0.1, high: float = 2.0, written: bool = False
    ) -> torch.Tensor:
        """Numbers away from zero: logarithms, divisors, variances."""
        return self(
            *shape, low=low if self.floating else 1, high=high if self.floating else 9, written=written
        )

    def index(self, *shape: int, high: int, low: int = 0, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Indices in [low, high)."""
        drawn = torch.randint(low, max(high, low + 1), shape, generator=self._random).to(dtype)
        return self.laid_out(drawn)

    def mask(self, *shape: int, rate: float = 0.5) -> torch.Tensor:
        """Booleans, true at a rate."""
        return self.laid_out(torch.rand(shape, generator=self._random) < rate)

    def out(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Only a shape and a dtype: what the caller of a function allocates for it."""
        return torch.zeros(shape, dtype=dtype or self.dtype)

    def permutation(self, count: int) -> torch.Tensor:
        return torch.randperm(count, generator=self._random)

    def integer(self, low: int, high: int) -> int:
        """A number in [low, high)."""
        return int(torch.randint(low, high, (), generator=self._random))

    def seed(self) -> int:
        """What stands for a generator in a case; not the seed of the tensors, or they would be what is drawn."""
        return self._seed + 1

    # ---- values ----

    def _uniform(
        self, shape: Sequence[int], dtype: torch.dtype, low: float | None, high: float | None
    ) -> torch.Tensor:
        low = -1.0 if low is None else low
        high = 1.0 if high is None else high
        if dtype.is_complex:
            parts = [self._uniform(shape, torch.float64, low, high) for _ in range(2)]
            return torch.complex(parts[0], parts[1]).to(dtype)
        if dtype.is_floating_point:
            drawn = torch.rand(shape, dtype=torch.float64, generator=self._random)
            return (drawn * (high - low) + low).to(dtype)
        if dtype == torch.bool:
            return torch.rand(shape, generator=self._random) < 0.5
        bounds = torch.iinfo(dtype)
        least, most = max(math.ceil(low), bounds.min), min(math.floor(high), bounds.max)
        return torch.randint(least, max(most, least) + 1, tuple(shape), generator=self._random).to(dtype)

    def _drawn(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        if dtype.is_complex:
            real, imaginary = (self._drawn(shape, dtype.to_real()) for _ in range(2))
            return torch.complex(real.float(), imaginary.float()).to(dtype)
        if not dtype.is_floating_point:
            return self._integers(shape, dtype)
        numbers = torch.randn(tuple(shape), dtype=torch.float64, generator=self._random)
        limits = torch.finfo(dtype)
        if self.values == "huge":
            numbers = numbers.sign() * limits.max * (numbers.abs() % 1 * 0.75 + 0.25)
        elif self.values == "tiny":
            numbers = numbers * limits.tiny
        made = numbers.to(dtype)
        if self.values == "special":
            made = self._with_specials(made)
        return made

    def _integers(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        if dtype == torch.bool:
            return torch.rand(tuple(shape), generator=self._random) < 0.5
        bounds = torch.iinfo(dtype)
        least, most = max(-10, bounds.min), min(10, bounds.max)
        if self.values == "huge":
            least, most = bounds.min // 2, bounds.max // 2
        return torch.randint(least, most + 1, tuple(shape), generator=self._random).to(dtype)

    def _with_specials(self, numbers: torch.Tensor) -> torch.Tensor:
        """Every fifth number or so is a special one."""
        chosen = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0], dtype=numbers.dtype)
        which = torch.randint(0, 5, numbers.shape, generator=self._random)
        where = torch.rand(numbers.shape, generator=self._random) < 0.2
        return torch.where(where, chosen[which], numbers)

    # ---- layouts ----

    def laid_out(self, values: torch.Tensor, *, written: bool = False) -> torch.Tensor:
        """The same values in the layout of the variation, where the shape allows it."""
        match self.layout:
            case "offset":
                buffer = torch.zeros(values.numel() + _OFFSET, dtype=values.dtype)
                laid = buffer[_OFFSET:].view(values.shape)
            case "strided":
                laid = _with_gaps(values)
            case "transposed" if values.dim() >= 2:
                laid = torch.empty_like(values.transpose(-1, -2).contiguous()).transpose(-1, -2)
            case "expanded" if values.dim() >= 1 and values.shape[0] > 1 and not written:
                return values[:1].contiguous().expand(values.shape)
            case "channels_last" if values.dim() in (4, 5):
                form = torch.channels_last if values.dim() == 4 else torch.channels_last_3d
                laid = torch.empty_like(values, memory_format=form)
            case _:
                return values.contiguous()
        return laid.copy_(values)


def _with_gaps(values: torch.Tensor) -> torch.Tensor:
    """Every second element of rows that are longer than they need to be."""
    if values.dim() == 0:
        return torch.zeros(3, dtype=values.dtype)[1]
    *rows, last = values.shape
    buffer = torch.zeros(*rows, 2 * last + 1, dtype=values.dtype)
    return buffer[..., 1 : 2 * last : 2] if last else buffer[..., :0]
