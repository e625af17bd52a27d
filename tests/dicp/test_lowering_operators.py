"""Every declared operator, lowered and interpreted, gives what eager gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dicp_loop_backend import evaluated
from torch.utils._pytree import tree_leaves

import dicp.conformance.operators  # noqa: F401  (fills the table)
from dicp.conformance.declaration import OPERATORS, CallForm
from dicp.conformance.programs import function_of

pytestmark = pytest.mark.unit

CASES = [
    pytest.param(form, dtype, id=f"{name}-{number}-{str(dtype).removeprefix('torch.')}")
    for name, entry in OPERATORS.items()
    for number, form in enumerate(entry.forms)
    for dtype in dict.fromkeys((form.dtypes[0], form.dtypes[-1] if number == 0 else form.dtypes[0]))
]


def _copied(leaves: list[Any]) -> list[Any]:
    return [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


@pytest.mark.parametrize(("form", "dtype"), CASES)
def test_operator(form: CallForm, dtype: torch.dtype) -> None:
    made = function_of([(form.overload, form.arguments(form.sizes[-1].static, dtype))])
    torch.manual_seed(1)
    expected = tree_leaves(made.function(*_copied(made.leaves)))
    torch.manual_seed(1)
    found = evaluated(made.function, _copied(made.leaves))
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        if not form.compares_values:
            assert (a.shape, a.dtype) == (b.shape, b.dtype)
            continue
        half = b.dtype in (torch.float16, torch.bfloat16)
        tolerance = {"rtol": 3e-2, "atol": 3e-2} if half else {"rtol": 1e-4, "atol": 1e-5}
        torch.testing.assert_close(a, b, equal_nan=True, **tolerance)
