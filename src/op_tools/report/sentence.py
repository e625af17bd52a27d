"""The first answer in one English sentence, for the terminal, for notebooks and for readers without scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from op_tools.report.place import short_site

__all__ = ["first_divergence", "headline"]


def headline(summary: Mapping[str, Any]) -> str:
    """Is something wrong?"""
    state, compared = summary["state"], summary["compared"]
    if state == "wrong":
        parts = []
        if summary["wrong"]:
            parts.append(
                f"{summary['wrong']:,} of {compared:,} compared values {_are(summary['wrong'])} wrong, in "
                f"{_count(summary['wrong_operators'], 'operator')}"
            )
        if summary["births"]:
            parts.append(f"{_count(summary['births'], 'call')} made a NaN or Inf")
        return f"Something is wrong: {'; '.join(parts)}."
    if state == "suspect":
        return f"Something may be wrong: {_count(summary['suspect'], 'call')} suspect, none proved wrong."
    if state == "lower":
        return (
            f"Nothing is wrong, but {summary['lower']:,} of {compared:,} compared values have a lower precision "
            f"than their dtype."
        )
    if state == "right":
        return f"Nothing is wrong: {_count(compared, 'compared value')}."
    if state == "finite":
        return "No NaN or Inf was made. No value was compared with a reference."
    return "Nothing was judged: the run has no comparison."


def first_divergence(summary: Mapping[str, Any]) -> str:
    """Where it began; empty when nothing is wrong."""
    first = summary["first"] or summary["first_overflow"]
    if first is None:
        return ""
    what = f"first {first['verdict']}" if first is not summary["first"] else "first divergence"
    value = f" {first['value']}" if first["value"] else ""
    owner = f" of {first['forward_name']}" if first["forward_name"] else ""
    place = f" at {short_site(first['call_site'])}" if first["call_site"] else ""
    rank = f", rank {first['rank']}" if summary["environment"]["world_size"] > 1 else ""
    return f"{what}: {first['operator']}{value}, {first['phase'] or 'forward'}{owner}{place}, step {first['step']}{rank}"


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"
