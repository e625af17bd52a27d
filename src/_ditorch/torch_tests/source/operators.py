"""Which operator a test case is about, as far as its name says: torch's tests carry the operator in their names."""

from __future__ import annotations

import re
from functools import cache

import torch

__all__ = ["dtype_in", "operator_in"]

_DTYPES = re.compile(r"_(u?int\d+|b?float\d+(?:_e\w+)?|complex\d+|bool)(?=_|$)")
# Names of functions that are ordinary words of tests: kinds of numbers, devices, and the like.
_WORDS = frozenset((
    "all", "any", "bfloat16", "bool", "byte", "cdouble", "cfloat", "chalf", "char", "cpu", "cuda", "device", "double",
    "dtype", "float", "half", "int", "is_tensor", "long", "short", "size", "storage", "to", "type", "xpu",
))  # fmt: skip


@cache
def _names() -> dict[str, str]:
    """Names as they stand in test names -> names as people write them: nn_functional_relu -> nn.functional.relu."""
    found: dict[str, str] = {}
    places = {
        "": torch,
        "Tensor.": torch.Tensor,
        "linalg.": torch.linalg,
        "fft.": torch.fft,
        "special.": torch.special,
        "nn.functional.": torch.nn.functional,
    }
    for prefix, place in reversed(places.items()):
        for name in dir(place):
            if name.islower() and not name.startswith("_") and callable(getattr(place, name, None)):
                label = name if prefix == "Tensor." else prefix + name
                found[label.replace(".", "_")] = label
                found[name] = label
    not_meant = _WORDS | {torch._C._get_privateuse1_backend_name()}
    return {short: label for short, label in found.items() if short not in not_meant}


def operator_in(case: str) -> str:
    """The longest name of an operator in ``Class.test_some_name_device_dtype``; empty if there is none."""
    words = case.rpartition(".")[2].removeprefix("test_").split("_")
    names = _names()
    for length in range(len(words), 0, -1):
        for start in range(len(words) - length + 1):
            label = names.get("_".join(words[start : start + length]))
            if label is not None:
                return label
    return ""


def dtype_in(case: str) -> str:
    """The last dtype in the name; empty if there is none."""
    found = _DTYPES.findall(case)
    return found[-1] if found else ""
