"""The suite of a backend of torch.compile: operators alone, and models."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, ClassVar

import torch

from dicore.conformance.cases import Case, CaseSource
from dicore.conformance.results import CaseResult
from dicore.conformance.suite import Suite, SuiteError, VendorVersion
from dicp.conformance.compilation import Compilation, compilation_of
from dicp.conformance.declaration import OPERATORS
from dicp.conformance.operator_cases import OperatorCase, OperatorSource, run_operator_case
from dicp.errors import DicpError
from dicp.registry import find

__all__ = ["MODES", "DicpSuite"]

MODES = {"false": (False,), "true": (True,), "all": (False, True)}
"""What may be said of sizes: fixed, any, both."""


class DicpSuite(Suite):
    """A backend beside eager PyTorch."""

    name = "dicp"
    example_case = "operators:add:12"
    max_crashes = 3
    environment: ClassVar[Mapping[str, str | None]] = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

    def __init__(self, backend: str, device: str = "cpu", dynamic: str = "all", seed: int = 0) -> None:
        sources: list[CaseSource] = [OperatorSource(MODES[dynamic])]
        super().__init__(f"{backend} on {device}", sources)
        self.backend, self.device, self.seed = backend, device, seed
        self._stack = ExitStack()
        self._compilation: Compilation | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stack": ExitStack(), "_compilation": None}

    def functions(self) -> frozenset[str]:
        return frozenset(OPERATORS)

    def versions(self) -> dict[str, Any]:
        return {"torch": torch.__version__}

    def prepare(self) -> VendorVersion:
        try:
            torch.empty(1, device=self.device)
            self._compilation = self._stack.enter_context(compilation_of(self.backend, self.device))
        except (DicpError, RuntimeError, AssertionError) as error:
            raise SuiteError(str(error)) from None
        return VendorVersion(self.backend, str(getattr(find(self.backend), "version", "")))

    def run(self, case: Case) -> CaseResult:
        assert self._compilation is not None and isinstance(case, OperatorCase)
        try:
            return run_operator_case(case, self._compilation, self.seed)
        except Exception as error:
            return case.result("fail", f"raised {type(error).__name__}: {_line(error)}")

    def close(self) -> None:
        self._stack.close()


def _line(error: BaseException) -> str:
    """What was raised first: torch wraps the errors of a backend."""
    while (inner := getattr(error, "inner_exception", None) or error.__cause__) is not None:
        error = inner
    return str(error).strip().partition("\n")[0][:300]
