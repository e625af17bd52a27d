"""The suite's own cases: the samples of every function, each in other dtypes, layouts and ranges of values.

The main dtype of a function gets all samples. Every other variation gets some of them in turn, so that each dtype, layout and
range of values is met and the number of cases of a function stays within `cap`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from dicore.conformance.cases import case_id
from diopi.conformance import samples
from diopi.conformance.diopi_case import DiopiCase
from diopi.conformance.reference_run import NoReferenceError, ReferenceRun, tensors_in
from diopi.conformance.samples import Maker, Sample
from diopi.table import Entry, load
from diopi.table.schema import DTYPE_GROUPS

CAP = 48
_MAIN = ("float32", "int64", "bool", "complex64")
_LAYOUTS = ("strided", "offset", "transposed", "expanded", "channels_last")
_OUTPUT_LAYOUTS = ("strided", "offset", "transposed")
# Element i of the result needs element i of the inputs only: they may be the same memory.
_ALIASED = ("elementwise", "comparison")
_SUMMED = ("reduction", "matrix")
_VALUED = ("elementwise", "comparison", "movement", "selection", "reduction")


@dataclass(frozen=True, slots=True)
class Variation:
    """How the tensors of a sample are made."""

    dtype: str
    layout: str = "contiguous"
    values: str = "normal"
    output: str = "contiguous"
    aliased: bool = False
    """Inputs of an in-place function are the tensor that it updates, as in `x.mul_(x)`."""

    @property
    def label(self) -> str:
        parts = [self.layout] if self.layout != "contiguous" else []
        parts += [f"{self.values} values"] if self.values != "normal" else []
        parts += [f"{self.output} output"] if self.output != "contiguous" else []
        parts += ["aliased"] if self.aliased else []
        return ", ".join(parts)

    @property
    def plain(self) -> bool:
        return not self.label


def dtypes_of(entry: Entry) -> list[str]:
    """The dtypes of an entry, the main one first."""
    named = [name for group in entry.dtypes for name in DTYPE_GROUPS[group]]
    return sorted(named, key=lambda name: (name not in _MAIN, _MAIN.index(name) if name in _MAIN else 0))


def variations(entry: Entry) -> list[Variation]:
    """All variations of a function, the plain main dtype first."""
    dtypes = dtypes_of(entry)
    if not dtypes:
        return []
    main, turn = dtypes[0], dtypes[1:] or dtypes
    at = zlib.crc32(entry.name.encode())
    found = [Variation(name) for name in dtypes]
    for number, layout in enumerate(_LAYOUTS):
        found.append(Variation(main, layout=layout))
        found.append(Variation(turn[(at + number) % len(turn)], layout=layout))
    if entry.category in _VALUED:
        found += _valued(entry, dtypes, at)
    if any(entry.role(a) in ("out", "outs") for a in entry.function.arguments):
        for number, layout in enumerate(_OUTPUT_LAYOUTS):
            found.append(Variation(main, output=layout))
            found.append(Variation(turn[(at + number) % len(turn)], output=layout))
    if entry.function.in_place and entry.category in _ALIASED and main in DTYPE_GROUPS["fp"]:
        found += [Variation(main, aliased=True), Variation(main, layout="strided", aliased=True)]
    return list(dict.fromkeys(found))


def _valued(entry: Entry, dtypes: list[str], at: int) -> list[Variation]:
    """Sums of huge numbers overflow in one order and not in another, both being right: they get none."""
    floats = [d for d in dtypes if d in DTYPE_GROUPS["fp"]]
    integers = [d for d in dtypes if d in DTYPE_GROUPS["int"]]
    kinds = ["tiny", "special"] if entry.tolerance == "accumulate" else ["huge", "tiny", "special"]
    found = []
    for number, values in enumerate(kinds if floats else []):
        found.append(Variation(floats[0], values=values))
        found.append(Variation(floats[1:][(at + number) % max(1, len(floats) - 1)], values=values))
    if integers and entry.tolerance != "accumulate":
        # Numbers beyond 32 bits are what goes wrong most.
        chosen = {"int64", integers[at % len(integers)]} & set(integers)
        found += [Variation(name, values="huge") for name in sorted(chosen)]
    return found


class OwnSource:
    """Cases made from `diopi.conformance.samples`; a group is a function."""

    name = "own"

    def __init__(self, seed: int = 0, cap: int = CAP) -> None:
        self.seed = seed
        self.cap = cap

    def groups(self, functions: frozenset[str] | None) -> list[str]:
        sampled = samples.load()
        entries = load().entries
        return [name for name in entries if name in sampled and (functions is None or name in functions)]

    def cases(self, group: str) -> Iterator[DiopiCase]:
        entry = load().entries[group]
        for number, (variation, sample) in enumerate(self._picked(entry)):
            yield DiopiCase(
                case_id(self.name, group, number), group, variation.dtype, variation.label, sample
            )

    def _picked(self, entry: Entry) -> Iterator[tuple[Variation, Sample]]:
        planned = variations(entry)
        if not planned:
            return
        main = self._samples(entry, planned[0])
        yield from ((planned[0], sample) for sample in main)
        others = planned[1:]
        rounds, more = divmod(max(0, self.cap - len(main)), max(1, len(others)))
        for number, variation in enumerate(others):
            wanted = max(1, rounds + (number < more))
            for sample in islice(self._varied(entry, variation, number), wanted):
                yield variation, sample

    def _varied(self, entry: Entry, variation: Variation, turn: int) -> Iterator[Sample]:
        """The samples of a variation that show it, another one first each turn."""
        made = self._samples(entry, variation)
        plain = [] if variation.plain else self._samples(entry, Variation(variation.dtype))
        order = [(turn + step) % len(made) for step in range(len(made))]
        # Several elements first: empty tensors and single numbers tell little, but they are cases too.
        order.sort(key=lambda index: not _large_enough(made[index].values()))
        if variation.plain and entry.category in _SUMMED and order:
            # How half dtypes are summed up shows in a long sum only.
            longest = max(order, key=lambda index: _reduction(made[index].values()))
            order.sort(key=lambda index: index != longest)
        for index in order:
            sample = _aliased(entry, made[index]) if variation.aliased else made[index]
            try:
                sample = _with_output(entry, sample, variation, self._seed(entry, variation))
            except NoReferenceError:
                yield made[index]  # the verdict will say so
                continue
            if sample is None or (index < len(plain) and _alike(sample, plain[index])):
                continue
            if variation.plain or _shows(entry, variation, sample):
                yield sample

    def _samples(self, entry: Entry, variation: Variation) -> list[Sample]:
        made: list[Sample] = []
        for position, function in enumerate(samples.load().get(entry.name, [])):
            seed = self._seed(entry, variation) + position
            maker = Maker(
                entry.name, getattr(torch, variation.dtype), seed, variation.layout, variation.values
            )
            made += [dict(sample) for sample in function(maker)]
        return made

    def _seed(self, entry: Entry, variation: Variation) -> int:
        """The same for all layouts and ranges of values: what they do not change is seen."""
        return zlib.crc32(f"{entry.name}:{variation.dtype}:{self.seed}".encode())


def _aliased(entry: Entry, sample: Sample) -> Sample | None:
    """The sample with the updated tensor in the place of every input that is like it; None where there is none."""
    updated = next((sample.get(a.name) for a in entry.written() if entry.role(a) == "update"), None)
    if not isinstance(updated, torch.Tensor) or not updated.numel():
        return None
    changed = dict(sample)
    for argument in entry.function.arguments:
        given = sample.get(argument.name)
        if entry.role(argument) != "in" or not isinstance(given, torch.Tensor):
            continue
        if given.shape == updated.shape and given.dtype == updated.dtype:
            changed[argument.name] = updated
    return changed if any(changed[name] is not sample[name] for name in sample) else None


def _with_output(entry: Entry, sample: Sample | None, variation: Variation, seed: int) -> Sample | None:
    """The sample with its outputs laid out as the variation wants; NoReferenceError where the reference does not run."""
    if sample is None or variation.output == "contiguous":
        return sample
    maker = Maker(entry.name, getattr(torch, variation.dtype), seed, variation.output)
    reference = ReferenceRun(entry, sample, variation.dtype)
    reference.own()
    changed = dict(sample)
    for argument in entry.written():
        if entry.role(argument) in ("out", "outs"):
            changed[argument.name] = _laid_out(
                maker, sample.get(argument.name), reference.values[argument.name]
            )
    return changed


def _large_enough(values: Iterable[Any]) -> bool:
    """Whether some tensor has several elements, and none has no element."""
    sizes = [tensor.numel() for tensor in tensors_in(values)]
    return any(size > 1 for size in sizes) and all(sizes)


def _reduction(values: Iterable[Any]) -> tuple[int, int]:
    """Orders samples by how much goes into how little."""
    sizes = [tensor.numel() for tensor in tensors_in(values)]
    return max(sizes, default=0), -min(sizes, default=0)


def _shows(entry: Entry, variation: Variation, sample: Sample) -> bool:
    """Whether the layout, or the range of values, is to be seen in a tensor of several elements."""
    if variation.values != "normal" and not any(
        _has(tensor, variation.values) for tensor in tensors_in(sample.values()) if tensor.numel() > 1
    ):
        return False
    if variation.output != "contiguous":
        names = [a.name for a in entry.written() if entry.role(a) in ("out", "outs")]
        looked_at, layout = [sample.get(name) for name in names], variation.output
    else:
        looked_at, layout = list(sample.values()), variation.layout
    large = [tensor for tensor in tensors_in(looked_at) if tensor.numel() > 1]
    if layout == "offset":
        return any(tensor.storage_offset() for tensor in large)
    return bool(large) and (layout == "contiguous" or any(not tensor.is_contiguous() for tensor in large))


def _has(tensor: torch.Tensor, values: str) -> bool:
    """Whether a tensor holds values of such a range; a sample may have fixed its own."""
    if tensor.dtype == torch.bool:
        return False
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return values == "huge" and bool((tensor.abs() > torch.iinfo(tensor.dtype).max // 8).any())
    parts = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    limits = torch.finfo(parts.dtype)
    if values == "huge":
        return bool((parts.abs() > limits.max / 8).any())
    if values == "tiny":
        return 0 < float(parts.abs().max()) < 16 * limits.tiny
    return not bool(parts.isfinite().all())


def _laid_out(maker: Maker, given: Any, value: Any) -> Any:
    like = value if given is None else given
    if isinstance(like, (list, tuple)):
        return [_laid_out(maker, None, item) for item in like]
    return maker.laid_out(torch.zeros_like(like), written=True) if isinstance(like, torch.Tensor) else like


def _alike(one: Any, other: Any) -> bool:
    """Whether a variation changed nothing: same values, strides and offsets."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return (
            one.shape == other.shape
            and one.dtype == other.dtype
            and one.stride() == other.stride()
            and one.storage_offset() == other.storage_offset()
            and torch.equal(one, other)
        )
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(_alike(a, b) for a, b in zip(one, other, strict=True))
    return type(one) is type(other) and one == other
