"""`python -m diopi.conformance --mode gen_data|gen_case|run_test ...`: the suite with the flags of the published one."""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from diopi.conformance import legacy_device_config, legacy_output
from diopi.conformance.case import Case
from diopi.conformance.case_files import CaseFileError
from diopi.conformance.legacy_names import ALL, functions_named
from diopi.conformance.legacy_options import parsed
from diopi.conformance.selection import Selection, SelectionError, dtypes_named
from diopi.conformance.source import Source

if TYPE_CHECKING:
    from diopi.conformance.runner import Report

_LIBRARIES = ("libdiopi_impl.so", "lib/libdiopi_impl.so")


@dataclass(frozen=True)
class LegacySelection(Selection):
    """Skips what device_config leaves out, for the reason that the source wrote into the label."""

    def skipped(self, case: Case) -> str | None:
        """The reason of a rule, if one took the case."""
        return case.label if case.label.startswith("device_config: ") else super().skipped(case)


def main(arguments: Sequence[str] | None = None) -> int:
    """0: no failure; 1: failures; 2: bad usage; 5: nothing to do."""
    import diopi.conformance.alone  # noqa: F401  (torch without a device, which would own the runtime functions)

    given = parsed(arguments)
    if given.get_model_list:
        return _model_list()
    log = legacy_output.logger(given.log_level)
    try:
        if given.mode == "gen_data":
            return _gen_data(given, log)
        if given.mode == "gen_case":
            return _gen_case(given, log)
        return _pytest(given, log) if given.pytest_args else _run_test(given, log)
    except (SelectionError, CaseFileError, ValueError, OSError) as error:
        log.error("%s", error)
        return 2


def _model_list() -> int:
    from diopi.conformance.model_source import model_names

    for name in model_names():
        print(name)
    return 0


# ---- what is asked for ----


def _functions(given: Namespace) -> frozenset[str] | None:
    if ALL in given.fname or given.config:
        return None
    found: frozenset[str] = frozenset()
    for name in given.fname:
        found |= functions_named(name)
    return found


def _sources(given: Namespace, log: logging.Logger) -> list[Source]:
    """The cases of models, of the user's files, or of the suite and PyTorch's operator database."""
    from diopi.conformance.case_files_source import CaseFileSource
    from diopi.conformance.model_source import ModelSource
    from diopi.conformance.sources import named_sources

    found: list[Source]
    if given.model_name:
        found = [ModelSource(given.model_name)]
    elif given.config:
        names = None if ALL in given.fname else given.fname
        found = [CaseFileSource(path, names) for path in given.config]
    else:
        found, problems = named_sources(["own", "opinfo"])
        for problem in problems:
            log.warning("not run: %s", problem)
    return [_adjusted(given, source, log) for source in found]


def _adjusted(given: Namespace, source: Source, log: logging.Logger) -> Source:
    from diopi.conformance.legacy_source import AdjustedSource

    rules: list[legacy_device_config.Rule] = []
    if given.impl_folder is not None and (path := legacy_device_config.find(given.impl_folder)) is not None:
        rules, notices = legacy_device_config.read(path)
        for notice in notices:
            log.warning("%s", notice)
    unwanted = dtypes_named(given.filter_dtype) if given.filter_dtype else frozenset()
    dimensions = given.nhwc_min_dim if given.nhwc else None
    return AdjustedSource(source, tuple(rules), dimensions, given.four_bytes, unwanted)


def _library(given: Namespace) -> Path:
    from diopi.vendors import choose

    if given.library is not None:
        return Path(given.library)
    folder = given.impl_folder
    if folder is not None and folder.is_dir():
        for name in _LIBRARIES:
            if (folder / name).is_file():
                return Path(folder / name)
    return choose(None).library


# ---- the modes ----


def _gen_data(given: Namespace, log: logging.Logger) -> int:
    from diopi.conformance.legacy_source import write_data

    wanted = _functions(given)
    total = 0
    for source in _sources(given, log):
        for group in source.groups(wanted):
            count = write_data(given.data_dir, source, group, wanted)
            total += count
            log.info("Generate benchmark data for %s [%s cases]", group, count)
    log.info("Generate test cases number for data: %s, in %s", total, given.data_dir)
    return 0 if total else 5


def _gen_case(given: Namespace, log: logging.Logger) -> int:
    from diopi.conformance.legacy_gen_case import write

    if given.config or given.nhwc or given.four_bytes:
        raise ValueError(
            "--mode gen_case writes the suite's own cases; --config, --nhwc and --four_bytes need run_test"
        )
    wanted = _functions(given)
    cases: dict[str, list[str]] = {}
    for source in _sources(given, log):
        for group in source.groups(wanted):
            for case in source.cases(group):
                if wanted is None or case.function in wanted:
                    cases.setdefault(case.function, []).append(case.id)
    written = write(given.case_output_dir, _library(given), cases, given.model_name)
    log.info(
        "Generate %s cases in %s files in %s",
        sum(map(len, cases.values())),
        len(written),
        given.case_output_dir,
    )
    return 0 if written else 5


def _pytest(given: Namespace, log: logging.Logger) -> int:
    if not any(given.case_output_dir.glob("test_*.py")):
        raise ValueError(f"{given.case_output_dir} holds no test files; write them with --mode gen_case")
    command = [sys.executable, "-m", "pytest", str(given.case_output_dir), *shlex.split(given.pytest_args)]
    log.info("%s", shlex.join(command))
    environment = {**os.environ, "DIOPI_LIBRARY": str(_library(given))}
    return subprocess.run(command, env=environment, check=False).returncode


def _run_test(given: Namespace, log: logging.Logger) -> int:
    from diopi.conformance.legacy_source import DataSource
    from diopi.conformance.pool import PoolError
    from diopi.conformance.results import Result
    from diopi.conformance.runner import Request, Runner

    stored = DataSource(given.data_dir) if given.data_dir.is_dir() else None
    if stored is not None and stored.groups(None) and not given.config:
        log.info("Use the data of %s", given.data_dir)
        sources: list[Source] = [_adjusted(given, stored, log)]
    else:
        sources = _sources(given, log)
    level = max(given.failure_debug_level, 2 if given.log_level == "DEBUG" else 0)

    def shown(result: Result | None, done: int, total: int) -> None:
        if result is not None:
            legacy_output.tell(log, result, level)

    request = Request(_library(given), LegacySelection(functions=_functions(given)), sources, given.workers)
    try:
        report = Runner(request, shown).run()
    except PoolError as error:
        log.error("%s", error)
        return 2
    _finish(given, report, level, log)
    return 0 if not report.failures() and report.results else (1 if report.failures() else 5)


def _finish(given: Namespace, report: Report, level: int, log: logging.Logger) -> None:
    counts = report.counts()
    told = ", ".join(f"{counts[status]} {status}" for status in ("pass", "fail", "unsupported", "skipped"))
    log.info("Run test cases number: %s (%s) in %.1f s", len(report.results), told, report.seconds)
    legacy_output.write_errors(report.results, level)
    if report.failures():
        log.error("The failures are in %s", legacy_output.ERROR_REPORT)
    if given.test_result_path is not None:
        if given.test_result_path.suffix == ".csv":
            legacy_output.write_csv(report.results, given.test_result_path)
        else:
            from diopi.conformance.json_report import write_json

            write_json(report, given.test_result_path)
    if given.html_report:
        from diopi.conformance.html_report import write_html

        write_html(report, Path("report.html"))
        log.info("Wrote report.html")
    if given.use_db:
        legacy_output.write_database(report.results, report.started, report.library, given.db_path)
        log.info("Wrote %s", given.db_path)
