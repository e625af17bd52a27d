"""Finds captured calls in a tree of files, in every layout that the tools have written so far.

<op>/<pid>/<id>/<time>/input.pth                      today's, and with rank and host beside the pid
<op>/<pid>/autocompare/<id>/<time>/device/input.pth   calls that a comparison found wrong
<op>/<id>/device/input.pth, <pid>/<date>/<op>/<id>/input.pth
<date>/<pid>/<op>/device_input.pth                    the oldest: the side is part of the file name
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from op_tools.storage import CaptureError, Opaque, load
from op_tools.trees import flat_tensors

__all__ = [
    "GENERATOR",
    "PARTS",
    "CapturedCall",
    "Item",
    "call_number",
    "described_values",
    "find_items",
    "opaque_values",
    "operator_name",
    "read_description",
    "read_item",
    "whole_number",
]

_INPUT = "input.pth"
PARTS = ("output", "grad_inputs", "grad_outputs")  # beside the input
_GRADIENTS = PARTS[1:]
_WHY_MISSING = "It was removed, or the run ended before it was saved: capture the call again."
_SIDES = ("device_", "cpu_")
_LARGEST_DESCRIPTION = 1 << 20
_LONGEST_NUMBER = 19
GENERATOR = "torch._C.Generator"
_OPERATOR = re.compile(r"(?:[A-Za-z_]\w*\.)+\w+")


@dataclass(frozen=True)
class Item:
    """One captured call: its folder, and what its files' names begin with."""

    folder: Path
    prefix: str = ""

    @property
    def label(self) -> str:
        return str(self.folder / self.prefix.rstrip("_")) if self.prefix else str(self.folder)

    def file(self, part: str) -> Path:
        return self.folder / f"{self.prefix}{part}.pth"


@dataclass(frozen=True)
class CapturedCall:
    """The values of a captured call. Parts that were not captured are None."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Any, ...] | None
    grad_inputs: tuple[Any, ...] | None
    grad_outputs: tuple[Any, ...] | None
    header: Mapping[str, Any]
    written: tuple[Any, ...] = ()  # what the call wrote to and did not give back, after the call
    forward_id: int | None = None  # as its header or its folder says
    unread: Mapping[str, str] = field(default_factory=dict)  # parts that are damaged or missing, and why

    @property
    def call_site(self) -> str:
        return str(self.header.get("call_site") or "")

    @property
    def device(self) -> str:
        """Where the call ran, as its header says; empty where it does not say."""
        return str(self.header.get("device") or "")

    @property
    def autocast(self) -> tuple[bool, torch.dtype] | None:
        """Whether the call was made under autocast, as its header says, and to which dtype."""
        said = self.extra.get("autocast")
        if not isinstance(said, list | tuple) or len(said) != 2:
            return None
        dtype = said[1]
        if not isinstance(dtype, torch.dtype):
            dtype = getattr(torch, str(said[1]).removeprefix("torch."), None)
        return (bool(said[0]), dtype) if isinstance(dtype, torch.dtype) else None

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensor inputs in the order that gradients and written inputs count them."""
        return flat_tensors(self.args, self.kwargs)

    @property
    def gradients(self) -> dict[int, torch.Tensor]:
        """Index of a tensor input -> its captured gradient; empty where some fit no input.

        Lists without gaps are fitted by their shapes, in order.
        """
        inputs, saved = self.tensors, self.grad_inputs or ()
        if len(saved) == len(inputs):
            return {index: grad for index, grad in enumerate(saved) if isinstance(grad, torch.Tensor)}
        grads = flat_tensors(saved, {})
        marked = any(tensor.requires_grad for tensor in inputs)
        found: dict[int, torch.Tensor] = {}
        for index, tensor in enumerate(inputs):
            if len(found) == len(grads):
                break
            grad = grads[len(found)]
            fits = tensor.shape == grad.shape and (tensor.is_floating_point() or tensor.is_complex())
            if fits and (tensor.requires_grad or not marked):
                found[index] = grad
        return found if len(found) == len(grads) else {}

    @property
    def host_tensors(self) -> frozenset[int]:
        """Ids of inputs that were on the host in a call that also had some on an accelerator."""
        unique = list({id(tensor): tensor for tensor in self.tensors})
        devices = self.header.get("devices")
        if not isinstance(devices, list | tuple) or len(unique) != len(devices):
            return frozenset()
        if all(str(device) == "cpu" for device in devices):
            return frozenset()
        return frozenset(key for key, device in zip(unique, devices, strict=True) if str(device) == "cpu")

    @property
    def extra(self) -> Mapping[str, Any]:
        """What the capturing tool added to the header, such as the autocast state."""
        extra = self.header.get("extra")
        return extra if isinstance(extra, dict) else {}


def find_items(root: str | os.PathLike[str]) -> list[Item]:
    """All calls under `root` (a tree, a call's folder, or its input file) in the order of their numbers."""
    start = Path(root)
    if start.is_file():
        prefix = start.name.removesuffix(_INPUT)
        is_input = start.name.endswith(_INPUT) and prefix in ("", *_SIDES)
        return [Item(start.parent, prefix)] if is_input else []
    found: list[Item] = []
    for folder, _, files in os.walk(start):  # does not follow links out of the tree
        if _INPUT in files:
            found.append(Item(Path(folder)))
        prefixes = [prefix for prefix in _SIDES if f"{prefix}{_INPUT}" in files]
        found += [Item(Path(folder), prefix) for prefix in prefixes[:1]]
    # The side 'cpu' holds what the reference was given; where the device's side is there, that is replayed.
    devices = {item.folder.parent for item in found if item.folder.name == "device"}
    found = [item for item in found if item.folder.name != "cpu" or item.folder.parent not in devices]
    return sorted(found, key=lambda item: _natural(item.label))


