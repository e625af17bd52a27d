"""Random functions of tensors as text of Python: views, formulas, reductions, writes, of many dtypes, strides and sizes.

Every line was run by eager PyTorch when it was written, with two sets of sizes, so a function is legal and its numbers stay
small. Lines whose results may be rounded otherwise when they are compiled are `rounded`; nothing that jumps, such as a
comparison, reads these.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from dicp_graph_lines import (
    convert_line,
    copy_line,
    exact_line,
    pair_line,
    reduction_line,
    rounded_line,
    view_line,
    write_line,
)
from torch import Tensor
from torch.nn import functional as F

__all__ = ["Graph", "random_graph"]

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
HALVES = (torch.bfloat16, torch.float16)
LIMIT = {torch.float32: 4096.0, torch.float64: 4096.0, torch.bfloat16: 256.0, torch.float16: 256.0}
"""Of what numbers a line may give: sums of quarters up to here are exact."""


@dataclass
class Held:
    """A value of the function while it is written: with each set of sizes."""

    name: str
    values: list[Tensor]
    rounded: bool = False
    scale: float = 1.0
    """The largest number that went into it."""
    written: bool = False
    """Whether it may be written to."""
    half: bool = False
    """Whether it was computed from 16-bit floats, which compiled code rounds less often."""

    @property
    def value(self) -> Tensor:
        return self.values[0]


@dataclass
class Graph:
    """A function of tensors, and tensors for it, with each set of sizes."""

    source: str
    inputs: list[list[Tensor]]
    scales: list[float]
    """Of each result: the largest number that went into it."""
    rounded: list[bool]
    halves: list[bool]

    def function(self) -> Callable[..., tuple[Tensor, ...]]:
        names: dict[str, Any] = {"torch": torch, "F": F}
        exec(compile(self.source, "<random graph>", "exec"), names)
        found: Callable[..., tuple[Tensor, ...]] = names["function"]
        return found

    def problems(self, compiled: Callable[..., Any], sizes: int = 0) -> list[str]:
        """What differs from eager PyTorch: the results, and the inputs afterwards."""
        mine, given = (_copies(self.inputs[sizes]) for _ in range(2))
        expected = self.function()(*mine)
        found = compiled(*given)
        if len(found) != len(expected):
            return [f"{len(found)} results, expected {len(expected)}"]
        texts = []
        for number, (a, b) in enumerate(zip(found, expected, strict=True)):
            if problem := _unlike(a, b, self.scales[number], self.rounded[number], self.halves[number]):
                texts.append(f"result {number}: {problem}")
        scale = max(self.scales, default=1.0)
        for number, (a, b) in enumerate(zip(given, mine, strict=True)):
            if problem := _unlike(a, b, scale, True, any(self.halves)):
                texts.append(f"input {number} afterwards: {problem}")
        return texts


def _unlike(got: Any, mine: Tensor, scale: float, rounded: bool, half: bool) -> str:
    if not isinstance(got, Tensor) or (got.dtype, got.shape) != (mine.dtype, mine.shape):
        what = f"{got.dtype} {list(got.shape)}" if isinstance(got, Tensor) else type(got).__name__
        return f"is {what}, expected {mine.dtype} {list(mine.shape)}"
    if not mine.dtype.is_floating_point:
        same = got == mine
    else:
        half = half or mine.dtype in HALVES
        tolerance = 0.0 if not rounded else 0.05 if half else 64 * torch.finfo(mine.dtype).eps
        a, b = got.double(), mine.double()
        near = (a - b).abs() <= tolerance * (b.abs() + max(scale, 1.0))
        same = near | (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return ""
    place = tuple(int(i) for i in (~same).nonzero()[0])
    return (
        f"element {place} is {got[place].item()}, expected {mine[place].item()}; {int((~same).sum())} differ"
    )


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    """Of the same strides; what shares memory shares it no more."""
    found = []
    for t in tensors:
        extent = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) if t.numel() else 0
        memory = torch.as_strided(t, (extent,), (1,)).clone()
        found.append(torch.as_strided(memory, t.shape, t.stride(), 0))
    return found


# --- inputs ---


def _input(
    rng: random.Random, dtype: torch.dtype, shape: tuple[int, ...], layout: int, special: bool
) -> Tensor:
    generator = torch.Generator().manual_seed(rng.randrange(1 << 30))
    if dtype is torch.bool:
        t = torch.randint(0, 2, shape, generator=generator).bool()
    elif dtype.is_floating_point:
        t = (torch.randint(-12, 13, shape, generator=generator) / 4).to(dtype)
        if special:
            odd = torch.tensor([math.nan, math.inf, -math.inf, -0.0], dtype=dtype)
            chosen = odd[torch.randint(0, 4, shape, generator=generator)]
            t = torch.where(torch.rand(shape, generator=generator) < 0.1, chosen, t)
    else:
        t = torch.randint(0 if dtype is torch.uint8 else -9, 10, shape, generator=generator).to(dtype)
    return _laid_out(t, layout)


def _laid_out(t: Tensor, layout: int) -> Tensor:
    if layout == 1 and t.dim() > 1:  # transposed
        return t.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == 2 and t.dim():  # gaps between the elements
        wide = torch.zeros(*t.shape[:-1], 2 * t.shape[-1] + 1, dtype=t.dtype)
        wide[..., 1 : 2 * t.shape[-1] : 2] = t
        return wide[..., 1 : 2 * t.shape[-1] : 2]
    if layout == 3 and t.dim() > 1:  # rows that are longer than what is read of them
        wide = torch.zeros(*t.shape[:-1], t.shape[-1] + 3, dtype=t.dtype)
        wide[..., : t.shape[-1]] = t
        return wide[..., : t.shape[-1]]
    return t


# --- lines ---


class Pool:
    """The values that a function has so far."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.held: list[Held] = []

    def like(self, of: Tensor, accepts: Callable[[Held], bool] = lambda h: True) -> Held | None:
        """One that broadcasts with another, and has its dtype more often than not."""
        fits = [h for h in self.held if _broadcast(h.value, of) and accepts(h)]
        same = [h for h in fits if h.value.dtype == of.dtype]
        chosen = same if same and self.rng.random() < 0.7 else fits
        return self.rng.choice(chosen) if chosen else None


