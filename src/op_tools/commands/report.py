"""`op-tools report`: a run as one HTML page that needs no network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from dicore.console import progress_bar
from op_tools.describe import printable
from op_tools.report import WrittenReport, first_divergence, headline, write_report
from op_tools.report.ranks import sentences_of
from op_tools.runs import open_run

__all__ = ["report_command"]

_MOST_PROBLEMS = 5


def report_command(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="The results folder of a run, or one log; several, such as one folder a host, become one report.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The file to write; default: RUN/report.html.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=0, help="Processes that read the logs of many ranks; default: one per CPU, at most 8."
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Read the logs on a Ray cluster: HOST:PORT, auto, or local for one made here.",
        ),
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "",
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Write what a run's tools found as one HTML file: what is wrong, where it began, on which ranks, times, and rows.

    Of few ranks the page has all rows; of many the earliest and the worst of what needs attention, and the rest counted.

    Exit code 0: written, also when something is wrong; 2: wrong usage; 5: nothing to report.
    """
    paths = runs or [Path("op_tools_results")]
    opened = [open_run(path, csv=True) for path in dict.fromkeys(paths)]
    default = paths[0] / "report.html" if paths[0].is_dir() else paths[0].with_name("report.html")
    with progress_bar("reading ranks", quiet=as_json) as bar:
        written = write_report(opened, out or default, title, workers=workers, ray=ray, progress=bar.update)
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
    lines += sentences_of(written.summary)
    if written.summary["older"]:
        lines.append(written.summary["older"])
    environment = written.summary["environment"]
    if environment["dropped"]:
        lines.append(
            "The logs are incomplete: the last rows of a killed process are missing."
            if not environment["damaged"]
            else f"The logs are incomplete: {environment['dropped']:,} bytes are damaged or torn."
        )
    lines += [f"not read: {log['problem']}" for log in environment["logs"] if log["problem"]][:_MOST_PROBLEMS]
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
            "operators": summary["operators"], "ranks": summary["ranks"],
        },
        indent=2,
    )  # fmt: skip
