"""Whether the conformance suite sees mistakes: 40 operators with one deliberate mistake each, and all others untouched.

    python benchmarks/run.py diopi_sensitivity --json benchmarks/results/diopi_sensitivity.json
    python benchmarks/run.py diopi_sensitivity --quick

The library under test is the host vendor's with the mistakes of tests/diopi/mistakes in front of it. The operators with mistakes
get the cases of all sources, the others those of the suite itself (a few of them with --quick). A mistake is found if a case
of its operator fails; a failure of any other operator is a false alarm.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from report import Case, Options, Report

SOURCES = Path(__file__).resolve().parent.parent / "tests" / "diopi" / "mistakes"
MOST_MISSED = 1


def mistakes() -> dict[str, str]:
    """Operator -> what is wrong with it."""
    texts = [path.read_text() for path in sorted(SOURCES.glob("*.cpp"))]
    return dict(re.findall(r'^MISTAKE\((\w+), "(.*)"\)$', "\n".join(texts), re.MULTILINE))


def build(target: Path) -> Path:
    """Compiles the library with the mistakes; what it does not define is found in the host vendor's."""
    from diopi.vendors.host import VENDOR

    host = VENDOR.library.resolve()
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    include = f"-I{SOURCES.parents[2] / 'include'}"
    files = [str(path) for path in sorted(SOURCES.glob("*.cpp"))]
    link = ["-Wl,--no-as-needed,--allow-shlib-undefined", str(host), f"-Wl,-rpath,{host.parent}", "-ldl"]
    subprocess.run(["g++", *flags, include, "-o", str(target), *files, *link], check=True)
    return target


def _failures(
    library: Path, functions: frozenset[str], sources: list[str], quick: bool
) -> tuple[dict[str, Counter[str]], int]:
    """(function -> reasons of failures, how many cases ran)."""
    from dicore.conformance.case_filter import QUICK_CASES, CaseFilter
    from dicore.conformance.runner import RunOptions, run_suite
    from diopi.conformance.suite import DiopiSuite, named_sources

    wanted = CaseFilter(functions, quick=QUICK_CASES if quick else None)
    result = run_suite(DiopiSuite(library, named_sources(sources)[0]), RunOptions(wanted, workers=2))
    found: dict[str, Counter[str]] = {name: Counter() for name in functions}
    for failure in result.failures():
        found[failure.function][failure.reason] += 1
    return found, len(result.results)


def measure(options: Options) -> Report:
    """One row for each mistake, then how many were missed and how many false alarms there were."""
    from diopi.conformance.diopi_case import interface_functions
    from diopi.table import load

    known = mistakes()
    others = interface_functions(load()) - set(known)
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder) / "libmistakes.so")
        found, cases = _failures(library, frozenset(known), ["own", "opinfo", "models"], quick=False)
        options.say(f"{cases} cases of {len(known)} operators with mistakes")
        alarms, more = _failures(library, others, ["own"], options.quick)
        options.say(f"{more} cases of {len(others)} other operators")
    rows = [
        Case(
            name,
            float(not found[name]),
            [what, str(found[name].total()), next(iter(found[name]), "NOT FOUND")[:60]],
            raw={
                "mistake": what,
                "failed_cases": found[name].total(),
                "reasons": dict(found[name].most_common(3)),
            },
        )
        for name, what in known.items()
    ]
    missed = [row.name for row in rows if row.figure]
    false = {name: dict(reasons.most_common(3)) for name, reasons in alarms.items() if reasons}
    rows.append(
        Case("mistakes missed", len(missed), [f"of {len(known)}", "", ", ".join(missed)], MOST_MISSED)
    )
    rows.append(
        Case("false alarms", len(false), [f"of {len(others)}", "", ", ".join(sorted(false))], 0, false)
    )
    return Report(
        "mistakes that the suite finds", ["mistake", "failed cases", "reason"], rows, {"cases": cases + more}
    )
