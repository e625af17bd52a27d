"""The flags that users of the published suite know, and its names of operators (`add`, `batch_norm`)."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from dicore.conformance.case_filter import SelectionError
from dicore.suggestions import closest
from diopi.conformance.case_files_source import ALIASES, camel
from diopi.conformance.diopi_case import interface_functions
from diopi.table import load

ALL = "all_ops"
_VARIANTS = ("Inp", "Scalar", "Tensor", "Backward", "V2", "V3", "All")


def snake(function: str) -> str:
    """`diopiBatchNorm` -> `batch_norm`: how success lines name a function."""
    bare = function.removeprefix("diopi")
    split = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", bare)
    return split.lower().strip("_")


def _base(function: str) -> str:
    """A function without what says that it is a variant: in place, with a scalar, backward."""
    name = function
    while (end := next((v for v in _VARIANTS if name.endswith(v) and name != f"diopi{v}"), None)) is not None:
        name = name.removesuffix(end)
    return name.lower()


def functions_named(name: str, where: str = "") -> frozenset[str]:
    """The functions of a published name, with all variants; a C name is itself. SelectionError if there is none."""
    functions = interface_functions(load())
    if name in functions:
        return frozenset([name])
    wanted = {camel(name).lower(), _base(ALIASES.get(name, camel(name)))}
    found = frozenset(f for f in functions if f.lower() in wanted or _base(f) in wanted)
    if not found:
        names = {snake(f) for f in functions}
        close = closest(name, [*names, *functions], most=3, cutoff=0.5)
        hint = f"; near are {', '.join(close)}" if close else ""
        raise SelectionError(f"{where + ': ' if where else ''}no operator is called {name!r}{hint}")
    return found


MODES = ("gen_data", "gen_case", "run_test")


def parser() -> argparse.ArgumentParser:
    """The command line of `python -m diopi.conformance`."""
    made = argparse.ArgumentParser(
        prog="python -m diopi.conformance",
        description="Checks a DIOPI library with the flags of the published suite. `diopi conformance` does the same "
        "with other flags and more reports.",
    )
    add = made.add_argument
    add("--mode", choices=MODES, default="run_test", help="what to do (default: run_test)")
    add(
        "--fname",
        nargs="+",
        default=[ALL],
        metavar="NAME",
        help="operators such as add or diopiAdd; default all_ops",
    )
    add("--model_name", nargs="+", default=[], metavar="NAME", help="the cases of these models")
    add("--get_model_list", action="store_true", help="print the models and the operators of each, and end")
    add("--case", metavar="ID", help="run one case again, such as own:diopiRelu:3")
    add("--filter_dtype", nargs="+", default=[], metavar="DTYPE", help="leave these dtypes out")
    add("--nhwc", action="store_true", help="tensors of 4 dimensions and more in channels-last order")
    add(
        "--nhwc_min_dim",
        type=int,
        default=4,
        choices=(3, 4, 5),
        help="the least dimensions that --nhwc reorders",
    )
    add("--four_bytes", action="store_true", help="int64 becomes int32, float64 becomes float32")
    add(
        "--impl_folder",
        type=Path,
        metavar="PATH",
        help="a folder (or file) with device_config.py, and the library",
    )
    add(
        "--library",
        type=Path,
        metavar="FILE",
        help="the library; default: of --impl_folder, or of the vendor that DIPU_DEVICE names, or the best installed one's",
    )
    add(
        "--config",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="a case file that you wrote; may be repeated",
    )
    add(
        "--data_dir",
        type=Path,
        metavar="DIR",
        help="what gen_data writes and run_test reads (default: data, if it is there)",
    )
    add("--case_output_dir", type=Path, default=Path("gencases"), metavar="DIR", help="what gen_case writes")
    add("--html_report", action="store_true", help="write report.html")
    add("--use_db", action="store_true", help="write the results into a sqlite file")
    add("--db_path", type=Path, default=Path("cache/testrecord.db"), metavar="FILE", help="that sqlite file")
    add(
        "--failure_debug_level",
        type=int,
        default=0,
        choices=(0, 1, 2),
        help="1: arguments of failures; 2: also elements",
    )
    add(
        "--test_result_path",
        type=Path,
        metavar="FILE",
        help="write the results as JSON (.json) or CSV (.csv)",
    )
    add(
        "--pytest_args",
        default="",
        metavar="ARGS",
        help="run the files of --case_output_dir by pytest with these",
    )
    add("--log_level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"), help="what is printed")
    add("--workers", type=int, default=0, help="processes; 0: one for each CPU")
    return made


def _joined(arguments: list[str]) -> list[str]:
    """`--pytest_args -x` as `--pytest_args=-x`: what begins with a dash would be taken for a flag of its own."""
    if "--pytest_args" not in arguments[:-1]:
        return arguments
    index = arguments.index("--pytest_args")
    return [*arguments[:index], f"--pytest_args={arguments[index + 1]}", *arguments[index + 2 :]]


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The flags, checked as far as they can be without a library."""
    made = parser()
    given = made.parse_args(_joined(list(sys.argv[1:] if arguments is None else arguments)))
    if given.nhwc_min_dim != 4 and not given.nhwc:
        made.error("--nhwc_min_dim needs --nhwc")
    if given.model_name and given.config:
        made.error("--model_name and --config name different cases; give one of them")
    for flag in ("pytest_args", "case"):
        if getattr(given, flag) and given.mode != "run_test":
            made.error(f"--{flag} belongs to --mode run_test")
    result = given.test_result_path
    if result is not None and result.suffix not in (".json", ".csv"):
        made.error(f"--test_result_path {result}: must end in .json or .csv")
    if result is not None and not result.absolute().parent.is_dir():
        made.error(f"--test_result_path {result}: give a file in a folder that exists")
    if given.impl_folder is not None and not given.impl_folder.exists():
        made.error(f"--impl_folder {given.impl_folder}: no such folder or file")
    return given
