"""The report as one HTML file: no network, no library, everything inside."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dicore.page import Page, asset
from op_tools.report.collect import Collected, collect
from op_tools.report.static import summary_html
from op_tools.runs import BadInput, Run, kind_of_path

__all__ = ["Written", "page_of", "write_report"]

_SCRIPTS = ("words.js", "elements.js", "rows.js", "charts.js", "table.js", "sections.js", "start.js")


@dataclass(frozen=True)
class Written:
    """A report that was written: where, how large, and its summary."""

    path: Path
    size: int
    rows: int
    summary: dict[str, Any]


def write_report(run: Run, target: str | Path, title: str = "") -> Written:
    """Write the report of a run. Raises BadInput when there is nothing to report or the file cannot be written."""
    target = Path(target)
    if not target.name or stat.S_ISDIR(kind_of_path(target)):
        raise BadInput(f"{target} is a folder. Give the file to write, for example {target / 'report.html'}.")
    collected = collect(run, title)
    summary = collected.summary()
    try:
        size = page_of(collected, summary).write(target)
    except OSError as error:
        raise BadInput(
            f"{target} cannot be written: {error.strerror or error}. Choose another file with -o."
        ) from error
    return Written(target, size, len(collected.table), summary)


def page_of(collected: Collected, summary: dict[str, Any]) -> Page:
    """The page of what was collected."""
    return Page(
        title=summary["title"],
        body="",
        scripts=[asset("op_tools.report", f"page/{name}") for name in _SCRIPTS],
        data={"summary": summary},
        texts={"rows": collected.table.packed()},
        without_scripts=f"{summary_html(summary)}<p>Allow scripts for this file to see charts and all rows.</p>",
    )
