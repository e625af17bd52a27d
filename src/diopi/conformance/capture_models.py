"""Captures the ATen calls of a training step of every model into data/models.json.gz."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from diopi.conformance import models
from diopi.conformance.capture_format import elements, encoded_call, encoded_result, signature
from diopi.conformance.capture_mode import CallWatcher

FILE = "models.json.gz"
_LARGEST = 20_000
# They give memory or numbers to the host and compute nothing.
_NOTHING = ("empty", "new_empty", "detach", "_local_scalar_dense", "_unsafe_view", "lift_fresh")


class Capture:
    """The distinct calls of all models so far, and which of them each model makes."""

    def __init__(self) -> None:
        self.calls: list[list[Any]] = []
        self.models: dict[str, list[int]] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}

    def run(self, name: str) -> None:
        """One training step of a model, seeded by its name."""
        seed = zlib.crc32(name.encode())
        torch.manual_seed(seed)
        random.seed(seed)
        step = models.load()[name]()
        step.module.train()
        mine: dict[int, None] = {}
        optimizer = _optimizer(step)
        with CallWatcher(lambda overload, values: self._watch(mine, overload, values)):
            loss = step.loss()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(step.module.parameters(), 1.0, foreach=False)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        self.models[name] = list(mine)

    def _watch(
        self, mine: dict[int, None], overload: str, values: dict[str, Any]
    ) -> Callable[[Any], None] | None:
        if overload.partition(".")[0].startswith(_NOTHING) or elements(values) > _LARGEST:
            return None
        key = signature(overload, values)
        if key in self._numbers:
            mine[self._numbers[key]] = None
            return None
        try:
            arguments = encoded_call(values)
        except TypeError:
            return None

        def finish(result: Any) -> None:
            number = self._numbers[key] = len(self.calls)
            mine[number] = None
            self.calls.append([overload, arguments, encoded_result(result)])

        return finish

    def document(self) -> dict[str, Any]:
        return {"calls": self.calls, "models": self.models}


def _optimizer(step: models.Step) -> torch.optim.Optimizer:
    parameters = [p for p in step.module.parameters() if p.requires_grad]
    if step.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4, foreach=False)
    fused = step.optimizer == "adamw_fused"
    return torch.optim.AdamW(parameters, lr=1e-3, fused=fused, foreach=False if not fused else None)


def write(folder: Path, names: list[str]) -> None:
    """Captures these models (all without names) and writes the file."""
    known = models.load()
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"no such model: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    capture = Capture()
    for name in names or known:
        try:
            capture.run(name)
        except ImportError as error:
            raise SystemExit(f"{name} needs a library ({error}): pip install transformers") from error
        print(f"{name}: {len(capture.models[name])} distinct calls, {len(capture.calls)} of all models")
    text = json.dumps(capture.document(), separators=(",", ":"))
    (folder / FILE).write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{folder / FILE}: {len(capture.calls)} calls of {len(capture.models)} models")
