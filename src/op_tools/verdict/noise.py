"""How far correct arithmetic may scatter: the change of the float64 result when inputs move by one rounding.

A few reruns give each element its own noise. Two of them estimate it poorly, so the estimate leans on a simple
model of how noise is distributed over the result (even, by rows and columns, proportional to the value), provided
that the model fits what was seen.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import torch

from op_tools.categories import base_name
from op_tools.reference.base import Reference
from op_tools.reference.perturbation import ROUNDING
from op_tools.trees import map_leaves
from op_tools.verdict.rounding import real_parts

# Noise never falls below this part of its mean: an element that happened not to move is not free of noise.
FLOOR = 1e-3
# The model counts as much as this many reruns.
MODEL_WEIGHT = 1.0
# A model fits when the logarithm of (seen / expected variance) scatters no more than this. Two perfect reruns
# scatter by 1.28 (a chi-square of two degrees of freedom), one by 2.2.
MODEL_FITS = 1.8
# A function jumps where a few elements (the sign of a difference of equals, a kink that is hit) move far more than this part
# of them, which move by no more than so many roundings of their value; mean squares then say nothing of those others.
SMOOTH, SMOOTH_ROUNDINGS, SMOOTH_TAIL, JUMP = 0.95, 8.0, 30.0, 100.0
# A cached noise level is remeasured after this many uses, since data change while a model trains.
USES_BEFORE_REMEASURING = 64
# The cached level is a low quantile of what was seen: it may only let pass what a measurement would let pass.
CACHED_QUANTILE = 0.1
# So many reruns are kept as they are: what they scale shows in few.
KEPT_CHANGES = 4
# Models are compared on a sample of this size.
_SAMPLE = 1 << 12


class Reruns:
    """The reruns of one call, shared by all its results: the changes, and sums of their squares.

    `inside`: what fused operators sum up inside moves too.
    """

    def __init__(self, reference: Reference, *, inside: bool = False) -> None:
        self._moved = reference.moved_inside if inside else reference.perturbed
        self._reference = reference
        self._squares: dict[int, torch.Tensor] = {}
        self._changes: dict[int, list[torch.Tensor]] = {}
        self.count = 0
        self.possible = True

    def extend(self, count: int) -> None:
        """Make it at least `count` reruns."""
        truth = self._reference.truth()
        if truth is None:
            self.possible = False
        while self.possible and self.count < count and truth is not None:
            moved = self._moved(1 + self.count)
            if moved is None or len(moved) != len(truth):
                self.possible = False
                return
            for index, (exact, changed) in enumerate(zip(truth, moved, strict=True)):
                if _is_arithmetic(exact) and _is_arithmetic(changed) and exact.shape == changed.shape:
                    self._add(index, real_parts(changed) - real_parts(exact))
            self.count += 1

    def _add(self, index: int, change: torch.Tensor) -> None:
        so_far = self._squares.get(index)
        squares = change.square() if so_far is None else so_far.addcmul_(change, change)
        changes = self._changes.setdefault(index, [])
        if len(changes) < KEPT_CHANGES:
            changes.append(change)
        if not bool(torch.isfinite(squares.sum())):
            squares.nan_to_num_(0, 0, 0)
        self._squares[index] = squares

    def changes(self, index: int) -> list[torch.Tensor]:
        """What the first reruns changed, flat float64."""
        return self._changes.get(index, [])

    def variance(self, index: int) -> torch.Tensor | None:
        squares = self._squares.get(index)
        return None if squares is None or not self.count else squares / self.count


def _is_arithmetic(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


@dataclass(frozen=True, slots=True)
class NoiseLevel:
    """The noise of one result in one number: beside its RMS (even), or beside each value (proportional)."""

    size: float
    proportional: bool

    def in_units(self, exact: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
        if self.proportional:
            return (exact.abs().mul_(self.size).div_(unit)).float().nan_to_num_(0, 0)
        return (_rms(exact) * self.size / unit).float()


@dataclass(slots=True)
class _Entry:
    levels: dict[int, NoiseLevel] = field(default_factory=dict)
    uses: int = 0


class NoiseCache:
    """Noise levels per call signature, so that reruns are paid once and not at every call.

    A cached level is only ever used to let a result pass, within a narrower bound, and is measured again from
    time to time; a result that it does not let pass is measured.
    """

    def __init__(self, capacity: int = 4096) -> None:
        self._entries: OrderedDict[object, _Entry] = OrderedDict()
        self._capacity = capacity
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._entries)

    def level(self, key: object, index: int) -> NoiseLevel | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or index not in entry.levels:
                return None
            self._entries.move_to_end(key)
            entry.uses += 1
            if entry.uses > USES_BEFORE_REMEASURING * len(entry.levels):
                del self._entries[key]
                return None
            return entry.levels[index]

    def store(self, key: object, index: int, level: NoiseLevel) -> None:
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            entry.levels[index] = level
            while len(self._entries) > self._capacity:
                self._entries.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _Model:
    """How variance is distributed: even, by rows and columns, or with the square of the value."""

    kind: str
    scale: float = 0.0
    rows: torch.Tensor | None = None
    columns: torch.Tensor | None = None

    def expected(self, exact: torch.Tensor) -> torch.Tensor | float:
        if self.kind == "proportional":
            return exact.square().mul_(self.scale).nan_to_num_(0, 0)
        if self.rows is not None and self.columns is not None:
            return (self.rows * self.columns).reshape(-1)
        return self.scale


def estimate(
    variance: torch.Tensor, reruns: int, exact: torch.Tensor, columns: int, scale: float
) -> tuple[torch.Tensor, NoiseLevel | None]:
    """The noise of each element, and its level for the cache where a model describes it.

    `variance` is overwritten. `columns` is the length of the last dimension; `scale` is the rounding of the
    arithmetic that is judged beside that of the perturbation (one of float32).
    """
    mean = float(variance.mean()) if variance.numel() else 0.0
    if mean <= 0:
        return variance.zero_(), None
    model = _smooth_but_for_jumps(variance, exact, mean)
    if model is not None:
        mean = model.scale * float(exact.square().nan_to_num_(0, 0, 0).mean())
    else:
        model = _best_model(variance, exact, columns, mean)
    level = None
    if model is not None:
        expected = model.expected(exact)
        level = _level(model, expected, exact, scale)
        variance.mul_(reruns / (reruns + MODEL_WEIGHT))
        share = MODEL_WEIGHT / (reruns + MODEL_WEIGHT)
        if isinstance(expected, torch.Tensor):
            variance.add_(expected, alpha=share)
        else:
            variance.add_(expected * share)
    return variance.clamp_(min=mean * FLOOR**2).sqrt_().mul_(scale), level


def _smooth_but_for_jumps(variance: torch.Tensor, exact: torch.Tensor, mean: float) -> _Model | None:
    """The model of the elements that do not jump, where a few others do; None where none does, or where many do."""
    indices = _sampled_indices(variance)
    squares = exact[indices].square()
    used = (squares > 0) & squares.isfinite()
    if not bool(used.any()):
        return None
    ratio = variance[indices][used] / squares[used]
    scale = float(ratio.median()) / 0.7
    # The common case first: what jumps makes the mean square many times that of all others.
    if (
        not 0 < scale * float(squares[used].mean()) * JUMP < mean
        or scale > (SMOOTH_ROUNDINGS * ROUNDING) ** 2
    ):
        return None
    smooth = float((ratio < SMOOTH_TAIL * scale).double().mean())
    return _Model("proportional", scale) if smooth >= SMOOTH else None


def _best_model(variance: torch.Tensor, exact: torch.Tensor, columns: int, mean: float) -> _Model | None:
    """The model whose expectation the seen variance scatters least about; None where none fits."""
    indices = _sampled_indices(variance)
    seen, values = variance[indices], exact[indices]
    used = (seen > 0) & values.isfinite()
    if int(used.sum()) < 2:
        return None
    indices, seen, values = indices[used], seen[used], values[used]
    models = [(_Model("even", mean), torch.full_like(seen, mean))]
    rows = variance.numel() // max(columns, 1)
    if rows >= 4 and columns >= 4:
        table = variance.view(rows, columns)
        by_row, by_column = table.mean(1, True), table.mean(0, True) / mean
        expected = by_row.view(-1)[indices // columns] * by_column.view(-1)[indices % columns]
        models.append((_Model("table", rows=by_row, columns=by_column), expected))
    if bool((values != 0).any()):
        square = values.square()
        ratio = (seen / square)[square > 0]
        # The median of a chi-square of two degrees of freedom is 0.7 of its mean.
        scale = float(ratio.median()) / 0.7
        models.append((_Model("proportional", scale), square * scale))
    scatter = [_scatter(seen, expected) for _, expected in models]
    best = min(range(len(models)), key=scatter.__getitem__)
    return models[best][0] if scatter[best] <= MODEL_FITS else None


def _sampled_indices(values: torch.Tensor) -> torch.Tensor:
    """Positions of a sample that meets all rows and columns alike."""
    count = values.numel()
    if count <= _SAMPLE:
        return torch.arange(count, device=values.device)
    return torch.arange(_SAMPLE, device=values.device) * 7919 * (count // _SAMPLE) % count


def _scatter(seen: torch.Tensor, expected: torch.Tensor) -> float:
    used = expected > 0
    if int(used.sum()) < 2:
        return float("inf")
    return float((seen[used] / expected[used]).log_().std())


def _level(
    model: _Model, expected: torch.Tensor | float, exact: torch.Tensor, scale: float
) -> NoiseLevel | None:
    if model.kind == "proportional":
        return NoiseLevel(model.scale**0.5 * scale, proportional=True)
    rms = _rms(exact)
    if rms <= 0:
        return None
    if isinstance(expected, torch.Tensor):
        expected = float(expected[_sampled_indices(exact)].quantile(CACHED_QUANTILE))
    return NoiseLevel(expected**0.5 / rms * scale, proportional=False)


def _rms(exact: torch.Tensor) -> float:
    rms = float(exact.norm()) / max(1, exact.numel()) ** 0.5
    return rms if rms < float("inf") else float(exact.nan_to_num(0, 0, 0).square().mean().sqrt())


# --- sums of products: their noise without reruns ----------------------------------------------------------
#
# A product of matrices is a sum of products in each element. When every factor moves by an independent relative error of
# size e, the element moves by e times the root of (number of factors) times the sum of the squared products; and that sum
# is the same product of the squared matrices. So one more run, in float32, gives what many reruns only estimate.
# Gradients of such functions are such functions of the other factors and of the incoming gradient.

# Factors in each product, for functions that only add up products of their inputs.
_FACTORS = {
    "linear": 2, "matmul": 2, "__matmul__": 2, "mm": 2, "bmm": 2, "addmm": 2, "baddbmm": 2, "mv": 2, "dot": 2, "einsum": 2,
    "conv1d": 2, "conv2d": 2, "conv3d": 2, "convolution": 2, "sum": 1, "cumsum": 1,
    "embedding_dense_backward": 1, "index_add": 1,
}  # fmt: skip
# With these, the result is no longer the plain sum of products.
_SCALING = ("alpha", "beta")


def product_variance(call: Reference) -> list[torch.Tensor | None] | None:
    """For each result the variance of its elements in units of the squared rounding; None where the rule does not hold."""
    factors = _FACTORS.get(base_name(call.name))
    if factors is None or any(key in call.kwargs for key in _SCALING):
        return None
    values = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, torch.Tensor)]
    if any(value.is_complex() for value in values):
        return None
    grads = None if call.grad_outputs is None else [_squared(grad) for grad in call.grad_outputs]
    try:
        args, kwargs = map_leaves(tuple(call.args), _squared), map_leaves(dict(call.kwargs), _squared)
        found = call.evaluate(args, kwargs, grads, upcast=False)
    except Exception:  # a dtype= argument, an overload that takes no float32: reruns will do
        return None
    return [_variance(value, factors) for value in found]


def _squared(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return (value if value.dtype == torch.float64 else value.float()).square()
    return torch.float32 if isinstance(value, torch.dtype) and value.is_floating_point else value


def _variance(value: Any, factors: int) -> torch.Tensor | None:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return None
    # Squares leave the range of float32 sooner than the values do.
    return value.mul(factors) if bool(value.isfinite().all()) else None