def _broadcast(a: Tensor, b: Tensor) -> bool:
    return all(n == m or 1 in (n, m) for n, m in zip(reversed(a.shape), reversed(b.shape), strict=False))


# --- functions ---


@dataclass
class _Writer:
    rng: random.Random
    pool: Pool
    names: list[str]
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def step(self) -> None:
        rng = self.rng
        base = rng.choice(self.pool.held[-4:] if rng.random() < 0.6 else self.pool.held)
        t, name = base.value, base.name
        kind = rng.choices(
            ("view", "copy", "exact", "rounded", "reduction", "convert", "pair", "write"),
            (6, 3, 5, 4, 3, 1, 5, 2),
        )[0]
        other: Held | None = None
        writes = False
        exact_only = base.rounded and kind in ("exact", "reduction", "convert")
        match kind:
            case "view":
                text = view_line(rng, t, name)
            case "copy":
                text = copy_line(rng, t, name)
            case "exact" | "reduction" | "convert":
                make = {"exact": exact_line, "reduction": reduction_line, "convert": convert_line}[kind]
                text = None if exact_only else make(rng, t, name)
            case "rounded":
                text = rounded_line(rng, t, name) if t.dtype.is_floating_point else None
            case "pair":
                other = self.pool.like(t, lambda h: not h.rounded)
                text = None if base.rounded or other is None else pair_line(rng, t, name, other.name)
            case _:
                writes = True
                other = self.pool.like(t, lambda h: not h.rounded or h.value.dtype in FLOATS)
                text = (
                    write_line(rng, t, name, other.name if other is not None else None)
                    if base.written
                    else None
                )
        if text is not None:
            self._try(text, kind, [base, *([other] if other is not None else [])], writes)

    def _try(self, text: str, kind: str, read: list[Held], writes: bool) -> None:
        line = text if writes else f"v{self.count} = {text}"
        before = [_snapshot(h) for h in self.pool.held]
        results: list[Tensor] = []
        scale = max(h.scale for h in read)
        fine = True
        for number in range(len(read[0].values)):
            names: dict[str, Any] = {"torch": torch, "F": F}
            names |= {h.name: h.values[number] for h in self.pool.held}
            try:
                exec(line, names)
            except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
                fine = False
                break
            results.append(read[0].values[number] if writes else names[f"v{self.count}"])
        fine = fine and all(_is_fine(r) for r in results)
        if not fine:
            for h, kept in zip(self.pool.held, before, strict=True):
                _restore(h, kept)
            return
        self.lines.append(line)
        half = any(h.half for h in read) or any(r.dtype in HALVES for r in results)
        rounded = kind == "rounded" or any(h.rounded for h in read) or (half and kind not in ("view", "copy"))
        scale = max([scale, *(_largest(r) for r in results)])
        if writes:  # whoever shares the memory
            for h in self.pool.held:
                if any(_share(a, b) for a, b in zip(h.values, read[0].values, strict=True)):
                    h.rounded, h.scale, h.half = h.rounded or rounded, max(h.scale, scale), h.half or half
            return
        shares = [
            h for h in self.pool.held if any(_share(a, b) for a, b in zip(h.values, results, strict=True))
        ]
        written = all(h.written for h in shares) and all(_is_plain(r) for r in results)
        self.pool.held.append(Held(f"v{self.count}", results, rounded, scale, written, half))
        self.count += 1


