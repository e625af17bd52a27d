"""The suite of a vendor's kernels: the samples of all operators on one device."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch

from dicore.conformance.case_filter import SelectionError
from dicore.conformance.cases import Case, case_id, split_case_id
from dicore.conformance.results import CaseResult
from dicore.conformance.suite import Suite, VendorVersion
from dlinfer.conformance.judging import check
from dlinfer.conformance.samples import SAMPLES, SOURCE, count_of, describe, make
from dlinfer.interface import OPERATORS
from dlinfer.vendors import installed, using


class SampleSource:
    """A group is an operator. The arguments of a case are drawn when it runs, so that listing cases costs nothing."""

    name = SOURCE

    def groups(self, functions: frozenset[str] | None) -> list[str]:
        return [operator for operator in SAMPLES if functions is None or operator in functions]

    def cases(self, group: str) -> Iterator[Case]:
        for number in range(count_of(group)):
            yield Case(case_id(self.name, group, number), group, *describe(group, number))


class DlinferSuite(Suite):
    """The kernels of a vendor on a device, beside the reference in float64 on the CPU."""

    name = "dlinfer"
    example_case = f"{SOURCE}:rms_norm:12"
    # Starting a worker costs seconds of imports; after so many crashes of an operator, enough is known.
    max_crashes = 3

    def __init__(self, vendor: str, device: str = "cpu", seed: int = 0) -> None:
        super().__init__(f"dlinfer on {device}", [SampleSource()])
        self.vendor = vendor
        self.device = device
        self.seed = seed
        self._stack = ExitStack()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stack": ExitStack()}

    def functions(self) -> frozenset[str]:
        return frozenset(OPERATORS)

    def versions(self) -> dict[str, Any]:
        return {"torch": torch.__version__}

    def check_device(self) -> None:
        """Registers the device, where `import torch` did not. SelectionError: it cannot be used."""
        try:
            if self.device.partition(":")[0] == "dipu" and "torch_dipu._C" not in sys.modules:
                import torch_dipu  # noqa: F401
            torch.empty(1, device=self.device)
        except (RuntimeError, AssertionError, ImportError) as error:
            text = str(error).strip().partition("\n")[0]
            raise SelectionError(f"the device {self.device!r} cannot be used: {text}") from None

    def prepare(self) -> VendorVersion:
        self.check_device()
        self._stack.enter_context(using(self.vendor))
        vendor = installed()[self.vendor].vendor
        return VendorVersion(self.vendor, vendor.version if vendor is not None else "")

    def run(self, case: Case) -> CaseResult:
        _, operator, number = split_case_id(case.id)
        return check(make(operator, number, self.seed), self.vendor, self.device)

    def worker_usable(self, result: CaseResult) -> bool:
        """An illegal access leaves a CUDA context that answers everything with the same error."""
        if result.status != "fail" or self.device == "cpu":
            return True
        try:
            torch.zeros(1, device=self.device).cpu()
        except RuntimeError:
            return False
        return True

    def close(self) -> None:
        self._stack.close()
