"""gen_case: a pytest file for each function, and what such a file calls."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from dicore.conformance.cases import CaseSource, split_case_id
from dicore.conformance.results import CaseResult
from diopi.conformance.diopi_case import DiopiCase
from diopi.conformance.legacy_options import snake

LIBRARY = "DIOPI_LIBRARY"

_TEXT = '''"""Cases of {function}, written by `python -m diopi.conformance --mode gen_case`. Run: pytest {file}

The library is {library}; the variable {variable} names another.
"""

import os

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # the device must not own the library's runtime functions

import pytest

from diopi.conformance.legacy_gen_case import outcome

LIBRARY = {library!r}
CASES = {cases}


@pytest.mark.parametrize("case", CASES)
def test_{name}(case):
    result = outcome(case, LIBRARY, {model!r})
    if result.status == "fail":
        pytest.fail(result.reason + "\\n" + "\\n".join(result.arguments))
    if result.status != "pass":
        pytest.skip(f"{{result.status}}: {{result.reason}}")
'''


def write(folder: Path, library: Path, cases: dict[str, list[str]], models: list[str]) -> list[Path]:
    """One file for each function, of the ids of its cases."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for function, ids in sorted(cases.items()):
        path = folder / f"test_diopi_{snake(function)}.py"
        listed = "[\n" + "".join(f"    {identity!r},\n" for identity in ids) + "]"
        text = _TEXT.format(
            function=function,
            file=path.name,
            library=str(library),
            variable=LIBRARY,
            cases=listed,
            name=f"diopi_{snake(function)}",
            model=models,
        )
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


@cache
def _library(path: str) -> Any:
    from diopi.library import Library

    return Library.open(path)


def _source(name: str, models: tuple[str, ...]) -> CaseSource:
    from diopi.conformance.model_source import ModelSource
    from diopi.conformance.suite import named_sources

    if name == "models" and models:
        return ModelSource(models)
    found, problems = named_sources([name])
    if not found:
        raise RuntimeError("; ".join(problems))
    return found[0]


@cache
def _group(name: str, group: str, models: tuple[str, ...]) -> dict[str, DiopiCase]:
    return {case.id: case for case in _source(name, models).cases(group) if isinstance(case, DiopiCase)}


def outcome(identity: str, library: str, models: list[str]) -> CaseResult:
    """Runs one case in this process."""
    from diopi.conformance.judging import check
    from diopi.table import load

    name, group, _ = split_case_id(identity)
    cases = _group(name, group, tuple(models))
    if identity not in cases:
        raise LookupError(
            f"{identity} is not a case of this version; write the files again with --mode gen_case"
        )
    return check(_library(os.environ.get(LIBRARY, library)), load(), cases[identity])
