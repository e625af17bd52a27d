"""What is published of result files: one HTML page that works without a network, and tables in Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape

from _ditorch.torch_tests.outcomes import State
from _ditorch.torch_tests.results import Row
from dicore.page import Page, asset

__all__ = ["document", "page_of"]

# -- the page --------------------------------------------------------------------------------------------------

_FIELDS = ("file", "case", "operator", "dtype", "result", "seconds", "samples", "message", "reason", "detail")


def page_of(rows: Sequence[Row], title: str) -> Page:
    """The page of the rows of a run."""
    return Page(
        title=title,
        body=f"<h1>{escape(title)}</h1>\n{_summary(rows)}\n{_asset('controls.html')}",
        styles=[_asset("page.css")],
        scripts=[_asset("page.js")],
        data={
            "data": {
                "states": list(State),
                "fields": _FIELDS,
                "rows": [_values(row) for row in _ordered(rows)],
            }
        },
    )


def _ordered(rows: Sequence[Row]) -> list[Row]:
    """What has to be looked at comes first."""
    return sorted(rows, key=lambda row: (not row.result.unexpected, not row.result.listed, row.key))


def _values(row: Row) -> list[str | float | int]:
    return [getattr(row, name) for name in _FIELDS]


def _summary(rows: Sequence[Row]) -> str:
    """For a reader whose browser runs no script."""
    counts = Counter(row.result for row in rows)
    cells = "".join(f"<li><b>{counts[state]:,}</b> {state}</li>" for state in State if counts[state])
    return f"<ul id='counts'>{cells}</ul>"


def _asset(name: str) -> str:
    return asset("_ditorch.torch_tests", f"page/{name}")


# -- the tables ------------------------------------------------------------------------------------------------

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
