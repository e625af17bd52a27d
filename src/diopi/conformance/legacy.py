"""`python -m diopi.conformance --mode gen_data|gen_case|run_test ...`: the suite with the flags of the published one."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
import sys
import textwrap
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dicore.conformance.case_filter import CaseFilter, dtypes_named
from dicore.conformance.cases import CaseSource
from dicore.console import counted
from diopi.conformance import import_torch_without_device, legacy_output
from diopi.conformance.diopi_case import DiopiCase
from diopi.conformance.legacy_options import ALL, functions_named, parsed
from diopi.vendors import VendorError

if TYPE_CHECKING:
    from dicore.conformance.results import RunReport
    from diopi.conformance.legacy_data import DataFile, DataSource

DATA_DIR = Path("data")
_SHOWN = 8
_LIBRARIES = ("libdiopi_impl.so", "lib/libdiopi_impl.so")


def main(arguments: Sequence[str] | None = None) -> int:
    """0: no failure; 1: failures; 2: bad usage; 5: nothing to do, or nothing passed; 130: interrupted."""
    import_torch_without_device()
    given = parsed(arguments)
    if given.get_model_list:
        return _model_list()
    log = legacy_output.logger(given.log_level)
    if given.nhwc:
        log.info("Tensors of %s dimensions and more are in channels-last order (--nhwc)", given.nhwc_min_dim)
    try:
        if given.mode == "gen_data":
            return _gen_data(given, log)
        if given.mode == "gen_case":
            return _gen_case(given, log)
        return _pytest(given, log) if given.pytest_args else _run_test(given, log)
    except OSError as error:
        log.error("%s", f"{error.filename}: {error.strerror}" if error.filename else error)
        return 2
    except (ValueError, VendorError) as error:  # ValueError: also SelectionError and CaseFileError
        log.error("%s", error)
        return 2


def _model_list() -> int:
    """One line for each model: its name and, as --fname takes them, its operators; broken up only for a terminal."""
    from diopi.conformance.legacy_options import snake
    from diopi.conformance.model_source import functions_of_model, model_names

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for name in model_names():
        line = f"{name}: {', '.join(sorted(snake(function) for function in functions_of_model(name)))}"
        print(textwrap.fill(line, width, subsequent_indent="    ") if width else line)
    return 0


# ---- what is asked for ----


def _functions(given: Namespace) -> frozenset[str] | None:
    if ALL in given.fname or given.config:
        return None
    found: frozenset[str] = frozenset()
    for name in given.fname:
        found |= functions_named(name)
    return found


def _sources(given: Namespace, log: logging.Logger) -> list[CaseSource]:
    """The cases of models, of the user's files, or of the suite and PyTorch's operator database."""
    from diopi.conformance.case_files_source import case_file_sources
    from diopi.conformance.model_source import ModelSource
    from diopi.conformance.suite import named_sources

    found: list[CaseSource]
    if given.model_name:
        found = [ModelSource(given.model_name)]
    elif given.config:
        names = None if ALL in given.fname else given.fname
        found = list(case_file_sources(given.config, names))
    else:
        found, problems = named_sources(["own", "opinfo"])
        for problem in problems:
            log.warning("not run: %s", problem)
    return [_adjusted(given, source, log) for source in found]


def _adjusted(given: Namespace, source: CaseSource, log: logging.Logger) -> CaseSource:
    from diopi.conformance.legacy_source import (
        AdjustedSource,
        DeviceRule,
        find_device_config,
        read_device_config,
    )

    rules: list[DeviceRule] = []
    if given.impl_folder is not None and (path := find_device_config(given.impl_folder)) is not None:
        rules, notices = read_device_config(path)
        for notice in notices:
            log.warning("%s", notice)
    unwanted = dtypes_named(given.filter_dtype) if given.filter_dtype else frozenset()
    dimensions = given.nhwc_min_dim if given.nhwc else None
    return AdjustedSource(source, tuple(rules), dimensions, given.four_bytes, unwanted)


def _library(given: Namespace) -> Path:
    from diopi.conformance.suite import default_library

    if given.library is not None:
        return Path(given.library)
    folder = given.impl_folder
    if folder is not None and folder.is_dir():
        for name in _LIBRARIES:
            if (folder / name).is_file():
                return Path(folder / name)
    return default_library()[0]


# ---- the modes ----


def _gen_data(given: Namespace, log: logging.Logger) -> int:
    from diopi.conformance.legacy_data import write_data

    wanted, folder = _functions(given), given.data_dir or DATA_DIR
    total = left_out = problems = 0
    for source in _sources(given, log):
        for group in source.groups(wanted):
            written = write_data(folder, source, group, wanted)
            total += written.cases
            problems += len(written.problems)
            log.info("Generate benchmark data for %s [%s cases]", group, written.cases)
            for function, count in sorted(written.left_out.items()):
                left_out += count
                log.info("Left out %s of %s: torch has no such kernel", counted(count, "case"), function)
            for problem in written.problems:
                log.error("Not written: %s", problem)
    log.info("Generate test cases number for data: %s, in %s", total, folder)
    if left_out or problems:
        told = counted(left_out, "case")
        log.warning("Left out: %s that torch does not know, %s whose reference failed", told, problems)
    return 1 if problems else (0 if total else 5)


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
                if isinstance(case, DiopiCase) and (wanted is None or case.function in wanted):
                    cases.setdefault(case.function, []).append(case.id)
    written = write(given.case_output_dir, _library(given), cases, given.model_name)
    number = counted(sum(map(len, cases.values())), "case")
    log.info("Generate %s in %s in %s", number, counted(len(written), "file"), given.case_output_dir)
    return 0 if written else 5


def _pytest(given: Namespace, log: logging.Logger) -> int:
    if not any(given.case_output_dir.glob("test_*.py")):
        raise ValueError(f"{given.case_output_dir} holds no test files; write them with --mode gen_case")
    command = [sys.executable, "-m", "pytest", str(given.case_output_dir), *shlex.split(given.pytest_args)]
    log.info("%s", shlex.join(command))
    environment = {**os.environ, "DIOPI_LIBRARY": str(_library(given))}
    return subprocess.run(command, env=environment, check=False).returncode


def _tested(given: Namespace, log: logging.Logger) -> list[CaseSource]:
    """What run_test runs: the data that gen_data wrote if they hold what is asked for, else cases made now."""
    unwanted = given.config or (given.case is not None and not given.case.startswith("data:"))
    stored = None if unwanted else _stored_data(given, log)
    if stored is not None:
        return [_adjusted(given, stored, log)]
    sources = _sources(given, log)
    names = [str(path) for path in given.config] or given.model_name or [source.name for source in sources]
    log.info("Use cases made now: %s", ", ".join(names))
    return sources


def _stored_data(given: Namespace, log: logging.Logger) -> DataSource | None:
    from diopi.conformance.legacy_data import DataSource, data_files

    folder = given.data_dir or DATA_DIR
    writes = f"--mode gen_data --data_dir {folder} writes it"
    if not folder.is_dir():
        if given.data_dir is not None:
            raise ValueError(f"--data_dir {folder}: there is no such folder; {writes}")
        return None
    files, notices = data_files(folder)
    for notice in notices:
        log.warning("%s", notice)
    if not files:
        if given.data_dir is not None:
            raise ValueError(f"--data_dir {folder}: no file there is of --mode gen_data; {writes}")
        return None
    missing = _missing(given, files)
    if missing:
        log.warning("The data of %s are not used: %s", folder, missing)
        return None
    wanted = _functions(given)
    used = [f for f in _of_models(given, files) if wanted is None or f.functions & wanted]
    shown = ", ".join(f"{file.source} {file.group}" for file in used[:_SHOWN])
    more = f" and {len(used) - _SHOWN} more files" if len(used) > _SHOWN else ""
    log.info("Use the data of %s: %s%s", folder, shown, more)
    return DataSource(folder, used)


def _of_models(given: Namespace, files: list[DataFile]) -> list[DataFile]:
    """The data of the models that were asked for; without models those of everything else."""
    if given.model_name:
        return [file for file in files if file.source == "models" and file.group in given.model_name]
    return [file for file in files if file.source != "models"]


def _missing(given: Namespace, files: list[DataFile]) -> str:
    """What was asked for and is not in the data, models or operators; empty if all is there."""
    chosen = _of_models(given, files)
    groups = {file.group for file in chosen}
    models = [name for name in given.model_name if name not in groups]
    if models:
        return f"nothing of the model {', '.join(models)} is there"
    if not chosen:
        return "they are of models, which --model_name asks for"
    held = frozenset[str]().union(*(file.functions for file in chosen))
    names = [name for name in given.fname if name != ALL and not functions_named(name) & held]
    return f"nothing of {', '.join(names)} is there" if names else ""


def _run_test(given: Namespace, log: logging.Logger) -> int:
    from dicore.conformance.results import CaseResult
    from dicore.conformance.runner import RunOptions, run_suite
    from dicore.conformance.suite import SuiteError
    from diopi.conformance.suite import DiopiSuite

    sources = _tested(given, log)
    level = max(given.failure_debug_level, 2 if given.log_level == "DEBUG" else 0)

    def tell(result: CaseResult | None, done: int, total: int) -> None:
        if result is not None:
            legacy_output.tell(log, result, level)

    wanted = CaseFilter(functions=_functions(given), partial=bool(given.filter_dtype), case=given.case)
    options = RunOptions(wanted, given.workers, command=_again(given))
    try:
        report = run_suite(DiopiSuite(_library(given), sources), options, tell)
    except SuiteError as error:
        log.error("%s", error)
        return 2
    _finish(given, report, level, log)
    return report.exit_code


def _again(given: Namespace) -> tuple[str, ...]:
    """The command that `--case ID` is added to: it gives the same cases of the same library."""
    words = ["python", "-m", "diopi.conformance"]
    for flag in ("library", "data_dir", "impl_folder"):
        if getattr(given, flag) is not None:
            words += [f"--{flag}", str(getattr(given, flag))]
    for path in given.config:
        words += ["--config", str(path)]
    if given.model_name:
        words += ["--model_name", *given.model_name]
    if given.nhwc:
        words += ["--nhwc", "--nhwc_min_dim", str(given.nhwc_min_dim)]
    return (*words, "--four_bytes") if given.four_bytes else tuple(words)


def _finish(given: Namespace, report: RunReport, level: int, log: logging.Logger) -> None:
    counts = report.counts()
    told = ", ".join(f"{counts[status]} {status}" for status in ("pass", "fail", "unsupported", "skipped"))
    log.info("Run test cases number: %s (%s) in %.1f s", len(report.results), told, report.seconds)
    if report.not_covered:
        log.warning("Without a case: %s", ", ".join(report.not_covered))
    if report.interrupted:
        log.error("Interrupted: the cases after this were not run")
    elif not counts["pass"] and not counts["fail"]:
        log.error("Nothing passed: no case was run, or the library supports none of them")
    if legacy_output.write_errors(report.results, level):
        log.error("The failures are in %s", legacy_output.ERROR_REPORT)
    if given.test_result_path is not None:
        if given.test_result_path.suffix == ".csv":
            legacy_output.write_csv(report.results, given.test_result_path)
        else:
            from dicore.conformance.report_files import write_json

            write_json(report, given.test_result_path)
    if given.html_report:
        from dicore.conformance.html_report import write_html

        write_html(report, Path("report.html"))
        log.info("Wrote report.html")
    if given.use_db:
        legacy_output.write_database(report.results, report.started, report.subject, given.db_path)
        log.info("Wrote %s", given.db_path)
