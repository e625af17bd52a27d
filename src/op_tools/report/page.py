"""The report as one HTML file without network or library; small tables for notebooks; the first answer as a sentence."""

from __future__ import annotations

import html
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dicore.console import counted
from dicore.page import Page, asset, without_controls
from op_tools.report.collect import Collected, Progress, collect
from op_tools.report.ranks import sentences_of
from op_tools.report.rows import (
    LISTED,
    WRONG,
    figure,
    in_order_of_interest,
    is_internal,
    operator_of,
    short_site,
    split_name,
    verdict_of,
)
from op_tools.runs import BadInput, Run, kind_of_path, open_run

if TYPE_CHECKING:
    from op_tools.tool import Tool

__all__ = ["WrittenReport", "first_divergence", "headline", "html_of", "page_of", "write_report"]

_SCRIPTS = (
    "words.js",
    "elements.js",
    "rows.js",
    "charts.js",
    "table.js",
    "ranks.js",
    "sections.js",
    "start.js",
)
MOST_ROWS = 20
_LONGEST = 120
_COLUMNS = ("name", "verdict", "phase", "step", "rank", "module", "source", "figure")


# -- the page -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WrittenReport:
    """A report that was written: where, how large, and its summary."""

    path: Path
    size: int
    rows: int
    summary: dict[str, Any]


def write_report(
    run: Run | Sequence[Run],
    target: str | Path,
    title: str = "",
    *,
    workers: int | None = None,
    ray: str | None = None,
    progress: Progress | None = None,
) -> WrittenReport:
    """Write the report of a run, or of several that are one.

    Raises BadInput when there is nothing to report or the file cannot be written.
    """
    target = Path(target)
    if not target.name or stat.S_ISDIR(kind_of_path(target)):
        raise BadInput(f"{target} is a folder. Give the file to write, for example {target / 'report.html'}.")
    collected = collect(run, title, workers=workers, ray=ray, progress=progress)
    summary = collected.summary()
    try:
        size = page_of(collected, summary).write(target)
    except OSError as error:
        raise BadInput(
            f"{target} cannot be written: {error.strerror or error}. Choose another file with -o."
        ) from error
    return WrittenReport(target, size, len(collected.table), summary)


def page_of(collected: Collected, summary: dict[str, Any]) -> Page:
    return Page(
        title=summary["title"],
        body="",
        scripts=[asset("op_tools.report", f"page/{name}") for name in _SCRIPTS],
        data={"summary": summary},
        texts={"rows": collected.table.packed()},
        without_scripts=f"{summary_html(summary)}<p>Allow scripts for this file to see charts and all rows.</p>",
    )


# -- what is shown without scripts ----------------------------------------------------------------------------


def html_of(thing: Run | Tool | str | Path) -> str:
    """A run, a results folder or a tool as a static table of at most 20 rows. Never raises for bad input."""
    try:
        if isinstance(thing, Run):
            return _run(thing)
        if isinstance(thing, str | Path):
            return _run(open_run(thing))
        return _tool(thing)
    except BadInput as error:
        return f"<p>{escaped(str(error), 1000)}</p>"


def escaped(value: Any, longest: int = _LONGEST) -> str:
    """Text that is data, as HTML: shortened, without control characters, escaped."""
    text = without_controls(str(value if value is not None else ""))
    return html.escape(text if len(text) <= longest else text[: longest - 3] + "...")


def _run(run: Run) -> str:
    collected = collect(run)
    summary = collected.summary()
    tool = next(iter(in_order_of_interest(summary["tools"])), "")
    wrong = [kept.row for kept in collected.found.first.get(tool, ())]
    rows = [(tool, row) for row in islice(chain(wrong, _others(run, tool)), MOST_ROWS)]
    return summary_html(summary) + _table(rows, sum(summary["tools"].values()))


def _others(run: Run, tool: str) -> Iterator[dict[str, Any]]:
    """What is not wrong, in the order of the log; operators that compute nothing behind all others."""
    for internal in (False, True):
        for row in run.rows(tool):
            if verdict_of(tool, row) not in LISTED and is_internal(operator_of(row)) == internal:
                yield row


