"""Which calls of a training are compared (all, a sample, or those with a signature not seen before), what is held of them
until their backward, and how views are judged."""

from __future__ import annotations

import time
from collections.abc import Hashable
from typing import Any

import torch

from op_tools.storages import storage_id
from op_tools.trees import map_tensors
from op_tools.verdict import Verdict
from op_tools.verdict.tolerance import Tolerance

MODES = ("every", "sampled", "changed")


def mode(text: str) -> str:
    """Read the name of a mode."""
    word = text.strip().lower()
    if word not in MODES:
        raise ValueError(f"expected one of {', '.join(MODES)}, got {text!r}")
    return word


class Sampler:
    """Decides per call. Counts calls instead of drawing numbers: no random state is touched and runs repeat.

    Sampled: each signature at its first call, then one call in `1 / rate` of all calls, and each signature again
    once `refresh` steps have passed.
    """

    def __init__(self, mode: str, rate: float, refresh: int) -> None:
        self.mode = mode
        self.every = max(1, round(1 / rate)) if rate > 0 else 0
        self.refresh = refresh
        # signature -> step of its last comparison
        self._seen: dict[Hashable, int] = {}
        self._skipped = 0
        self.calls = 0
        self.taken = 0
        # What a budget asks and sets, as for the compiled sampler.
        self.closed_until = 0
        self.step = 0

    @property
    def signatures(self) -> int:
        return len(self._seen)

    taken_in_a_round = signatures

    def set_rounds(self, signature: int, rounds: float) -> None:
        """Here all signatures come round equally often."""

    def would_take(self, signature: Hashable, step: int) -> bool:
        """Whether a call is to be compared; if not, it is counted as passed over."""
        self.step = step
        if not self.closed_until or time.monotonic_ns() >= self.closed_until:
            last = self._seen.get(signature)
            if last is None:
                return True
            if self.mode != "changed" and (
                step - last >= self.refresh or (self.every and self._skipped + 1 >= self.every)
            ):
                return True
        self.calls += 1
        self._skipped += 1
        return False

    def takes(self, signature: Hashable, step: int) -> bool:
        """Whether the call with this signature is compared."""
        if not self.would_take(signature, step):
            return False
        self.calls += 1
        self.taken += 1
        last = self._seen.get(signature)
        if last is not None and step - last < self.refresh:
            # The rate is kept over all calls, so that rare signatures do not fall through it together.
            self._skipped = 0
        if len(self._seen) > 200_000:
            self._seen.clear()
        self._seen[signature] = step
        return True


class Held:
    """Inputs of a call kept until its backward, without copying them and without keeping its graph alive; and whether
    somebody has written to them since."""

    def __init__(self) -> None:
        self._versions: list[tuple[torch.Tensor, int]] = []
        self._detached: dict[int, torch.Tensor] = {}

    def tree(self, value: Any) -> Any:
        """The same tree with detached tensors; nothing is copied."""
        return map_tensors(value, self._held)

    def _held(self, value: torch.Tensor) -> torch.Tensor:
        detached = self._detached.get(id(value))
        if detached is None:
            detached = self._detached[id(value)] = value.detach()
            if not value.is_inference():
                self._versions.append((detached, detached._version))
        return detached

    def changed(self) -> bool:
        """Whether an input was written to since."""
        return any(tensor._version != version for tensor, version in self._versions)


def judge_view(
    mine: Any, own: Any, bases: tuple[list[torch.Tensor], list[torch.Tensor]], tolerance: Tolerance
) -> Verdict:
    """A view computes nothing: it is right when it shows the same part of its input as the reference's view, by shape,
    dtype, strides and offset."""
    ours, theirs = _facts(mine, bases[0]), _facts(own, bases[1])
    wrong = [f"{name} {a} instead of {b}" for (name, a), (_, b) in zip(ours, theirs, strict=False) if a != b]
    if not wrong:
        return Verdict.plain("same", "", tolerance)
    reason = "the view shows another part of its input: " + ", ".join(wrong)
    return Verdict.plain("fail", reason, tolerance)


def _facts(value: Any, bases: list[torch.Tensor]) -> list[tuple[str, Any]]:
    if not isinstance(value, torch.Tensor):
        return [("value", value)]
    memory = storage_id(value)
    start = next((base.storage_offset() for base in bases if storage_id(base) == memory), 0)
    # Strides of dimensions of length one or of nothing at all say nothing.
    strides = [stride for stride, length in zip(value.stride(), value.shape, strict=True) if length > 1]
    return [
        ("shape", tuple(value.shape)),
        ("dtype", value.dtype),
        ("strides", strides if value.numel() else []),
        ("offset", value.storage_offset() - start if value.numel() else 0),
    ]
