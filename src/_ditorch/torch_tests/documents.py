"""The published tables: Markdown made from result files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from _ditorch.torch_tests.model import State
from _ditorch.torch_tests.rows import Row

__all__ = ["document"]

_HEAD = """# PyTorch's own tests, device by device

Made by `ditorch torch-tests tables`. Do not edit: make it again from result files. What the checks and the words mean is
in [torch-tests.md](torch-tests.md).
"""


def document(runs: Mapping[str, Sequence[Row]], notes: Sequence[str] = ()) -> str:
    """One section for each result file: counts, then everything that does not simply pass, with its cause."""
    sections = (_section(name, rows) for name, rows in runs.items())
    return "\n".join([_HEAD, *(f"{note}\n" for note in notes), *sections])


def _section(name: str, rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    counts: dict[str, Counter[State]] = {}
    for row in rows:
        counts.setdefault(row.file, Counter())[row.result] += 1
    states = [state for state in State if any(counter[state] for counter in counts.values())]
    lines = [f"## {rows[0].device}, torch {rows[0].torch}", "", f"From `{name}`.", ""]
    lines += [
        _line(["file or check", "cases", *states, "passed of run", "judged wider"]),
        _line(["---"] * (len(states) + 4)),
    ]
    for file, counter in counts.items():
        total = sum(counter.values())
        wider = sum(bool(row.wider or row.verdict) for row in rows if row.file == file)
        cells = [
            f"`{file}`",
            f"{total:,}",
            *(f"{counter[state]:,}" for state in states),
            _share(counter),
            f"{wider:,}",
        ]
        lines.append(_line(cells))
    return "\n".join([*lines, "", *_causes(rows)])


def _share(counter: Counter[State]) -> str:
    ran = sum(counter.values()) - counter[State.SKIPPED]
    return f"{100 * counter[State.PASSED] / ran:.2f} %" if ran else ""


def _causes(rows: Sequence[Row]) -> list[str]:
    """Cases that share file, operator, result and cause share a line."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for row in rows:
        if row.result in (State.PASSED, State.SKIPPED) and not (row.result is State.SKIPPED and row.reason):
            continue
        key = (row.file, row.operator, str(row.result), row.reason or row.message)
        groups.setdefault(key, []).append(row.dtype or row.case)
    if not groups:
        return ["Everything that was run passes.", ""]
    lines = ["Everything that was run and does not pass, and what was left out for a reason of ours:", ""]
    lines += [_line(["file or check", "operator", "result", "cases", "cause"]), _line(["---"] * 5)]
    for (file, operator, state, cause), cases in sorted(groups.items()):
        shown = ", ".join(sorted(set(cases))[:12]) + (" ..." if len(set(cases)) > 12 else "")
        lines.append(
            _line([f"`{file}`", f"`{operator}`" if operator else "", state, f"{len(cases)}: {shown}", cause])
        )
    return [*lines, ""]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
