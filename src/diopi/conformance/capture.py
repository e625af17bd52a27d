"""Writes the data that case sources read: `python -m diopi.conformance.capture [opinfo|models]`.

`opinfo` notes which ATen overloads each entry of PyTorch's operator database reaches, `models` captures the ATen calls of a
training step of every model. Both are committed; they depend on PyTorch (and transformers), not on the operator table.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from diopi.conformance import models
from diopi.conformance.recorded_calls import CallRecorder, elements, encoded_call, encoded_result, signature

DATA = Path(__file__).parent / "data"
FILE = "models.json.gz"
_LARGEST = 20_000
# They give memory or numbers to the host and compute nothing.
_NOTHING = ("empty", "new_empty", "detach", "_local_scalar_dense", "_unsafe_view", "lift_fresh")


def opinfo_index() -> dict[str, Any]:
    """Group -> the overloads it reaches, as numbers into one list."""
    from diopi.conformance import opinfo_source

    reached: dict[str, set[str]] = {}
    for group, entry in opinfo_source.database().items():
        found: set[str] = set()

        def note(overload: str, values: dict[str, Any], found: set[str] = found) -> None:
            found.add(overload)

        for dtype in opinfo_source.DTYPES:
            opinfo_source.run_samples(entry, dtype, note)
        reached[group] = found
    names = sorted(set().union(*reached.values()))
    numbers = {name: i for i, name in enumerate(names)}
    groups = {group: sorted(numbers[name] for name in found) for group, found in reached.items()}
    return {"overloads": names, "groups": groups}


def _write_opinfo() -> None:
    from diopi.conformance.opinfo_source import INDEX, problem

    if trouble := problem():
        raise SystemExit(trouble)
    index = opinfo_index()
    lines = [
        f"  {json.dumps(group)}: {json.dumps(found, separators=(',', ':'))}"
        for group, found in index["groups"].items()
    ]
    text = (
        '{"overloads":\n '
        + json.dumps(index["overloads"])
        + ',\n "groups": {\n'
        + ",\n".join(lines)
        + "\n}}\n"
    )
    (DATA / INDEX).write_text(text, encoding="utf-8")
    print(f"{DATA / INDEX}: {len(index['groups'])} groups reach {len(index['overloads'])} ATen overloads")


# ---- models ----


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
        with CallRecorder(lambda overload, values: self._record(mine, overload, values)):
            loss = step.loss()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(step.module.parameters(), 1.0, foreach=False)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        self.models[name] = list(mine)

    def _record(
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


def _write_models(names: list[str]) -> None:
    """Captures these models (all without names) and writes the file."""
    builders = models.load()
    if unknown := [name for name in names if name not in builders]:
        raise SystemExit(f"no such model: {', '.join(unknown)}; there are {', '.join(sorted(builders))}")
    capture = Capture()
    for name in names or builders:
        try:
            capture.run(name)
        except ImportError as error:
            raise SystemExit(f"{name} needs a library ({error}): pip install transformers") from error
        print(f"{name}: {len(capture.models[name])} distinct calls, {len(capture.calls)} of all models")
    text = json.dumps(capture.document(), separators=(",", ":"))
    (DATA / FILE).write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{DATA / FILE}: {len(capture.calls)} calls of {len(capture.models)} models")


def main(arguments: list[str]) -> int:
    """Writes what is asked for; everything without arguments."""
    if arguments and arguments[0] not in ("opinfo", "models"):
        print(
            f"unknown part {arguments[0]!r}; say opinfo or models [NAME...], or nothing for both",
            file=sys.stderr,
        )
        return 2
    if not arguments or arguments[0] == "opinfo":
        _write_opinfo()
    if not arguments or arguments[0] == "models":
        _write_models(arguments[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
