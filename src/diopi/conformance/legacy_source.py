"""Sources as the published flags change them: other layouts, four-byte numbers, and what a device_config.py leaves out.

    device_configs = {'exp': dict(name=['exp'], dtype=[Skip(np.float64)], atol=1e-3,
                                  tensor_para=dict(args=[{"ins": ["input"], "shape": [Skip((0,))]}]))}

What such a file of a vendor skips is counted as skipped, with a reason that names the entry. Tolerances are not used: the
verdict needs none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dicore.conformance.cases import Case, CaseSource
from dicore.conformance.results import Status
from diopi.conformance.case_files import TOLERANCES, CaseFileError, Skip, dtype_name, executed, listed
from diopi.conformance.diopi_case import DiopiCase
from diopi.conformance.legacy_options import functions_named
from diopi.table import load

_FILES = ("device_config.py", "device_configs.py")


@dataclass(frozen=True)
class DeviceRule:
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


def find_device_config(folder: Path) -> Path | None:
    """The file itself, or the one in a folder; None if there is none."""
    if folder.is_file():
        return folder
    for name in _FILES:
        if (folder / name).is_file():
            return folder / name
    return None


def read_device_config(path: Path) -> tuple[list[DeviceRule], list[str]]:
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


def _rule(where: str, name: str, entry: dict[str, Any]) -> DeviceRule:
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
    return DeviceRule(
        entry=name,
        functions=functions,
        dtypes=frozenset(dtype_name(where, d) for d in _skipped(entry.get("dtype", ()))),
        parameters={key: _skipped(values) for key, values in entry.get("para", {}).items()},
        shapes=shapes,
        tensor_dtypes=dtypes,
        everything=everything,
    )


_FOUR_BYTES = {torch.float64: torch.float32, torch.int64: torch.int32, torch.complex128: torch.complex64}


@dataclass(frozen=True, slots=True)
class ExcludedCase(DiopiCase):
    """A case that is not run here, and why: a device does not support it, or its stored reference differs from ours."""

    status: Status = "skipped"
    reason: str = ""

    @classmethod
    def of(cls, case: DiopiCase, status: Status, reason: str) -> ExcludedCase:
        return cls(case.id, case.function, case.dtype, case.label, case.arguments, status, reason)

    @property
    def outcome(self) -> tuple[Status, str] | None:
        return self.status, self.reason


@dataclass
class AdjustedSource:
    """The cases of another source, changed; what rules leave out is marked with the reason."""

    source: CaseSource
    rules: tuple[DeviceRule, ...] = ()
    nhwc_min_dim: int | None = None
    four_bytes: bool = False
    unwanted_dtypes: frozenset[str] = frozenset()

    name: str = field(init=False)
    """As the source is called, so that ids stay the same."""

    def __post_init__(self) -> None:
        self.name = self.source.name

    def groups(self, functions: frozenset[str] | None) -> list[str]:
        """Those of the source."""
        return self.source.groups(functions)

    def cases(self, group: str) -> Iterator[Case]:
        """The source's cases, changed, without those of dtypes that nobody wants."""
        for case in self.source.cases(group):
            changed = self._changed(case) if isinstance(case, DiopiCase) else case
            if changed.dtype in self.unwanted_dtypes:
                continue
            if isinstance(changed, DiopiCase) and (reason := self._reason_to_skip(changed)) is not None:
                changed = ExcludedCase.of(changed, "skipped", reason)
            yield changed

    def _reason_to_skip(self, case: DiopiCase) -> str | None:
        return next((reason for rule in self.rules if (reason := rule.reason(case)) is not None), None)

    def _changed(self, case: DiopiCase) -> DiopiCase:
        if self.nhwc_min_dim is None and not self.four_bytes:
            return case
        entry = load().entries.get(case.function)
        if entry is None:
            return case  # the verdict says so
        outputs = {a.name for a in entry.written() if entry.role(a) in ("out", "outs")}
        arguments = {n: self._value(v, output=n in outputs) for n, v in case.arguments.items()}
        dtype = case.dtype
        if self.four_bytes:
            dtype = {"float64": "float32", "int64": "int32", "complex128": "complex64"}.get(dtype, dtype)
        return replace(case, arguments=arguments, dtype=dtype)

    def _value(self, value: Any, *, output: bool) -> Any:
        if isinstance(value, list):
            return [self._value(item, output=output) for item in value]
        if not isinstance(value, torch.Tensor):
            return value
        # Positions that a function gives stay int64: the interface wants them so.
        if self.four_bytes and not (output and value.dtype == torch.int64):
            value = value.to(_FOUR_BYTES.get(value.dtype, value.dtype))
        least = self.nhwc_min_dim
        if least is not None and value.dim() >= max(3, least) and value.numel():
            order = (0, *range(2, value.dim()), 1)
            back = sorted(range(value.dim()), key=order.__getitem__)
            value = value.permute(order).contiguous().permute(back)
        return value
