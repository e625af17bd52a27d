"""What the published suite prints and writes: log lines, error_report.csv, a result file, a database."""

from __future__ import annotations

import csv
import logging
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from dicore.conformance.results import CaseResult
from diopi.conformance.legacy_options import snake

ERROR_REPORT = Path("error_report.csv")
_FORMAT = "%(asctime)s - DIOPI-Test - %(levelname)s - %(message)s"
_COLUMNS = ("id", "function", "dtype", "label", "status", "reason", "seconds")


def logger(level: str = "INFO") -> logging.Logger:
    """Prints lines such as `2022-09-29 16:40:40,550 - DIOPI-Test - INFO - Run diopi_functions.relu succeed`."""
    made = logging.getLogger("DIOPI-Test")
    made.setLevel(level)
    made.propagate = False
    made.handlers.clear()
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter(_FORMAT))
    made.addHandler(handler)
    return made


def tell(log: logging.Logger, result: CaseResult, debug_level: int) -> None:
    """One line for a case; more for a failure if more is asked for."""
    name = f"diopi_functions.{snake(result.function or result.label)}"
    match result.status:
        case "pass":
            log.info("Run %s succeed", name)
        case "fail":
            log.error("Run %s failed [%s] (%s): %s", name, result.id, result.dtype, result.reason)
            for line in details(result, debug_level):
                log.error("    %s", line)
        case "unsupported":
            log.warning("Run %s not supported [%s]: %s", name, result.id, result.reason)
        case "skipped":
            log.info("Run %s skipped [%s]: %s", name, result.id, result.reason)


def details(result: CaseResult, level: int) -> list[str]:
    """1: the arguments of a failure; 2: also its worst elements."""
    lines = list(result.arguments) if level >= 1 else []
    if level >= 2:
        for wrong in result.wrong:
            lines.append(f"{wrong.name} {wrong.dtype}{wrong.shape}: {wrong.reason}")
            lines += [f"  at {w.index}: expected {w.expected}, got {w.got}" for w in wrong.worst]
    return lines


def write_errors(results: list[CaseResult], level: int, path: Path = ERROR_REPORT) -> bool:
    """error_report.csv: the failures, with as much as the level (at least the reason) tells; none without failures.

    Gives whether it was written.
    """
    if not any(r.status == "fail" for r in results):
        path.unlink(missing_ok=True)  # that of an earlier run would be taken for this one's
        return False
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(["case", "function", "dtype", "label", "reason", "details"])
        for r in results:
            if r.status == "fail":
                writer.writerow([r.id, r.function, r.dtype, r.label, r.reason, "\n".join(details(r, level))])
    return True


def _rows(results: list[CaseResult]) -> list[tuple[object, ...]]:
    return [tuple(getattr(r, column) for column in _COLUMNS) for r in results]


def write_csv(results: list[CaseResult], path: Path) -> None:
    """All results, one line each."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(_COLUMNS)
        writer.writerows(_rows(results))


def write_database(results: list[CaseResult], started: str, library: str, path: Path) -> None:
    """Adds a run and its results to a sqlite file; ValueError if it is another file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with closing(sqlite3.connect(path)) as connection, connection:
            _add_run(connection, results, started, library)
    except sqlite3.Error as error:
        raise ValueError(f"the results cannot be added to {path}: {error}") from None


def _add_run(connection: sqlite3.Connection, results: list[CaseResult], started: str, library: str) -> None:
    connection.execute(
        "create table if not exists run (number integer primary key, started text, library text)"
    )
    connection.execute(
        "create table if not exists result (run integer, id text, function text, dtype text, label text, "
        "status text, reason text, seconds real)"
    )
    number = connection.execute(
        "insert into run (started, library) values (?, ?)", (started, library)
    ).lastrowid
    connection.executemany(
        "insert into result values (?, ?, ?, ?, ?, ?, ?, ?)", [(number, *row) for row in _rows(results)]
    )
