"""The suite of a DIOPI library: where its cases come from, which library it checks, and how a case runs.

Workers are forked from a process that has imported this module, so what a case needs is imported here.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from dicore.conformance.case_filter import SelectionError
from dicore.conformance.cases import Case, CaseSource, split_case_id
from dicore.conformance.results import CaseResult
from dicore.conformance.suite import Suite, SuiteError, VendorVersion
from dicore.suggestions import closest
from diopi.conformance import TORCH_ENVIRONMENT
from diopi.conformance.device_health import DeviceHealth
from diopi.conformance.diopi_case import DiopiCase, interface_functions
from diopi.conformance.judging import check
from diopi.library import Library, LibraryError
from diopi.settings import ADAPTOR_REPORT
from diopi.table import load
from diopi.vendors import choose, installed, usable

__all__ = [
    "FILE",
    "SOURCES",
    "DiopiSuite",
    "default_library",
    "named_sources",
    "source_of_case",
    "vendor_library",
]

# What cases of the user's own files are called.
FILE = "file"
# name -> module and class, imported when wanted
_SOURCES = {
    "own": ("diopi.conformance.own_source", "OwnSource"),
    "opinfo": ("diopi.conformance.opinfo_source", "OpInfoSource"),
    "models": ("diopi.conformance.model_source", "ModelSource"),
}
SOURCES = tuple(_SOURCES)


class DiopiSuite(Suite):
    """The cases of some sources against one library."""

    name = "diopi"
    example_case = "own:diopiAdd:12"
    preload = ("diopi.conformance.suite",)
    environment = TORCH_ENVIRONMENT

    def __init__(self, library: Path, sources: Sequence[CaseSource]) -> None:
        super().__init__(str(library), sources)
        self._library: Library | None = None
        self._health: DeviceHealth | None = None
        self._usable = True

    def functions(self) -> frozenset[str]:
        return interface_functions(load())

    @property
    def covers_all(self) -> bool:
        return any(source.name == "own" for source in self.sources)

    def versions(self) -> dict[str, Any]:
        return {"torch": torch.__version__}

    def prepare(self) -> VendorVersion:
        torch.set_num_threads(1)
        torch.set_warn_always(False)
        try:
            self._library = Library.open(self.subject)
        except LibraryError as error:
            raise SuiteError(str(error)) from None
        self._health = DeviceHealth(self._library.memory, self._judged)
        return VendorVersion(self._library.vendor, self._library.version)

    def run(self, case: Case) -> CaseResult:
        assert self._health is not None and isinstance(case, DiopiCase)
        result = self._judged(case)
        if problem := self._health.problem_after(case, result):
            self._usable = False
            reason = f"{result.reason}; after it the device does not work any more ({problem}), so a new process goes on"
            result.set("fail", reason)
        return result

    def _judged(self, case: DiopiCase) -> CaseResult:
        assert self._library is not None
        try:
            return check(self._library, load(), case)
        except LibraryError as error:  # of memory: nothing could be called
            return case.result("fail", str(error))

    def worker_usable(self, result: CaseResult) -> bool:
        return self._usable

    def close(self) -> None:
        report = ADAPTOR_REPORT.get()
        if self._library is not None and self._library.adaptor is not None and report:
            # It could be written when the library was opened; since then only figures are lost.
            with suppress(OSError):
                self._library.adaptor.save(Path(report))


# ---- sources by name ----


def named_sources(names: Sequence[str] | None, seed: int = 0) -> tuple[list[CaseSource], list[str]]:
    """The sources of these names (all without names), and a line for each that cannot be had."""
    found: list[CaseSource] = []
    problems: list[str] = []
    for name in names or SOURCES:
        if name not in _SOURCES:
            raise SelectionError(f"there is no source {name!r}; known are {', '.join(SOURCES)}")
        source = _made(name, seed)
        problem = source if isinstance(source, str) else _problem(source)
        if problem is None and not isinstance(source, str):
            found.append(source)
        else:
            problems.append(f"{name}: {problem}")
    return found, problems


def source_of_case(case: str, seed: int = 0) -> tuple[list[CaseSource], list[str]]:
    """The source of one case; of a model all calls, also those that other models make too."""
    try:
        name, group, _ = split_case_id(case)
    except ValueError as error:
        raise SelectionError(f"{error}; cases look like {DiopiSuite.example_case}") from None
    if name == FILE or name.startswith(f"{FILE}-"):
        raise SelectionError(f"{case} is a case of a file that you wrote; give the file with --cases")
    if name == "models":
        from diopi.conformance.model_source import ModelSource

        try:
            return [ModelSource([group])], []
        except ValueError as error:
            raise SelectionError(f"there is no case {case}: {error}") from None
    return named_sources([name], seed)


def _made(name: str, seed: int) -> CaseSource | str:
    module, made = _SOURCES[name]
    try:
        kind = getattr(importlib.import_module(module), made)
    except ModuleNotFoundError as error:
        return f"not there ({error})"
    source: CaseSource = kind(seed) if name == "own" else kind()
    return source


def _problem(source: CaseSource) -> str | None:
    """Why a source has no cases here and what to do (something is not installed)."""
    asked = getattr(source, "problem", None)
    return asked() if asked is not None else None


# ---- the library, as a user names it ----


def vendor_library(name: str, flag: str) -> Path:
    """The library of an installed vendor; SelectionError names the flag that asked for it."""
    vendors = installed()
    if os.sep in name or name.endswith(".so"):
        raise SelectionError(f"{flag} {name}: this is a path; give a file with --library")
    if name not in vendors:
        near = closest(name, vendors)
        hint = f"; did you mean {near[0]}?" if near else ""
        names = ", ".join(usable()) or "none"
        raise SelectionError(f"{flag} {name}: no such vendor is installed; installed: {names}{hint}")
    if problem := vendors[name].problem():
        raise SelectionError(f"{flag} {name}: the vendor cannot be used: {problem}")
    return vendors[name].library


def default_library() -> tuple[Path, tuple[str, str]]:
    """The library of DIPU_DEVICE or of the best installed vendor, and the flag and value that name it."""
    vendor = choose(None)
    if vendor.name in installed():
        return vendor.library, ("--vendor", vendor.name)
    return vendor.library, ("--library", str(vendor.library))