def _natural(text: str) -> list[tuple[int, str]]:
    """'9' before '10'."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", text)]


def read_item(item: Item, parts: Container[str] = PARTS) -> CapturedCall:
    """Load a call with those of its parts that are wanted. Raises CaptureError where the input cannot be read; what is
    the matter with other parts stands in `unread`."""
    data = load(item.file("input"))
    unread: dict[str, str] = {}
    found: dict[str, dict[str, Any]] = {}
    for part in PARTS:
        if part in parts and os.path.lexists(item.file(part)):
            try:
                found[part] = load(item.file(part))
            except CaptureError as error:
                unread[part] = str(error)
    header = data.get("__op_tools__") or {}
    headers = [header, *(loaded.get("__op_tools__") or {} for loaded in found.values())]
    for part in _promised(item, headers):
        if part in parts and part not in found and part not in unread:
            unread[part] = f"{item.file(part)} is missing. {_WHY_MISSING}"
    values = {part: tuple(loaded["args"]) for part, loaded in found.items()}
    return CapturedCall(
        name=operator_name(item, header),
        args=tuple(data["args"]),
        kwargs=dict(data.get("kwargs") or {}),
        outputs=values.get("output"),
        grad_inputs=values.get("grad_inputs"),
        grad_outputs=values.get("grad_outputs"),
        header=header,
        written=_written(found.get("output", {}).get("kwargs")),
        forward_id=call_number(item, header),
        unread=unread,
    )


def whole_number(value: Any) -> int | None:
    """A number that a file says; None where it is none that a log, a table or a database can hold."""
    return value if type(value) is int and abs(value) < 1 << 63 else None


def call_number(item: Item, header: Mapping[str, Any]) -> int | None:
    """The number of the call. Older layouts have it only in the folders: the last number below the operator's name."""
    said = whole_number(header.get("forward_id"))
    if said is not None:
        return said
    folders = list(item.folder.parts)
    operator = next((n for n, part in enumerate(folders) if _OPERATOR.fullmatch(part)), len(folders))
    numbers = [part for part in folders[operator:] if part.isdecimal() and len(part) < _LONGEST_NUMBER]
    return int(numbers[-1]) if numbers else None


def _promised(item: Item, headers: Sequence[Mapping[str, Any]]) -> set[str]:
    """The parts that must be there: named by a header, or described beside the place where they should be."""
    named = {part for header in headers for part in _words(header.get("parts"))}
    described = {part for part in PARTS if os.path.lexists(f"{item.file(part)}.json")}
    # One of the two gradients says nothing without the other.
    gradients = {part for part in _GRADIENTS if os.path.lexists(item.file(part))}
    return named | described | (set(_GRADIENTS) if gradients else set())


def _words(value: Any) -> Sequence[str]:
    return [word for word in value if isinstance(word, str)] if isinstance(value, list | tuple) else ()


def _written(kwargs: Any) -> tuple[torch.Tensor, ...]:
    """What lies beside the outputs; files of other tools may have anything there."""
    found = kwargs.get("written") if isinstance(kwargs, dict) else None
    if not isinstance(found, list | tuple) or not all(isinstance(value, torch.Tensor) for value in found):
        return ()
    return tuple(found)


def operator_name(item: Item, header: Mapping[str, Any]) -> str:
    """The operator: as the file says, or the description beside it (by published tools), or else as the folder is called."""
    said = header.get("operator") or read_description(item.file("input")).get("op")
    if isinstance(said, str) and said:
        return said
    for part in reversed(item.folder.parts):
        if _OPERATOR.fullmatch(part) and not part.endswith(".pth"):
            return part
    return ""


def read_description(path: Path) -> dict[str, Any]:
    """What lies beside a captured part for people to read; empty where it cannot be read."""
    path = path.with_name(path.name + ".json")
    try:
        if path.is_symlink() or path.stat().st_size > _LARGEST_DESCRIPTION:
            return {}
        described = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return described if isinstance(described, dict) else {}


def described_values(path: Path) -> list[Any]:
    """The values of a captured part in order, without reading tensors: numbers as they are, tensors as dicts that say what
    they look like."""
    described = read_description(path)
    found: list[Any] = []
    pending: list[Any] = [described.get("kwargs"), described.get("args")]
    while pending:
        value = pending.pop()
        if isinstance(value, dict) and not (isinstance(value.get("shape"), list) and "dtype" in value):
            value = list(value.values())
        if isinstance(value, list):
            pending += reversed(value)
        elif isinstance(value, dict | int | float | bool):
            found.append(value)
    return found


def opaque_values(captured: CapturedCall) -> list[Opaque]:
    """Inputs of which only a description was saved."""
    found: list[Opaque] = []
    pending: list[Any] = [captured.args, captured.kwargs]
    while pending:
        value = pending.pop()
        if isinstance(value, Opaque):
            if value.type_name != GENERATOR:  # a fresh one does as well: random results are judged as such
                found.append(value)
        elif isinstance(value, list | tuple | set | frozenset):
            pending += list(value)
        elif isinstance(value, dict):
            pending += list(value.values())
    return found
