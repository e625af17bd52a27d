"""The files that a run of a suite may leave: JSON, JUnit XML and an HTML page."""

from __future__ import annotations

from pathlib import Path

from diopi.conformance.html_report import write_html
from diopi.conformance.json_report import write_json
from diopi.conformance.junit import write_junit
from diopi.conformance.runner import Report

__all__ = ["unwritable", "write_reports"]


def unwritable(*paths: Path | None) -> str | None:
    """Why one of some files cannot be written. A run may take minutes: this is said before."""
    for path in paths:
        if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
            return f"{path} cannot be written: give a file in a folder that exists"
    return None


def write_reports(report: Report, json: Path | None, junit: Path | None, html: Path | None) -> list[str]:
    """Writes what is asked for, and says what could not be: the other files and the console still get the results."""
    unwritten = []
    for write, path in ((write_json, json), (write_junit, junit), (write_html, html)):
        if path is not None:
            try:
                write(report, path)
            except OSError as error:
                unwritten.append(f"{path} cannot be written: {error.strerror}")
    return unwritten
