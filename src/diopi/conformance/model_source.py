"""Cases from models: the calls of training steps, captured once and kept with the package, filled with seeded values."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import torch

from dicore.conformance.cases import case_id
from dicore.suggestions import closest
from diopi.conformance.diopi_case import DiopiCase
from diopi.conformance.opinfo_source import SEED, complete, main_dtype
from diopi.conformance.recorded_calls import decoded, decoded_result
from diopi.lowering import DiopiCall, NotServed, functions_of, lower_call

FILE = "models.json.gz"


@cache
def _document() -> dict[str, Any]:
    packed = (files("diopi.conformance") / "data" / FILE).read_bytes()
    document: dict[str, Any] = json.loads(gzip.decompress(packed))
    return document


def model_names() -> list[str]:
    """The models whose calls were captured."""
    return sorted(_document()["models"])


def functions_of_model(name: str) -> frozenset[str]:
    """The DIOPI functions that serve the calls of a model."""
    return frozenset(case.function for case in ModelSource([name]).cases(name))


@cache
def _owners() -> dict[int, str]:
    """Call -> the first model that makes it; the others only refer to it."""
    owners: dict[int, str] = {}
    for name, calls in _document()["models"].items():
        for number in calls:
            owners.setdefault(number, name)
    return owners


class ModelSource:
    """A group is a model. Without names each distinct call is one case, of the first model that makes it; with names
    the cases are all the calls of these models."""

    name = "models"

    def __init__(self, names: Iterable[str] | None = None) -> None:
        available = model_names()
        self.names = list(names) if names is not None else None
        for name in self.names or ():
            if name not in available:
                close = closest(name, available, most=3, cutoff=0.6)
                hint = f"; did you mean {' or '.join(close)}?" if close else ""
                raise ValueError(f"no model is called {name!r}{hint} (there are {', '.join(available)})")

    def groups(self, functions: frozenset[str] | None) -> list[str]:
        """Models that reach one of these functions."""
        document = _document()
        chosen = self.names if self.names is not None else list(document["models"])
        if functions is None:
            return chosen
        return [
            name
            for name in chosen
            if any(functions_of(document["calls"][n][0]) & functions for n in document["models"][name])
        ]

    def cases(self, group: str) -> Iterator[DiopiCase]:
        """The calls of a model that a DIOPI function serves. A case's number is its index among all calls of the model."""
        document, owners = _document(), _owners()
        for index, number in enumerate(document["models"][group]):
            if self.names is None and owners[number] != group:
                continue
            made = _case(*document["calls"][number])
            if made is not None:
                call, arguments = made
                yield DiopiCase(
                    case_id(self.name, group, index), call.function, main_dtype(call), group, arguments
                )


def _sensible(overload: str, values: dict[str, Any]) -> dict[str, Any]:
    """What the ranges of single arguments cannot say: classes that exist, squares that are not negative."""
    if overload.startswith("nll_loss"):
        scores = values["self" if "self" in values else "input"]
        ignored = values["target"] == values["ignore_index"]
        classes = scores.shape[1 if scores.dim() > 1 else 0]
        values["target"] = torch.where(ignored, values["target"], values["target"] % classes)
    for name in ("exp_avg_sqs", "max_exp_avg_sqs"):
        if isinstance(values.get(name), list):
            values[name] = [value.abs() for value in values[name]]
    return values


def _case(
    overload: str, given: dict[str, Any], results: list[Any]
) -> tuple[DiopiCall, dict[str, Any]] | None:
    if not functions_of(overload):
        return None
    text = json.dumps([overload, given])
    random = torch.Generator().manual_seed(zlib.crc32(text.encode()) ^ SEED)
    values = _sensible(overload, {name: decoded(value, random) for name, value in given.items()})
    try:
        call = lower_call(overload, values)
    except NotServed:
        return None
    if call.entry.reference is None:
        return None
    arguments = {
        name: SEED if isinstance(value, torch.Generator) else value for name, value in call.arguments.items()
    }
    templates = tuple(decoded_result(item) for item in results)
    if not complete(call, arguments, templates if len(templates) > 1 else templates[0]):
        return None
    return call, arguments
