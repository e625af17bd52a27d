"""What one more entry of the operator table changes in the generated files: few lines, and one file to compile again."""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import re
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from diopi.generate.__main__ import MADE_WITH, main, rendered
from diopi.table import OperatorTable, load

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(
        not importlib.metadata.version("torch").startswith(MADE_WITH),
        reason=f"files are generated with torch {MADE_WITH}",
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("yaml") is None, reason="PyTorch's code generator needs pyyaml"
    ),
]

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 80
COMPILED = (".c", ".cpp", ".h", ".inc")


@cache
def _now() -> dict[str, str]:
    return rendered(load())


def _without(*operators: str) -> OperatorTable:
    """The table as it was before somebody added these entries."""
    assert set(operators) <= load().entries.keys()
    return replace(load(), entries={n: e for n, e in load().entries.items() if n not in operators})


def _changed(before: dict[str, str], after: dict[str, str]) -> dict[str, int]:
    """Changed lines of each file that differs."""
    counts = {}
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name, "").splitlines(), after.get(name, "").splitlines()
        lines = difflib.unified_diff(old, new, lineterm="", n=0)
        if count := sum(bool(re.match(r"[-+](?![-+]{2} )", line)) for line in lines):
            counts[name] = count
    return counts


@pytest.mark.parametrize(
    ("operators", "compiled"),
    [
        ({"diopiErfinv", "diopiErfinvInp"}, "csrc/aten/generated/elementwise.cpp"),
        ({"diopiLogicalAnd", "diopiLogicalAndInp"}, "csrc/aten/generated/compare.cpp"),
        ({"diopiGroupNorm"}, "csrc/aten/generated/normalization.cpp"),
        ({"diopiMSELoss"}, "csrc/aten/generated/loss.cpp"),
        ({"diopiUnique"}, "csrc/aten/generated/selection.cpp"),  # makes its tensors itself
        ({"diopiAmpUpdateScaleInp"}, "csrc/aten/generated/optimizer.cpp"),  # says what it reads and writes
    ],
    ids=lambda value: min(value, key=len) if isinstance(value, set) else "",
)
def test_an_entry_changes_few_lines_and_one_compiled_file(operators: set[str], compiled: str) -> None:
    changed = _changed(rendered(_without(*operators)), _now())
    assert [name for name in changed if name.endswith(COMPILED)] == [compiled]
    assert set(changed) - {compiled} <= {"docs/operators.md", "src/diopi/library/signatures.py"}
    assert 10 < sum(changed.values()) <= MOST_LINES, changed


def test_an_entry_that_serves_no_overload_compiles_nothing() -> None:
    changed = _changed(rendered(_without("diopiLinear")), _now())
    assert set(changed) == {"docs/operators.md"}
    assert 0 < sum(changed.values()) < 10


def test_every_overload_has_its_wrapper_in_the_file_of_its_entry() -> None:
    files = {name: text for name, text in _now().items() if name.startswith("csrc/aten/generated/")}
    registered = {
        overload: Path(name).stem
        for name, text in files.items()
        for overload in re.findall(r'm\.impl\("([^"]+)"', text)
    }
    served = load().by_overload()
    assert registered == {name: entries[0].source.removesuffix(".toml") for name, entries in served.items()}
    assert len(registered) > 500


def test_no_overload_is_served_from_two_files_of_the_table() -> None:
    """Otherwise adding an entry to one of them would change the wrapper in the other's file."""
    for name, entries in load().by_overload().items():
        assert len({entry.source for entry in entries}) == 1, name


def test_generated_files_are_what_the_table_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", "--root", str(ROOT)]) == 0, capsys.readouterr().out


def test_a_stale_file_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "src" / "diopi" / "table").mkdir(parents=True)
    for folder in ("csrc", "docs", "include", "src/diopi/library"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    header = tmp_path / "include" / "diopi" / "functions.h"
    header.write_text(header.read_text().replace("diopiAdd(", "diopiPlus("))
    (tmp_path / "csrc/aten/generated/operators_0.cpp").write_text("// of an older generator\n")
    assert main(["--check", "--root", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "2 generated files are not what the table says" in said.err
    assert "diopiPlus" in said.out
    assert "operators_0.cpp is made by no entry of the table" in said.out
    assert main(["--root", str(tmp_path)]) == 0
    assert main(["--check", "--root", str(tmp_path)]) == 0
