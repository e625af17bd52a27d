"""Tries own cases of a few functions in this process: `python -m diopi.conformance.trial LIBRARY FUNCTION...`.

For those who write operators or samples: no workers, no report, every failure printed at once. A crash ends the program; the
line printed last with `--verbose` is the case that did it.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
from collections import Counter
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from diopi.conformance import import_torch_without_device

if TYPE_CHECKING:
    from dicore.conformance.results import CaseResult
    from diopi.conformance.own_source import OwnSource
    from diopi.library import Library


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m diopi.conformance.trial", description=__doc__)
    parser.add_argument("library", help="a DIOPI library (.so), or the name of an installed vendor")
    parser.add_argument(
        "functions", nargs="*", default=["*"], help="names or patterns: diopiAdd 'diopiConv*'"
    )
    parser.add_argument("--layout", help="only this layout of inputs, such as strided")
    parser.add_argument("--values", help="only this range of values, such as special")
    parser.add_argument("--dtype", help="only this dtype")
    parser.add_argument("--full", action="store_true", help="every sample in every variation")
    parser.add_argument("--shown", type=int, default=5, help="failures shown of each function")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verbose", action="store_true", help="name every case before it runs")
    return parser.parse_args()


def main() -> int:
    """Runs the cases; 0 if none failed, 1 otherwise, 2 for a wrong library, 5 if there was none."""
    given = _arguments()
    faulthandler.enable()
    import_torch_without_device()
    import torch

    from dicore.conformance.case_filter import SelectionError
    from diopi.conformance.own_source import CAP, OwnSource
    from diopi.library import LibraryError

    torch.set_num_threads(1)
    try:
        library = _opened(given.library)
    except (SelectionError, LibraryError) as error:
        print(f"trial: {error}", file=sys.stderr)
        return 2
    source = OwnSource(given.seed, 1_000_000 if given.full else CAP)
    total: Counter[str] = Counter()
    for group in source.groups(None):
        if any(fnmatchcase(group, pattern) for pattern in given.functions):
            total.update(_tried(library, source, group, given))
    print(f"total: {_shown(total)}")
    if not total:
        print("no case: give names of functions that have samples", file=sys.stderr)
        return 5
    return 1 if total["fail"] else 0


def _opened(named: str) -> Library:
    from diopi.conformance.suite import vendor_library
    from diopi.library import Library

    is_file = os.sep in named or named.endswith(".so")
    return Library.open(named if is_file else vendor_library(named, "LIBRARY"))


def _tried(library: Library, source: OwnSource, group: str, given: argparse.Namespace) -> Counter[str]:
    """The cases of one function, counted by status; a line for all of them at the end."""
    from diopi.conformance.judging import check
    from diopi.table import load

    counts: Counter[str] = Counter()
    layout, values = given.layout or "", given.values or ""
    for case in source.cases(group):
        if layout not in case.label or values not in case.label or given.dtype not in (None, case.dtype):
            continue
        if given.verbose:
            print(f"{case.id} {case.dtype} {case.label}", flush=True)
        result = check(library, load(), case)
        counts[result.status] += 1
        if result.status == "fail" and counts["fail"] <= given.shown:
            _print_failure(result)
        elif result.status == "skipped" and given.verbose:
            print(f"     skipped: {result.reason}")
    if counts:
        print(f"{group}: {_shown(counts)}", flush=True)
    return counts


def _print_failure(result: CaseResult) -> None:
    print(f"FAIL {result.id} {result.dtype} {result.label}\n     {result.reason}")
    for line in result.arguments:
        print(f"       {line}")
    for wrong in result.wrong:
        for worst in wrong.worst[:3]:
            print(f"     {wrong.name}{worst.index} is {worst.got}, expected {worst.expected}")


def _shown(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))


if __name__ == "__main__":
    sys.exit(main())
