"""How the tables show a reference that was computed in float64 although the call was not."""

from __future__ import annotations

from typing import Any

import torch

from op_tools.engine.call import tensors_of
from op_tools.trees import flat_results


def _is_raised(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float64


def cast_text(values: Any, exact: list[Any] | None) -> str:
    """The end of a heading: which dtypes the reference had in which others, if any."""
    if exact is None:
        return ""
    found = {tensor.dtype: torch.float64 for tensor in tensors_of(values) if _is_raised(tensor)}
    return f"    cpu_dtype_cast_info(from:to): {found}" if found else ""


def inputs(values: Any, exact: list[Any] | None) -> Any:
    """A tree of the reference's inputs in the dtype it computed in."""
    if exact is None:
        return values
    if isinstance(values, torch.Tensor):
        return values.detach().double() if _is_raised(values) else values
    if type(values) in (tuple, list):
        return type(values)(inputs(value, exact) for value in values)
    if type(values) is dict:
        return {key: inputs(value, exact) for key, value in values.items()}
    return values


def results(result: Any, own: list[Any], exact: list[Any] | None) -> Any:
    """The reference's flat results in the form of the device's."""
    values = own if exact is None else exact
    if isinstance(result, (tuple, list)):
        return tuple(values[: len(flat_results(result))])
    return values[0] if values else None


def dtypes_note(value: Any, exact: list[Any] | None) -> str:
    """What the tables say of a value whose reference has another dtype."""
    raised = exact is not None and _is_raised(value)
    return f"Inconsistent dtypes: {value.dtype} torch.float64" if raised else ""
