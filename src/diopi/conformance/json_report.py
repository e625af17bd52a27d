"""The results of a run as a JSON file, and back."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from diopi.conformance.results import STATUSES, from_plain
from diopi.conformance.runner import Report

SCHEMA = 2
_KIND = "-conformance"  # behind the name of the suite


class ReportFileError(ValueError):
    """A file is not a report of this suite; says what it is."""


def as_plain(report: Report) -> dict[str, Any]:
    """The document."""
    counts = report.counts()
    return {
        "kind": report.suite + _KIND,
        "schema": SCHEMA,
        "library": {"path": report.library, "vendor": report.vendor, "version": report.version},
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
        "cases": [_finite(result.plain()) for result in report.results],
    }


def _finite(case: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: a text stands for it, which float() reads."""
    over = case.get("error_over_bound")
    if over is not None and not math.isfinite(over):
        case["error_over_bound"] = str(over)
    return case


def write_json(report: Report, path: Path) -> None:
    """One case a line, so that two files can be compared by eye."""
    document = as_plain(report)
    cases = document.pop("cases")
    head = json.dumps(document, indent=1, allow_nan=False)
    lines = ",\n".join(json.dumps(case, allow_nan=False) for case in cases)
    path.write_text(f'{head[:-2]},\n "cases": [\n{lines}\n]}}\n', encoding="utf-8")


def read_json(path: Path) -> Report:
    """What `write_json` wrote."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportFileError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ReportFileError(f"{path} is not JSON: {error}") from None
    if not isinstance(document, dict) or not str(document.get("kind")).endswith(_KIND):
        raise ReportFileError(f"{path} is not the JSON of `diopi conformance --json`")
    if document.get("schema") != SCHEMA:
        raise ReportFileError(f"{path} has schema {document.get('schema')}; this version reads {SCHEMA}")
    try:
        return _from_plain(document)
    except (KeyError, TypeError, ValueError) as error:
        raise ReportFileError(f"{path} is damaged ({type(error).__name__}: {error})") from None


def _from_plain(document: dict[str, Any]) -> Report:
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
    report = Report(
        library["path"], library["vendor"], library["version"], **{key: document[key] for key in kept}
    )
    report.suite = document["kind"].removesuffix(_KIND)
    for case in document["cases"]:
        if "error_over_bound" in case:
            case["error_over_bound"] = float(case["error_over_bound"])
        report.results.append(from_plain(case))
    return report
