"""What a row says: the operator and value it is about, its verdict, and how the report calls and orders that."""

from __future__ import annotations

import functools
import math
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, get_args

import torch

from op_tools import tables
from op_tools.categories import base_name, names_in
from op_tools.registry import by_section
from op_tools.runs import DERIVED_LOGS
from op_tools.verdict import is_label
from op_tools.verdict.outcome import Status

_NOT_FINITE = {"nan": "NaN", "inf": "∞", "-inf": "-∞"}
_WHOLE_NUMBERS = ("pid", "rank", "step", "forward_id", "world_size")
# Verdicts of rows that say: this is wrong.
WRONG = frozenset({"fail", "error", "refused", "NaN", "Inf"})
LABELS = tuple(status for status in get_args(Status) if is_label(status))
RIGHT = frozenset({"same", "pass", *LABELS})
# Verdicts of rows that are listed as findings, and of those that are shown whatever else is left out.
LISTED = WRONG | {"suspect"}
ATTENTION = LISTED | set(LABELS)
_ORDER = (
    "fail", "error", "refused", "NaN", "Inf", "suspect", *LABELS, "tool error", "pass", "same", "skipped",
)  # fmt: skip
# How the timeline marks a verdict; all others that need attention are failures.
EVENTS = {**dict.fromkeys((*LABELS, "suspect"), "lower_precision"), "NaN": "nan", "Inf": "nan"}
# Ask about a tensor, or give it back under another name.
_HANDLES = names_in(
    "detach alias lift lift_fresh size stride dim ndim shape numel nelement element_size storage_offset is_contiguous"
    " is_same_size requires_grad retain_grad is_leaf data device dtype layout untyped_storage data_ptr get_device"
    " is_floating_point is_complex set_data _version"
)
# Give a number, and read the values of a tensor for it.
_READS = names_in("_local_scalar_dense item equal allclose is_nonzero _is_all_true _is_any_true tolist")
# Sections of tools whose rows have verdicts.
JUDGED = ("operators", "findings")


def with_whole_numbers(row: dict[str, Any]) -> dict[str, Any]:
    """The same row. Logs may come from elsewhere: what should count and does not is taken out."""
    for name in _WHOLE_NUMBERS:
        value = row.get(name)
        if value is not None and not isinstance(value, int):
            row[name] = None
    return row


def split_name(name: Any) -> tuple[str, str]:
    """`torch.add output[0]` -> operator and value. Names of calls have no blank."""
    operator, _, value = str(name or "").partition(" ")
    return operator, value


@functools.lru_cache(maxsize=65536)
def is_internal(operator: str) -> bool:
    """Whether an operator computes nothing that a reader looks for: it asks about tensors, or hands one on."""
    parts = operator.split(".")
    name = parts[-2] if parts[-1] in ("__get__", "__set__") else base_name(operator)
    if name in _HANDLES:
        return True
    if parts[0] != "aten" or len(parts) != 3 or name in _READS:
        return False
    overload = getattr(getattr(torch.ops.aten, parts[1], None), parts[2], None)
    if overload is None:
        return False
    returned = overload._schema.returns
    return bool(returned) and not any("Tensor" in str(value.type) for value in returned)


def figure(value: Any) -> str:
    """A number as the page writes it."""
    text = tables.figure(value)
    return _NOT_FINITE.get(text, text)


def operator_of(row: Mapping[str, Any]) -> str:
    return split_name(row.get("name"))[0]


def short_site(call_site: str) -> str:
    """`/a/b/model.py:64 forward: y = f(x)` -> `model.py:64`."""
    return call_site.split(" ", 1)[0].rpartition("/")[2]


def reproduce_line(capture: str) -> str:
    """The command that writes a captured call as one Python file."""
    return f"op-tools reproduce {shlex.quote(capture)}"


def section_of(tool: str) -> str:
    """The section of the report that a tool's rows belong to. What compares captures afterwards lists what it found."""
    if tool in DERIVED_LOGS:
        return "findings"
    found = by_section().get(tool)
    return found.report_section if found is not None else "rows"


def in_order_of_interest(tools: Iterable[str]) -> list[str]:
    """Tools in the order in which what they say counts: verdicts first, of those that of the program before later ones."""
    sections = list(by_section())
    derived = list(DERIVED_LOGS)

    def rank_of(tool: str) -> tuple[Any, ...]:
        orders = ((JUDGED, section_of(tool)), (derived, tool), (sections, tool))
        return tuple(order.index(word) if word in order else len(order) for order, word in orders)

    return sorted(tools, key=rank_of)


def verdict_of(tool: str, row: Mapping[str, Any]) -> str:
    """One word for what a row says: a verdict, what was born in an overflow, or that the tool itself failed."""
    verdict = row.get("verdict")
    if verdict:
        return str(verdict)
    if row.get("status") == "born" and section_of(tool) == "overflow":
        return str(row.get("kind") or "NaN")
    if str(row.get("error_info") or "").startswith("tool error"):
        return "tool error"
    return str(row.get("status") or "") if tool in DERIVED_LOGS else ""


def in_order(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Verdicts with their numbers, the bad ones first."""
    ordered = [(name, counts[name]) for name in _ORDER if counts.get(name)]
    return ordered + sorted((name, count) for name, count in counts.items() if name and name not in _ORDER)


def finite(value: Any) -> float | None:
    """A number that can be added and compared, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
