"""The results of a run as one HTML file: no network, no library; readable without scripts, which only filter."""

from __future__ import annotations

from collections import Counter, defaultdict
from html import escape
from pathlib import Path

from dicore.conformance.case_filter import DTYPES
from dicore.conformance.console import rerun_command
from dicore.conformance.results import STATUSES, CaseResult, RunReport
from dicore.console import counted
from dicore.page import Page, asset

# Failures described in full; a library that fails everywhere would make a page that no browser opens.
_MAX_OF_A_FUNCTION = 12
_MAX_FAILURES = 1500

Cells = dict[str, dict[str, Counter[str]]]


def write_html(report: RunReport, path: Path) -> None:
    """Writes the page."""
    page_of(report).write(path)


def page_of(report: RunReport) -> Page:
    """The page of a run."""
    title = f"Conformance of {Path(report.subject).name}{f' ({report.made_by})' if report.vendor else ''}"
    body = "\n".join(
        [
            _head(report, title),
            _matrix(report),
            _failures(report),
            _uncovered(report),
            _left_out(report),
            _facts(report),
        ]
    )
    return Page(title=title, body=body, styles=[_asset("matrix.css")], scripts=[_asset("matrix.js")])


def _asset(name: str) -> str:
    return asset("dicore.conformance", f"page/{name}")


def _cells(report: RunReport) -> Cells:
    cells: Cells = defaultdict(lambda: defaultdict(Counter))
    for result in report.results:
        if result.function:
            cells[result.function][result.dtype][result.status] += 1
    return cells


# ---- the answer ----


def _head(report: RunReport, title: str) -> str:
    counts = report.counts()
    failed = {result.function or result.id for result in report.failures()}
    kind = "bad" if failed or (report.whole and report.not_covered) else "good" if counts["pass"] else "calm"
    badges = {"pass": "good", "fail": "bad", "unsupported": "low", "skipped": "calm"}
    shown = "".join(
        f'<li><span class="badge {badges[status] if counts[status] else "calm"}"><b>{counts[status]}</b> {status}</span></li>'
        for status in STATUSES
    )
    return (
        f'<header class="top"><h1>{escape(title)}</h1><nav><ul><li><a href="#matrix">matrix</a></li>'
        '<li><a href="#failures">failures</a></li><li><a href="#about">about this run</a></li></ul></nav></header>\n'
        f'<section class="answer {kind}"><p class="sentence">{escape(_sentence(report, failed))}</p>'
        f'<ul class="counts">{shown}</ul></section>'
    )


def _sentence(report: RunReport, failed: set[str]) -> str:
    counts = report.counts()
    functions = len({result.function for result in report.results if result.function})
    if report.interrupted:
        had = f"{counted(len(report.results), 'case')} of {counted(functions, 'function')}"
        return f"Interrupted: {had} had run, {counts['fail']} failed."
    if failed:
        of = counted(functions, "function")
        return f"{counts['fail']} of {counted(len(report.results), 'case')} failed, in {len(failed)} of {of}."
    if report.whole and report.not_covered:
        return f"No case failed, but {len(report.not_covered)} of the operators have no case."
    if not counts["pass"]:
        return "Nothing ran."
    lacking = counted(counts["unsupported"], "other case")
    beside = f"; the library does not support {lacking}" if counts["unsupported"] else ""
    ran = "The one case that ran" if counts["pass"] == 1 else f"All {counts['pass']} cases that ran"
    return f"{ran} passed, of {counted(functions, 'function')}{beside}."


# ---- operator x dtype ----


def _matrix(report: RunReport) -> str:
    cells = _cells(report)
    used = {dtype for row in cells.values() for dtype in row}
    columns = [dtype for dtype in DTYPES if dtype in used] + sorted(used - set(DTYPES) - {""})
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    rows = "\n".join(_row(name, cells[name], columns) for name in sorted(cells))
    key = "".join(
        f'<span><span class="badge {kind}">{text}</span> {meaning}</span>'
        for kind, text, meaning in (
            ("good", "12", "all pass"),
            ("bad", "2/12", "2 of 12 fail"),
            ("low", "9/12", "9 pass, the rest is unsupported or skipped"),
            ("calm", "none", "all unsupported or skipped"),
        )
    )
    return (
        '<section id="matrix"><h2>Functions and dtypes</h2>\n<div class="tools" id="tools" hidden>'
        '<input id="filter" type="search" placeholder="filter functions by parts of their names" '
        'aria-label="filter functions" autocomplete="off">'
        '<select id="kind" aria-label="which functions"><option value="all">all functions</option>'
        '<option value="fail">with failures</option><option value="unsupported">with unsupported cases</option>'
        '<option value="pass">that pass</option></select><span class="shown" id="shown"></span></div>\n'
        f'<div class="scroll matrix" tabindex="0"><table><thead><tr><th scope="col">function</th>{head}</tr></thead>'
        f'<tbody>\n{rows}\n</tbody></table></div><p class="key">{key}</p></section>'
    )


