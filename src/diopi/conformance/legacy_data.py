"""Data for another machine: gen_data writes the inputs and references of cases, run_test reads them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dicore.conformance.cases import Case, CaseSource, case_id
from diopi.conformance.diopi_case import DiopiCase
from diopi.conformance.legacy_source import ExcludedCase
from diopi.conformance.reference_run import NoReferenceError, ReferenceRun
from diopi.table import Entry, load

VERSION = 1
DIFFERS = "the stored reference differs from the one computed here"
_SUFFIX = ".pt"
_ROW = {"id": str, "function": str, "dtype": str, "label": str, "arguments": dict, "expected": dict}


# ---- writing ----


@dataclass
class WrittenGroup:
    """What came of a group."""

    cases: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    """Function (or entry of PyTorch's operator database) -> cases that torch itself does not know."""
    problems: list[str] = field(default_factory=list)
    """Cases whose reference should have run and did not."""

    def leave_out(self, case: Case) -> None:
        """Counts a case that has no reference."""
        name = case.function or case.label
        self.left_out[name] = self.left_out.get(name, 0) + 1


def write_data(folder: Path, source: CaseSource, group: str, wanted: frozenset[str] | None) -> WrittenGroup:
    """Writes the inputs and references of a group into a file of the folder; none if there is no case."""
    done = WrittenGroup()
    rows = []
    for case in source.cases(group):
        if wanted is not None and case.function and case.function not in wanted:
            continue
        if not isinstance(case, DiopiCase):
            done.leave_out(case)
            continue
        entry = load().entries.get(case.function)
        if entry is None:
            done.problems.append(f"{case.id}: {case.function} has no entry in the operator table")
            continue
        try:
            rows.append(_row(entry, case))
        except NoReferenceError as error:
            if error.expected:
                done.leave_out(case)
            else:
                done.problems.append(f"{case.id}: {error}")
    if rows:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{source.name}-{group.replace('/', '_')}{_SUFFIX}"
        unfinished = path.with_suffix(".part")
        torch.save({"version": VERSION, "source": source.name, "group": group, "cases": rows}, unfinished)
        unfinished.rename(path)
    done.cases = len(rows)
    return done


def _row(entry: Entry, case: DiopiCase) -> dict[str, Any]:
    run = ReferenceRun(entry, case.arguments, case.dtype)
    run.own()
    outputs = {a.name for a in entry.written() if entry.role(a) in ("out", "outs")}
    return {
        "id": case.id,
        "function": case.function,
        "dtype": case.dtype,
        "label": case.label,
        "arguments": {n: _stored(v, output=n in outputs) for n, v in case.arguments.items()},
        "expected": {name: _own(value) for name, value in run.values.items() if name not in run.drawn},
    }


def _own(value: Any) -> Any:
    """A result with memory of its own: a view of an input in another dtype cannot be saved beside it."""
    if isinstance(value, list):
        return [_own(item) for item in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


def _stored(value: Any, *, output: bool) -> Any:
    if isinstance(value, list):
        return [_stored(item, output=output) for item in value]
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value) if output else value.detach()
    return value


# ---- reading ----


@dataclass(frozen=True)
class DataFile:
    """What a file holds, without its tensors."""

    stem: str
    source: str
    group: str
    functions: frozenset[str]
    cases: int


def data_files(folder: Path) -> tuple[list[DataFile], list[str]]:
    """The files of a folder that gen_data wrote, and a notice for each other file of that name."""
    found: list[DataFile] = []
    notices: list[str] = []
    for path in sorted(folder.glob(f"*{_SUFFIX}")):
        read = _described(path)
        if isinstance(read, str):
            notices.append(f"{path} is ignored: {read}")
        else:
            found.append(read)
    return found, notices


def _described(path: Path) -> DataFile | str:
    """What the file holds, or why it is none of ours. `mmap`: the tensors are not read."""
    try:
        document = torch.load(path, weights_only=True, mmap=True)
    except Exception as error:  # torch.load has no error of its own: any file may be there
        return f"--mode gen_data did not write it, or it is damaged ({type(error).__name__})"
    if not isinstance(document, dict) or "version" not in document or "cases" not in document:
        return "--mode gen_data did not write it"
    if document["version"] != VERSION:
        return f"its version is {document['version']!r}, not {VERSION}; write it again with --mode gen_data"
    rows, source, group = document["cases"], document.get("source"), document.get("group")
    if not isinstance(source, str) or not isinstance(group, str) or not isinstance(rows, list):
        return "it is damaged; write it again with --mode gen_data"
    if not rows or not all(_is_row(row) for row in rows):
        return "it has no cases, or damaged ones; write it again with --mode gen_data"
    return DataFile(path.stem, source, group, frozenset(row["function"] for row in rows), len(rows))


def _is_row(row: Any) -> bool:
    return isinstance(row, dict) and all(isinstance(row.get(key), kind) for key, kind in _ROW.items())


class DataSource:
    """Cases from a folder that gen_data wrote. A group is a file."""

    name = "data"

    def __init__(self, folder: Path, files: list[DataFile] | None = None) -> None:
        """Without `files`: all that gen_data wrote there."""
        self.folder = folder.absolute()
        self.files = data_files(self.folder)[0] if files is None else files

    def groups(self, functions: frozenset[str] | None) -> list[str]:
        """The files that hold one of these functions."""
        return [file.stem for file in self.files if functions is None or file.functions & functions]

    def cases(self, group: str) -> Iterator[DiopiCase]:
        """The stored cases. Where the stored reference is another than this machine's, the case is marked with that."""
        document = torch.load(self.folder / f"{group}{_SUFFIX}", weights_only=True)
        for number, row in enumerate(document["cases"]):
            identity = case_id(self.name, group, number)
            case = DiopiCase(identity, row["function"], row["dtype"], row["label"], row["arguments"])
            reason = _difference(row)
            yield case if reason is None else ExcludedCase.of(case, "fail", reason)


def _difference(row: dict[str, Any]) -> str | None:
    """In which results the stored reference is another; None if in none, or if the verdict will say that it has none."""
    entry = load().entries.get(row["function"])
    if entry is None or entry.tolerance == "none":
        return None
    run = ReferenceRun(entry, row["arguments"])
    try:
        run.own()
    except NoReferenceError:
        return None  # the verdict says that there is no reference
    ties = entry.tolerance in ("index", "distribution") or entry.category == "random"
    here = {name: value for name, value in run.values.items() if name not in run.drawn}
    stored = row["expected"]
    names = [n for n in {**stored, **here} if not _close(stored.get(n), here.get(n), ties=ties)]
    if not names:
        return None
    return (
        f"{DIFFERS}: {', '.join(names)} of {row['id']}; the file is damaged or was written for another "
        "version of the operator table: write it again with --mode gen_data"
    )


def _close(stored: Any, here: Any, *, ties: bool) -> bool:
    """`ties`: integers may differ, because they are positions of equal values or drawn ones."""
    if isinstance(stored, list):
        same_length = isinstance(here, list) and len(here) == len(stored)
        return same_length and all(_close(a, b, ties=ties) for a, b in zip(stored, here, strict=True))
    if isinstance(stored, float) and isinstance(here, float):
        return math.isclose(stored, here, rel_tol=1e-3) or (math.isnan(stored) and math.isnan(here))
    if not isinstance(stored, torch.Tensor):
        return type(stored) is type(here) and (stored == here or str(stored) == str(here))
    if not isinstance(here, torch.Tensor) or stored.shape != here.shape or stored.dtype != here.dtype:
        return False
    if not stored.is_floating_point() and not stored.is_complex():
        return ties or torch.equal(stored, here)
    finite = stored[stored.isfinite()]
    scale = finite.abs().amax().item() if finite.numel() else 0.0
    loose = 0.05 if stored.dtype in (torch.float16, torch.bfloat16) else 1e-3
    return torch.allclose(stored, here, rtol=loose, atol=loose * max(scale, 1e-30), equal_nan=True)
