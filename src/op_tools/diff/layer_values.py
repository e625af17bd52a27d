"""Reads what OpLayers recorded in a run, and measures how far two values are from each other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from op_tools.runs import CAPTURES, NOTHING, BadInput, Run
from op_tools.storage import CaptureError, load
from op_tools.verdict.closeness import cosine_similarity
from op_tools.verdict.rounding import real_parts

__all__ = [
    "Difference",
    "LayerCall",
    "LayerValues",
    "RecordedLayers",
    "difference",
    "read_layers",
    "read_values",
]

TOOL = "layers"
HOW_TO_RECORD = (
    "Record one iteration in each run, for example `ditorch run script.py --tool layers --results A`, or "
    "`with op_tools.OpLayers(results='A'):` around the iteration."
)
Key = tuple[int, int, str, str, int]  # rank, step, model, path, call


@dataclass(frozen=True)
class LayerCall:
    """One call of a module, as its row says."""

    key: Key
    number: int  # in the order in which calls began
    parent: int
    name: str
    class_name: str
    folder: Path
    call_site: str

    @property
    def label(self) -> str:
        """The path, and which call of it where there are several."""
        return self.name if self.key[4] == 0 else f"{self.name} (call {self.key[4] + 1})"

    @property
    def is_complete(self) -> bool:
        """Whether what went in and what came out is on disk."""
        return all((self.folder / f"{part}.pth").is_file() for part in ("input", "output"))


@dataclass(frozen=True)
class RecordedLayers:
    """The module calls of a run by key, in the order in which they began."""

    path: Path
    calls: Mapping[Key, LayerCall]
    notes: tuple[str, ...] = ()

    @property
    def ranks(self) -> list[int]:
        return sorted({key[0] for key in self.calls})


@dataclass(frozen=True)
class LayerValues:
    """The tensors of one call. A gradient that was not recorded is None."""

    header: Mapping[str, Any]
    inputs: tuple[Any, ...]
    weights: Mapping[str, Any]
    buffers: Mapping[str, Any]
    outputs: tuple[Any, ...]
    grad_inputs: tuple[Any, ...]
    grad_weights: Mapping[str, Any]
    grad_outputs: tuple[Any, ...]

    @property
    def facts(self) -> Mapping[str, Any]:
        """Class, constants, training, autocast."""
        extra = self.header.get("extra")
        return extra if isinstance(extra, dict) else {}


def read_layers(run: Run) -> RecordedLayers:
    """The calls that OpLayers recorded in a run. Raises BadInput where there are none."""
    paths = run.logs.get(TOOL, ())
    if not paths:
        others = f" It has results of: {', '.join(sorted(run.logs))}." if run.logs else ""
        raise BadInput(f"{run.path} has no recording of layers.{others} {HOW_TO_RECORD}", NOTHING)
    newest: dict[int, dict[Key, LayerCall]] = {}
    notes: list[str] = []
    for path, contents in zip(paths, run.contents(TOOL), strict=True):
        by_rank: dict[int, dict[Key, LayerCall]] = {}
        for row in contents.rows:
            call = _call(path, {"rank": contents.header.get("rank", 0), **row})
            if call is not None:
                by_rank.setdefault(call.key[0], {})[call.key] = call
        for rank, calls in by_rank.items():
            if rank in newest:
                notes.append(f"{run.path} holds several recordings of rank {rank}; the newest is compared")
            newest[rank] = calls
    found = [call for calls in newest.values() for call in calls.values()]
    if not found:
        raise BadInput(f"{run.path}: the recording of layers has no module call. {HOW_TO_RECORD}", NOTHING)
    found.sort(key=lambda call: (call.key[0], call.key[1], call.number))
    return RecordedLayers(run.path, {call.key: call for call in found}, tuple(dict.fromkeys(notes)))


def _call(log: Path, row: Mapping[str, Any]) -> LayerCall | None:
    folder = row.get("folder")
    if not isinstance(folder, str) or ".." in Path(folder).parts or Path(folder).is_absolute():
        return None
    name = str(row.get("name") or "")
    model = str(row.get("model") or "")
    numbers = [row.get(column) or 0 for column in ("rank", "step", "call", "forward_id", "parent")]
    if not all(isinstance(value, int) for value in numbers):
        return None
    rank, step, call, number, parent = numbers
    return LayerCall(
        key=(rank, step, model, "" if name == model else name, call),
        number=number,
        # A call begins after the one around it; anything else would make a circle.
        parent=parent if parent < number else 0,
        name=name,
        class_name=str(row.get("class") or ""),
        folder=log.parent / CAPTURES / folder,
        call_site=str(row.get("call_site") or ""),
    )


def read_values(call: LayerCall) -> LayerValues:
    """Load one call. Raises BadInput where its inputs or outputs cannot be read."""
    try:
        before, after = load(call.folder / "input.pth"), load(call.folder / "output.pth")
        given = _optional(call.folder / "grad_inputs.pth")
        taken = _optional(call.folder / "grad_outputs.pth")
    except (CaptureError, OSError) as error:
        raise BadInput(f"{call.label}: {error}") from error
    return LayerValues(
        header=before["__op_tools__"],
        inputs=before["args"],
        weights=_named(before, "weights"),
        buffers=_named(before, "buffers"),
        outputs=after["args"],
        grad_inputs=given["args"],
        grad_weights=_named(given, "weights"),
        grad_outputs=taken["args"],
    )


def read_weights(call: LayerCall) -> Mapping[str, Any]:
    """The weights of one call. Raises BadInput where they cannot be read."""
    try:
        return _named(load(call.folder / "input.pth"), "weights")
    except (CaptureError, OSError) as error:
        raise BadInput(f"{call.label}: {error}") from error


def _optional(path: Path) -> dict[str, Any]:
    return load(path) if path.exists() else {"args": (), "kwargs": {}}


def _named(part: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    found = part["kwargs"].get(what)
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True)
class Difference:
    """How far two values are from each other, and what they look like."""

    max_abs_diff: float = math.nan
    rel_rms: float = math.nan
    cosine: float = math.nan
    mean_a: float = math.nan
    std_a: float = math.nan
    mean_b: float = math.nan
    std_b: float = math.nan
    epsilon: float = 0.0  # of the coarser dtype of the two; 0 for integers
    note: str = ""

    @property
    def is_same(self) -> bool:
        """Bit for bit, but for the sign of zero."""
        return self.rel_rms == 0 and not self.note


def difference(a: Any, b: Any) -> Difference | None:
    """Measure two values; None where there is nothing to measure on either side."""
    if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
        return None
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return Difference(note=f"only in {'A' if isinstance(a, torch.Tensor) else 'B'}")
    epsilon = max(_epsilon(a.dtype), _epsilon(b.dtype))
    left, right = real_parts(a.detach()), real_parts(b.detach())
    moments = (*_moments(left), *_moments(right))
    if a.shape != b.shape:
        text = f"shapes differ: {list(a.shape)} and {list(b.shape)}"
        return Difference(math.inf, math.inf, math.nan, *moments, epsilon, text)
    if torch.equal(left, right):
        return Difference(0.0, 0.0, 1.0, *moments, epsilon)
    finite = left.isfinite() & right.isfinite()
    alike = finite | (left == right) | (left.isnan() & right.isnan())
    if not bool(alike.all()):
        count = int((~alike).sum())
        text = f"{count} elements are NaN or Inf on one side only"
        return Difference(math.inf, math.inf, math.nan, *moments, epsilon, text)
    left, right = left[finite], right[finite]
    off = left - right
    size = max(_rms(left), _rms(right))
    rel_rms = _rms(off) / size if size else 0.0
    largest = float(off.abs().max()) if off.numel() else 0.0
    return Difference(largest, rel_rms, cosine_similarity(left, right), *moments, epsilon)


def _epsilon(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0


def _moments(value: torch.Tensor) -> tuple[float, float]:
    if not value.numel():
        return 0.0, 0.0
    return float(value.mean()), float(value.std(correction=0))


def _rms(value: torch.Tensor) -> float:
    return float(value.square().mean().sqrt()) if value.numel() else 0.0
