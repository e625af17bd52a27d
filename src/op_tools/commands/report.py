"""`op-tools report`: a run as one HTML page that needs no network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from op_tools.describe import printable
from op_tools.report import WrittenReport, first_divergence, headline, write_report
from op_tools.runs import open_run

__all__ = ["report_command"]


def report_command(
    run: Annotated[
        Path, typer.Argument(metavar="[RUN]", help="The results folder of a run, or one log.")
    ] = Path("op_tools_results"),
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The file to write; default: RUN/report.html.")
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "",
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Write what a run's tools found as one HTML file: what is wrong, where it began, times, and all rows.

    Exit code 0: written, also when something is wrong; 2: wrong usage; 5: nothing to report.
    """
    opened = open_run(run)
    default = run / "report.html" if run.is_dir() else run.with_name("report.html")
    written = write_report(opened, out or default, title)
    typer.echo(_as_json(written) if as_json else _as_text(written))
    if show:
        import webbrowser

        webbrowser.open(written.path.resolve().as_uri())


def _as_text(written: WrittenReport) -> str:
    first = first_divergence(written.summary)
    found = written.summary["first"] or written.summary["first_overflow"]
    lines = [headline(written.summary)]
    if found is not None:
        lines += [first, f"    {found['call_site']}", f"    {found['reason']}", f"    {found['reproduce']}"]
    if written.summary["older"]:
        lines.append(written.summary["older"])
    if written.summary["environment"]["dropped"]:
        lines.append("The logs are incomplete: the last rows of a killed process are missing.")
    lines.append(f"{written.path}: {written.size / 1e6:.2f} MB, {written.rows:,} rows")
    return "\n".join(printable(line) for line in lines if line.strip())


def _as_json(written: WrittenReport) -> str:
    summary = written.summary
    return json.dumps(
        {
            "path": str(written.path), "bytes": written.size, "rows": written.rows,
            "left_out": summary["left_out"], "older_logs": summary["older_logs"],
            "state": summary["state"], "headline": headline(summary),
            "first_divergence": first_divergence(summary), "counts": dict(summary["counts"]),
            "first": summary["first"], "first_overflow": summary["first_overflow"],
        },
        indent=2,
    )  # fmt: skip
