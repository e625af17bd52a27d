"""The fixed atol and rtol of the `allclose` column, and the environment variables that set them.

Strongest first: `{OP}_AUTOCOMPARE_ERROR_TOLERANCE_{DTYPE}` (OP is the last part of the operator's full name),
`AUTOCOMPARE_ERROR_TOLERANCE_{DTYPE}`, `AUTOCOMPARE_ERROR_TOLERANCE`, the defaults below. Each holds
"atol,rtol". The verdict does not depend on them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from op_tools.settings import TOLERANCE

# The promised defaults; the tables of the product documents show one number for both columns.
DEFAULTS = {torch.float16: 1e-4, torch.bfloat16: 1e-3, torch.float32: 1e-5, torch.float64: 1e-8}
OTHER_DTYPES = 1e-3
NUMBERS = 1e-6


@dataclass(frozen=True, slots=True)
class Tolerance:
    """|difference| <= atol + rtol * |reference| is close."""

    atol: float
    rtol: float


NO_TOLERANCE = Tolerance(0.0, 0.0)


def tolerance_for(
    name: str, dtype: torch.dtype | type | None, environ: Mapping[str, str] = os.environ
) -> Tolerance:
    """The tolerance for results of `dtype` of the operator `name`; a Python type for a number, None for None."""
    if dtype is None or dtype is type(None):
        return NO_TOLERANCE
    if not isinstance(dtype, torch.dtype):
        return Tolerance(NUMBERS, NUMBERS)
    suffix = str(dtype).removeprefix("torch.").upper()
    operator = name.rpartition(".")[2].upper()
    base = TOLERANCE.name
    for variable in (f"{operator}_{base}_{suffix}", f"{base}_{suffix}", base):
        if variable in environ and (given := TOLERANCE.member(variable).get(environ)):
            return Tolerance(*given)
    default = DEFAULTS.get(dtype, OTHER_DTYPES)
    return Tolerance(default, default)
