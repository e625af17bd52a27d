"""The test of an operator: its cases are declared once, in dicp.conformance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dicp.conformance.compilation import Compilation, compilation_of
from dicp.conformance.operator_cases import OperatorCase, OperatorSource, run_operator_case

from .options import MODES
from .utils import get_device, parse_args

__all__ = ["checked_operator", "compilation"]


@pytest.fixture(scope="module")
def compilation() -> Iterator[Compilation]:
    """The backend of the command line, observed."""
    with compilation_of(parse_args().backend, get_device()) as found:
        yield found


def checked_operator(module: str) -> Callable[..., Any]:
    """The test function of `test_NAME`: every declared case of the operator NAME in the modes of the command line.

    What the backend leaves to eager PyTorch gives the right result too, and is skipped with the reason.
    """
    name = module.rpartition(".test_")[2]
    cases = list(OperatorSource(tuple(MODES[parse_args().dynamic])).cases(name))

    @pytest.mark.parametrize(
        "case", cases, ids=lambda case: f"{case.dtype}-{case.label.replace(' ', '-')}-{case.id}"
    )
    def test_operator(case: OperatorCase, compilation: Compilation) -> None:
        result = run_operator_case(case, compilation)
        if result.status in ("unsupported", "skipped"):
            pytest.skip(result.reason)
        assert result.status == "pass", result.reason

    return test_operator
