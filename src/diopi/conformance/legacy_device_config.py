"""device_config.py: what a device does not support, as vendors of the published suite write it.

    device_configs = {'exp': dict(name=['exp'], dtype=[Skip(np.float64)], atol=1e-3,
                                  tensor_para=dict(args=[{"ins": ["input"], "shape": [Skip((0,))]}]))}

What it skips is counted as skipped, with a reason that names the entry. Tolerances are not used: the verdict needs none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from diopi.conformance.case_files import TOLERANCES, CaseFileError, Skip, dtype_name, executed, listed
from diopi.conformance.diopi_case import DiopiCase
from diopi.conformance.legacy_names import functions_named

FILE = "device_config.py"
_OTHER_FILE = "device_configs.py"


@dataclass(frozen=True)
class Rule:
    """One entry: cases of these functions that a device leaves out."""

    entry: str
    functions: frozenset[str]
    dtypes: frozenset[str] = frozenset()
    parameters: dict[str, list[Any]] = field(default_factory=dict)
    shapes: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)
    tensor_dtypes: dict[str, frozenset[str]] = field(default_factory=dict)
    everything: bool = False

    def reason(self, case: DiopiCase) -> str | None:
        """Why a case is left out; None if it is not."""
        if case.function not in self.functions:
            return None
        if self.everything:
            return f"device_config: {self.entry}"
        if case.dtype in self.dtypes:
            return f"device_config: {self.entry}: dtype {case.dtype}"
        for name, values in self.parameters.items():
            given = case.arguments.get(name)
            if not isinstance(given, torch.Tensor) and any(_same(given, value) for value in values):
                return f"device_config: {self.entry}: {name} = {given!r}"
        return self._tensor_reason(case)

    def _tensor_reason(self, case: DiopiCase) -> str | None:
        for name, value in case.arguments.items():
            if not isinstance(value, torch.Tensor):
                continue
            if tuple(value.shape) in self.shapes.get(name, ()):
                return f"device_config: {self.entry}: {name} of shape {tuple(value.shape)}"
            dtype = str(value.dtype).removeprefix("torch.")
            if dtype in self.tensor_dtypes.get(name, frozenset()):
                return f"device_config: {self.entry}: {name} of dtype {dtype}"
        return None


def _same(given: Any, value: Any) -> bool:
    if isinstance(value, list | tuple) or isinstance(given, list | tuple):
        return isinstance(given, list | tuple) and listed(given) == listed(value)
    return type(given) is type(value) and bool(given == value)


def find(folder: Path) -> Path | None:
    """The file itself, or the one in a folder; None if there is none."""
    if folder.is_file():
        return folder
    for name in (FILE, _OTHER_FILE):
        if (folder / name).is_file():
            return folder / name
    return None


def read(path: Path) -> tuple[list[Rule], list[str]]:
    """The rules of a file, and notices for the user."""
    names = executed(path)
    tables = [v for k, v in names.items() if isinstance(v, dict) and not k.startswith("__")]
    entries = {k: v for table in tables for k, v in table.items() if isinstance(v, dict)}
    rules, notices = [], []
    for name, entry in entries.items():
        where = f"{path}: {name}"
        if "name" not in entry:
            raise CaseFileError(f"{where}: `name` is missing: the functions it is about")
        ignored = [key for key in TOLERANCES if key in entry]
        if ignored:
            notices.append(f"{where}: {', '.join(ignored)} not used: the verdict needs no tolerance")
        rules.append(_rule(where, name, entry))
    return rules, notices


def _skipped(values: Any) -> list[Any]:
    return [item.skipped for item in listed(values) if isinstance(item, Skip)]


def _rule(where: str, name: str, entry: dict[str, Any]) -> Rule:
    functions: frozenset[str] = frozenset()
    everything = False
    for function in listed(entry["name"]):
        everything = everything or isinstance(function, Skip)
        plain = function.skipped if isinstance(function, Skip) else function
        functions |= functions_named(str(plain), where)
    shapes: dict[str, list[tuple[int, ...]]] = {}
    dtypes: dict[str, frozenset[str]] = {}
    for argument in entry.get("tensor_para", {}).get("args", ()):
        for tensor in listed(argument["ins"]):
            shapes[tensor] = [tuple(shape) for shape in _skipped(argument.get("shape", ()))]
            dtypes[tensor] = frozenset(dtype_name(where, d) for d in _skipped(argument.get("dtype", ())))
    return Rule(
        entry=name,
        functions=functions,
        dtypes=frozenset(dtype_name(where, d) for d in _skipped(entry.get("dtype", ()))),
        parameters={key: _skipped(values) for key, values in entry.get("para", {}).items()},
        shapes=shapes,
        tensor_dtypes=dtypes,
        everything=everything,
    )
