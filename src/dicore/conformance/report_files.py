"""The files that a run of a suite may leave: JSON, which can be read back, JUnit XML, and an HTML page."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from dicore.conformance.html_report import write_html
from dicore.conformance.results import STATUSES, CaseResult, RunReport

__all__ = [
    "SCHEMA",
    "ReportFileError",
    "read_json",
    "unwritable",
    "write_json",
    "write_junit",
    "write_reports",
]

SCHEMA = 2
_KIND = "-conformance"  # behind the name of the suite
# What XML 1.0 cannot hold, escaped or not.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class ReportFileError(ValueError):
    """A file is not a report of this suite; says what it is."""


def unwritable(*paths: Path | None) -> str | None:
    """Why one of some files cannot be written. A run may take minutes: this is said before."""
    for path in paths:
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            return f"{path} cannot be written: give a file in a folder that exists"
    return None


def write_reports(report: RunReport, json: Path | None, junit: Path | None, html: Path | None) -> list[str]:
    """Writes what is asked for, and says what could not be: the other files and the console still get the results."""
    unwritten = []
    for write, path in ((write_json, json), (write_junit, junit), (write_html, html)):
        if path is not None:
            try:
                write(report, path)
            except OSError as error:
                unwritten.append(f"{path} cannot be written: {error.strerror}")
    return unwritten


# ---- JSON ----


def _document(report: RunReport) -> dict[str, Any]:
    """The document."""
    counts = report.counts()
    return {
        "kind": report.suite + _KIND,
        "schema": SCHEMA,
        "library": {"path": report.subject, "vendor": report.vendor, "version": report.version},
        "environment": report.environment,
        "started": report.started,
        "seconds": round(report.seconds, 3),
        "seed": report.seed,
        "command": report.command,
        "interrupted": report.interrupted,
        "whole": report.whole,
        "counts": {status: counts[status] for status in STATUSES},
        "not_covered": report.not_covered,
        "problems": report.problems,
        "cases": [_finite(result.as_plain()) for result in report.results],
    }


def _finite(case: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: a text stands for it, which float() reads."""
    over = case.get("error_over_bound")
    if over is not None and not math.isfinite(over):
        case["error_over_bound"] = str(over)
    return case


def write_json(report: RunReport, path: Path) -> None:
    """One case a line, so that two files can be compared by eye."""
    document = _document(report)
    cases = document.pop("cases")
    head = json.dumps(document, indent=1, allow_nan=False)
    lines = ",\n".join(json.dumps(case, allow_nan=False) for case in cases)
    path.write_text(f'{head[:-2]},\n "cases": [\n{lines}\n]}}\n', encoding="utf-8")


def read_json(path: Path) -> RunReport:
    """What `write_json` wrote."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportFileError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ReportFileError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict) or not str(document.get("kind")).endswith(_KIND):
        raise ReportFileError(f"{path} is not the JSON of `conformance --json`")
    if document.get("schema") != SCHEMA:
        raise ReportFileError(f"{path} has schema {document.get('schema')}; this version reads {SCHEMA}")
    try:
        return _report(document)
    except (KeyError, TypeError, ValueError) as error:
        raise ReportFileError(f"{path} is damaged ({type(error).__name__}: {error})") from None


def _report(document: dict[str, Any]) -> RunReport:
    library = document["library"]
    kept = (
        "started",
        "seconds",
        "seed",
        "interrupted",
        "whole",
        "not_covered",
        "problems",
        "environment",
        "command",
    )
    report = RunReport(
        library["path"], library["vendor"], library["version"], **{key: document[key] for key in kept}
    )
    report.suite = document["kind"].removesuffix(_KIND)
    for case in document["cases"]:
        if "error_over_bound" in case:
            case["error_over_bound"] = float(case["error_over_bound"])
        report.results.append(CaseResult.from_plain(case))
    return report


# ---- JUnit ----


def write_junit(report: RunReport, path: Path) -> None:
    """Writes the file."""
    counts = report.counts()
    root = ElementTree.Element(
        "testsuites",
        name=f"{report.suite} conformance",
        tests=str(len(report.results) + len(report.not_covered) * report.whole),
        failures=str(counts["fail"] + len(report.not_covered) * report.whole),
        skipped=str(counts["skipped"] + counts["unsupported"]),
        errors="0",
        time=f"{report.seconds:.3f}",
    )
    by_function: defaultdict[str, list[CaseResult]] = defaultdict(list)
    for result in report.results:
        by_function[result.function or "suite"].append(result)
    for function, results in by_function.items():
        _add_suite(root, report, function, results)
    if report.whole and report.not_covered:
        _add_uncovered(root, report)
    ElementTree.indent(root, " ")
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _add_suite(
    root: ElementTree.Element, report: RunReport, function: str, results: list[CaseResult]
) -> None:
    suite = ElementTree.SubElement(
        root,
        "testsuite",
        name=function,
        tests=str(len(results)),
        failures=str(sum(r.status == "fail" for r in results)),
        skipped=str(sum(r.status in ("skipped", "unsupported") for r in results)),
        errors="0",
        time=f"{sum(r.seconds for r in results):.3f}",
        timestamp=report.started.partition("+")[0],
    )
    for result in results:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"{report.suite}.{function}",
            name=_clean(result.title),
            time=f"{result.seconds:.4f}",
        )
        if result.status == "fail":
            failure = ElementTree.SubElement(
                case, "failure", message=_clean(result.reason), type="conformance"
            )
            failure.text = _clean("\n".join(_details(result)))
        elif result.status in ("skipped", "unsupported"):
            ElementTree.SubElement(case, "skipped", message=_clean(f"{result.status}: {result.reason}"))


def _add_uncovered(root: ElementTree.Element, report: RunReport) -> None:
    count = str(len(report.not_covered))
    suite = ElementTree.SubElement(
        root, "testsuite", name="coverage", tests=count, failures=count, skipped="0", errors="0", time="0",
        timestamp=report.started.partition("+")[0],
    )  # fmt: skip
    for name in report.not_covered:
        case = ElementTree.SubElement(
            suite, "testcase", classname=f"{report.suite}.coverage", name=name, time="0"
        )
        ElementTree.SubElement(case, "failure", message="no case covers this operator", type="coverage")


def _details(result: CaseResult) -> list[str]:
    lines = [result.reason, *result.arguments]
    for wrong in result.wrong:
        lines += [f"{wrong.name}{list(w.index)}: got {w.got}, expected {w.expected}" for w in wrong.worst]
    return lines


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