def _tool(tool: Tool) -> str:
    """A tool: whether it runs, and the rows of its newest log of this process."""
    name, state = escaped(type(tool).__name__), "running" if tool.running else "not running"
    if tool.results is not None:
        tool.results.flush()
    folder = Path(tool.settings.results, tool.result_folder)
    pattern = f"{tool.result_file}_*pid{os.getpid()}_*.oplog"
    logs = sorted(folder.glob(pattern)) if tool.result_file and folder.is_dir() else []
    if not logs:
        return f"<p><b>{name}</b>: {state}, no rows yet.</p>"
    run = open_run(logs[-1])
    key = next(iter(run.logs))
    rows = [(key, row) for row in run.rows(key)]
    head = f"<p><b>{name}</b>: {state}, {len(rows):,} rows in {escaped(logs[-1], 500)}</p>"
    return head + _table(rows, len(rows))


def summary_html(summary: Mapping[str, Any]) -> str:
    """The first answers: is something wrong, and where it began."""
    counts = ", ".join(f"{count:,} {escaped(verdict)}" for verdict, count in summary["counts"])
    lines = [f"<p><b>{escaped(headline(summary), 500)}</b></p>", f"<p>{counts}</p>" if counts else ""]
    lines += [f"<p>{escaped(sentence, 500)}</p>" for sentence in sentences_of(summary)]
    first = first_divergence(summary)
    if first:
        found = summary["first"] or summary["first_overflow"]
        lines.append(f"<p>{escaped(first, 500)}<br><code>{escaped(found['call_site'], 500)}</code></p>")
        lines.append(f"<p>{escaped(found['reason'], 500)}</p>" if found["reason"] else "")
        lines.append(f"<p><code>{escaped(found['reproduce'], 1000)}</code></p>" if found["reproduce"] else "")
    return "".join(lines)


def _table(rows: Sequence[tuple[str, Mapping[str, Any]]], total: int) -> str:
    if not rows:
        return ""
    judged = [(verdict_of(tool, row), row) for tool, row in rows]
    # What is wrong first, what computes nothing last; sorting is stable, so the parts stay in the order of the log.
    shown = sorted(judged, key=lambda item: (item[0] not in WRONG, is_internal(operator_of(item[1]))))
    shown = shown[:MOST_ROWS]
    head = "".join(f"<th>{column}</th>" for column in _COLUMNS)
    body = "".join(f"<tr>{_cells(verdict, row)}</tr>" for verdict, row in shown)
    more = f"<p>{len(shown):,} of {total:,} rows</p>" if total > len(shown) else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cells(verdict: str, row: Mapping[str, Any]) -> str:
    operator, value = split_name(row.get("name"))
    number = row.get("max_abs_diff", row.get("forward_elasped"))
    text = f"{figure(number)}{' ms' if 'forward_elasped' in row and number is not None else ''}"
    cells = [
        f"{operator} {value}".strip(), verdict, row.get("phase"), row.get("step"), row.get("rank"),
        row.get("module"), short_site(str(row.get("call_site") or "")), text,
    ]  # fmt: skip
    return "".join(f"<td>{escaped(cell)}</td>" for cell in cells)


# -- sentences ------------------------------------------------------------------------------------------------


def headline(summary: Mapping[str, Any]) -> str:
    """Is something wrong?"""
    state, compared = summary["state"], summary["compared"]
    if state == "wrong":
        parts = []
        if summary["wrong"]:
            are = "is" if summary["wrong"] == 1 else "are"
            parts.append(
                f"{summary['wrong']:,} of {compared:,} compared values {are} wrong, in "
                f"{counted(summary['wrong_operators'], 'operator', ',')}"
            )
        if summary["births"]:
            parts.append(f"{counted(summary['births'], 'call', ',')} made a NaN or Inf")
        return f"Something is wrong: {'; '.join(parts)}."
    if state == "suspect":
        calls = counted(summary["suspect"], "call", ",")
        return f"Something may be wrong: {calls} suspect, none proved wrong."
    if state == "lower":
        return (
            f"Nothing is wrong, but {summary['lower']:,} of {compared:,} compared values have a lower precision "
            f"than their dtype."
        )
    if state == "right":
        return f"Nothing is wrong: {counted(compared, 'compared value', ',')}."
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
    call_site = f" at {short_site(first['call_site'])}" if first["call_site"] else ""
    rank = f", rank {first['rank']}" if summary["environment"]["world_size"] > 1 else ""
    return f"{what}: {first['operator']}{value}, {first['phase'] or 'forward'}{owner}{call_site}, step {first['step']}{rank}"
