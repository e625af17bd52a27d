"""The results of a run as JUnit XML: a suite for each function, a test case for each case."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

from diopi.conformance.results import Result
from diopi.conformance.runner import Report

# What XML 1.0 cannot hold, escaped or not.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(report: Report, path: Path) -> None:
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
    by_function: defaultdict[str, list[Result]] = defaultdict(list)
    for result in report.results:
        by_function[result.function or "suite"].append(result)
    for function, results in by_function.items():
        _add_suite(root, report, function, results)
    if report.whole and report.not_covered:
        _add_uncovered(root, report)
    ElementTree.indent(root, " ")
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _add_suite(root: ElementTree.Element, report: Report, function: str, results: list[Result]) -> None:
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
        title = " ".join(part for part in (result.id, result.dtype, result.label) if part)
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"{report.suite}.{function}",
            name=_clean(title),
            time=f"{result.seconds:.4f}",
        )
        if result.status == "fail":
            failure = ElementTree.SubElement(
                case, "failure", message=_clean(result.reason), type="conformance"
            )
            failure.text = _clean("\n".join(_details(result)))
        elif result.status in ("skipped", "unsupported"):
            ElementTree.SubElement(case, "skipped", message=_clean(f"{result.status}: {result.reason}"))


def _add_uncovered(root: ElementTree.Element, report: Report) -> None:
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


def _details(result: Result) -> list[str]:
    lines = [result.reason, *result.arguments]
    for wrong in result.wrong:
        lines += [f"{wrong.name}{list(w.index)}: got {w.got}, expected {w.expected}" for w in wrong.worst]
    return lines


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