def _row(name: str, row: dict[str, Counter[str]], columns: list[str]) -> str:
    total: Counter[str] = sum((row[dtype] for dtype in row), Counter())
    kinds = [status for status in ("fail", "unsupported") if total[status]]
    kinds += ["pass"] if total["pass"] and not total["fail"] else []
    data = "".join(
        f"<td>{_cell(name, column, row[column])}</td>" if column in row else "<td></td>" for column in columns
    )
    return (
        f'<tr data-name="{escape(name.lower())}" data-kinds="{" ".join(kinds)}">'
        f'<th scope="row">{escape(name)}</th>{data}</tr>'
    )


def _cell(name: str, dtype: str, counts: Counter[str]) -> str:
    total = sum(counts.values())
    words = escape(
        f"{name} {dtype}: " + ", ".join(f"{counts[s]} {s}" for s in STATUSES if counts[s]), quote=True
    )
    if counts["fail"]:
        return f'<a class="bad" href="#f-{escape(name)}" title="{words}">{counts["fail"]}/{total}</a>'
    if counts["pass"] == total:
        return f'<span class="good" title="{words}">{total}</span>'
    if counts["pass"]:
        return f'<span class="low" title="{words}">{counts["pass"]}/{total}</span>'
    return f'<span class="calm" title="{words}">none</span>'


# ---- failures ----


def _failures(report: RunReport) -> str:
    by_function: defaultdict[str, list[CaseResult]] = defaultdict(list)
    for result in report.failures():
        by_function[result.function or "suite"].append(result)
    if not by_function:
        return '<section id="failures"><h2>Failures</h2><p class="dim">none</p></section>'
    left, parts = _MAX_FAILURES, []
    for name, results in sorted(by_function.items()):
        shown = results[: min(_MAX_OF_A_FUNCTION, max(left, 0))]
        left -= len(shown)
        dtypes = ", ".join(dict.fromkeys(r.dtype for r in results if r.dtype))
        more = len(results) - len(shown)
        rest = f'<p class="dim">and {more} more: <code>--json</code> has all</p>' if more else ""
        parts.append(
            f'<details class="function" id="f-{escape(name)}" data-name="{escape(name.lower())}">'
            f'<summary>{escape(name)} <span class="dim">{len(results)} failed · {escape(dtypes)}</span></summary>'
            + "".join(_failure(report, result) for result in shown)
            + f"{rest}</details>"
        )
    return f'<section id="failures"><h2>Failures</h2>\n{chr(10).join(parts)}</section>'


def _failure(report: RunReport, result: CaseResult) -> str:
    title = " · ".join(part for part in (result.id, result.dtype, result.label) if part)
    parts = [f'<div class="failure"><h3>{escape(title)}</h3><p class="why">{escape(result.reason)}</p>']
    if result.arguments:
        parts.append(f"<pre>{escape(chr(10).join(result.arguments))}</pre>")
    for wrong in result.wrong:
        if wrong.worst:
            rows = "".join(
                f"<tr><td>{escape(wrong.name)}{escape(str(w.index))}</td><td>{escape(w.expected)}</td>"
                f"<td>{escape(w.got)}</td><td>{escape(w.error)}</td></tr>"
                for w in wrong.worst
            )
            head = "<tr><th>worst elements</th><th>expected</th><th>got</th><th>difference</th></tr>"
            parts.append(f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>")
    command = escape(rerun_command(report, result.id))
    parts.append(
        f'<div class="command"><code>{command}</code><button class="copy" type="button" hidden>copy</button></div>'
    )
    return "".join([*parts, "</div>"])


# ---- the rest ----


def _uncovered(report: RunReport) -> str:
    if not report.not_covered:
        return ""
    names = " ".join(escape(name) for name in report.not_covered)
    return f'<section><h2>Not covered by any case ({len(report.not_covered)})</h2><p class="names">{names}</p></section>'


def _left_out(report: RunReport) -> str:
    rows = []
    for status in ("unsupported", "skipped"):
        reasons = Counter(result.reason for result in report.results if result.status == status)
        rows += [
            f'<tr><td>{status}</td><td class="number">{count}</td><td class="data">{escape(reason[:300])}</td></tr>'
            for reason, count in reasons.most_common(50)
        ]
    if not rows:
        return ""
    head = "<tr><th>status</th><th>cases</th><th>reason</th></tr>"
    table = f'<div class="scroll"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'
    return f"<section><h2>Unsupported and skipped</h2>{table}</section>"


def _facts(report: RunReport) -> str:
    by_source = Counter(result.source for result in report.results)
    started = report.started.replace("T", " ").replace("+00:00", " UTC")
    facts = {
        "library": report.subject,
        "vendor": report.made_by or "unknown",
        "started": f"{started}, took {report.seconds:.1f} s",
        "cases": ", ".join(f"{count} of the source {source}" for source, count in by_source.items())
        or "none",
        "seed": str(report.seed),
        "environment": ", ".join(f"{name} {value}" for name, value in report.environment.items()),
    }
    items = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items())
    problems = "".join(f'<p class="warning">not run: {escape(text)}</p>' for text in report.problems)
    return f'<section id="about"><h2>About this run</h2>{problems}<dl class="facts">{items}</dl></section>'
