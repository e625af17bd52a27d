"""Sources as the published flags change them: other layouts, four-byte numbers, what a device does not support; and data
that another machine wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from diopi.conformance.case import Case
from diopi.conformance.legacy_device_config import Rule
from diopi.conformance.reference_run import NoReferenceError, ReferenceRun
from diopi.conformance.source import Source, case_id
from diopi.table import load

_FOUR_BYTES = {torch.float64: torch.float32, torch.int64: torch.int32, torch.complex128: torch.complex64}
_SUFFIX = ".pt"


@dataclass
class AdjustedSource:
    """The cases of another source, changed; what rules leave out bears the reason in its label."""

    source: Source
    rules: tuple[Rule, ...] = ()
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
            changed = self._changed(case)
            if changed.dtype in self.unwanted_dtypes:
                continue
            reason = next((r for rule in self.rules if (r := rule.reason(changed)) is not None), None)
            yield changed if reason is None else replace(changed, label=reason)

    def _changed(self, case: Case) -> Case:
        if self.nhwc_min_dim is None and not self.four_bytes:
            return case
        entry = load().entries[case.function]
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


# ---- data for another machine ----


def _stored(value: Any, *, output: bool) -> Any:
    if isinstance(value, list):
        return [_stored(item, output=output) for item in value]
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value) if output else value.detach()
    return value


def write_data(folder: Path, source: Source, group: str, wanted: frozenset[str] | None) -> int:
    """Writes the inputs and references of a group; gives the number of cases."""
    rows = []
    for case in source.cases(group):
        entry = load().entries.get(case.function)
        if entry is None or (wanted is not None and case.function not in wanted):
            continue
        run = ReferenceRun(entry, case.arguments)
        try:
            run.own()
        except NoReferenceError:
            continue
        outputs = {a.name for a in entry.written() if entry.role(a) in ("out", "outs")}
        expected = {name: value for name, value in run.values.items() if name not in run.drawn}
        rows.append(
            {
                "id": case.id,
                "function": case.function,
                "dtype": case.dtype,
                "label": case.label,
                "arguments": {n: _stored(v, output=n in outputs) for n, v in case.arguments.items()},
                "expected": expected,
            }
        )
    if rows:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{source.name}-{group.replace('/', '_')}{_SUFFIX}"
        unfinished = path.with_suffix(".part")
        torch.save({"version": 1, "source": source.name, "group": group, "cases": rows}, unfinished)
        unfinished.rename(path)
    return len(rows)


class DataSource:
    """Cases from a folder that gen_data wrote. A group is a file."""

    name = "data"

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def groups(self, functions: frozenset[str] | None) -> list[str]:
        """All files: what they hold is known when they are read."""
        return sorted(path.stem for path in self.folder.glob(f"*{_SUFFIX}"))

    def cases(self, group: str) -> Iterator[Case]:
        """The stored cases. A stored reference that this machine's disagrees with is an error: one of the two is damaged."""
        path = self.folder / f"{group}{_SUFFIX}"
        document = torch.load(path, weights_only=True)
        for number, row in enumerate(document["cases"]):
            _compare(path, row)
            identity = case_id(self.name, group, number)
            yield Case(identity, row["function"], row["arguments"], row["dtype"], row["label"])


def _compare(path: Path, row: dict[str, Any]) -> None:
    run = ReferenceRun(load().entries[row["function"]], row["arguments"])
    run.own()
    for name, stored in row["expected"].items():
        if not _close(stored, run.values.get(name)):
            raise ValueError(
                f"{path}: {row['id']}: the stored reference of {name} is not what this machine computes; "
                "the file is damaged or was written for another version of the operator table"
            )


def _close(stored: Any, here: Any) -> bool:
    if isinstance(stored, list):
        same_length = isinstance(here, list) and len(here) == len(stored)
        return same_length and all(_close(a, b) for a, b in zip(stored, here, strict=True))
    if not isinstance(stored, torch.Tensor):
        return stored is None or here is None or bool(stored == here) or str(stored) == str(here)
    if not isinstance(here, torch.Tensor) or stored.shape != here.shape or stored.dtype != here.dtype:
        return False
    if not stored.is_floating_point() and not stored.is_complex():
        return True  # positions may differ where values tie
    scale = stored[stored.isfinite()].abs().amax().item() if stored[stored.isfinite()].numel() else 0.0
    loose = 0.05 if stored.dtype in (torch.float16, torch.bfloat16) else 1e-3
    return torch.allclose(stored, here, rtol=loose, atol=loose * max(scale, 1e-30), equal_nan=True)