def _is_plain(t: Tensor) -> bool:
    """No two elements share memory."""
    return all(s != 0 for n, s in zip(t.shape, t.stride(), strict=True) if n > 1)


def _share(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def _snapshot(h: Held) -> list[tuple[Tensor, Tensor]]:
    return [(v, v.clone()) for v in h.values] if h.written else []


def _restore(h: Held, kept: list[tuple[Tensor, Tensor]]) -> None:
    for value, copy in kept:
        value.copy_(copy)


def _largest(t: Tensor) -> float:
    if not t.is_floating_point() or not t.numel():
        return 1.0
    finite = t[t.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 1.0


def _is_fine(t: Any) -> bool:
    if not isinstance(t, Tensor) or t.numel() > 4000 or t.dim() > 5 or t.is_complex():
        return False
    return t.dtype not in LIMIT or _largest(t) <= LIMIT[t.dtype]


def random_graph(rng: random.Random, steps: int = 12, dynamic: bool = False) -> Graph:
    """`dynamic`: for two sets of sizes."""
    letters = {letter: rng.choice((0, 1, 1, 2, 3, 4, 5, 8, 17)) for letter in "abcd"}
    sizes = [letters]
    if dynamic:
        letters = {letter: rng.choice((2, 3, 4, 5, 8)) for letter in "abcd"}
        sizes = [letters, {letter: n + rng.choice((1, 2, 9)) for letter, n in letters.items()}]
    pool = Pool(rng)
    inputs: list[list[Tensor]] = [[] for _ in sizes]
    special = rng.random() < 0.2
    main = rng.choice((*FLOATS, torch.float32, *INTEGERS))
    for number in range(rng.randint(1, 3)):
        dtype = main if rng.random() < 0.7 else rng.choice((*FLOATS, *INTEGERS, torch.bool))
        shape = [rng.choice("abcd") for _ in range(rng.choice((0, 1, 2, 2, 2, 3, 3, 4)))]
        layout, seed = rng.choice((0, 0, 0, 1, 2, 3)), rng.randrange(1 << 30)
        values = [
            _input(random.Random(seed), dtype, tuple(chosen[s] for s in shape), layout, special)
            for chosen in sizes
        ]
        for kept, value in zip(inputs, values, strict=True):
            kept.append(value)
        pool.held.append(Held(f"x{number}", _copies(values), False, 4.0, True, dtype in HALVES))
    names = [h.name for h in pool.held]
    writer = _Writer(rng, pool, names)
    for _ in range(steps):
        writer.step()
    made = pool.held[len(names) :] or pool.held
    results = rng.sample(made, min(len(made), rng.randint(1, 3)))
    if made[-1] not in results:
        results.append(made[-1])
    body = [*writer.lines, f"return ({', '.join(h.name for h in results)},)"]
    source = f"def function({', '.join(names)}):\n" + "".join(f"    {line}\n" for line in body)
    return Graph(
        source, inputs, [h.scale for h in results], [h.rounded for h in results], [h.half for h in results]
    )
