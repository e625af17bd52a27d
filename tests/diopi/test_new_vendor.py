"""A vendor in one afternoon: the project that `diopi new-vendor` writes, and the page that goes with it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from diopi.new_vendor import FILES, OPERATORS, NewVendorError, write_project
from diopi.paths import include_folder

ROOT = Path(__file__).resolve().parents[2]
SERVED = ("aten::add.Tensor", "aten::mm", "aten::fill_.Scalar")
PAGES = ("docs/new-vendor.md", "docs/new-vendor.zh-CN.md")


def blocks(page: str) -> list[str]:
    """The commands that the page asks the reader to type, block by block."""
    return re.findall(r"^```sh\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)


# ---- what is written, and what is refused ----


@pytest.mark.null
def test_a_project_carries_the_vendors_name(tmp_path: Path) -> None:
    written = write_project("my_chip2", tmp_path / "new" / "folder")
    names = {path.relative_to(tmp_path / "new" / "folder").as_posix() for path in written}
    assert names == {name.replace("@NAME@", "my_chip2") for name in FILES}
    assert {
        "csrc/runtime.cpp",
        "csrc/operators.cpp",
        "src/my_chip2/__init__.py",
        "tests/test_my_chip2.py",
    } <= names
    texts = {path.name: path.read_text(encoding="utf-8") for path in written}
    assert not [name for name, text in texts.items() if re.search(r"@[A-Z]+@", text)]
    assert 'my_chip2 = "my_chip2:VENDOR"' in texts["pyproject.toml"]
    assert "DIPU_MY_CHIP2_MEMORY" in texts["__init__.py"]
    assert re.findall(r"^diopiError_t (diopi\w+)\(", texts["operators.cpp"], re.M) == list(OPERATORS)


@pytest.mark.null
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "letters, digits and underscores"),
        ("2chip", "a letter first"),
        ("my-chip", "letters, digits and underscores"),
        ("芯片", "letters, digits and underscores"),
        ("../up", "letters, digits and underscores"),
        ("host", "'host' is installed already"),
        ("class", "'class', which Python or an installed package uses already"),
        ("json", "'json', which Python"),
        ("diopi", "such as diopi_chip"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(NewVendorError, match=re.escape(reason)):
        write_project(name, tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.null
def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(NewVendorError, match="is not empty, and nothing in it is overwritten"):
        write_project("mychip", tmp_path)
    with pytest.raises(NewVendorError, match="is a file"):
        write_project("mychip", tmp_path / "mine.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
    (tmp_path / "empty").mkdir()
    assert write_project("mychip", tmp_path / "empty")


@pytest.mark.null
def test_the_program_says_what_to_do(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "diopi", "new-vendor"]
    refused = subprocess.run([*command, "my chip"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode == 2 and "'my chip' cannot be the name of a vendor" in refused.stderr
    made = subprocess.run(
        [*command, "mychip", "--folder", "there"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    assert "cd there\n" in made.stdout and "DIPU_DEVICE=mychip dipu doctor" in made.stdout
    assert (tmp_path / "there" / "csrc" / "runtime.cpp").is_file()


@pytest.mark.null
def test_headers_are_found() -> None:
    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "diopi.paths", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert ask("--include").stdout == f"{include_folder()}\n"
    assert (include_folder() / "diopi" / "functions_ext.h").is_file()
    assert ask("--nothing").returncode == 2 and "usage:" in ask("--nothing").stderr


@pytest.mark.null
def test_written_python_is_in_order(tmp_path: Path) -> None:
    """A new project starts clean: the formatter and the linter have nothing to say."""
    pytest.importorskip("ruff", reason="the formatter and the linter, ruff, is not installed")
    write_project("mychip", tmp_path / "mychip")
    for check in (["check", "--select", "E,F,W,I,UP,B"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", check[0], "--isolated", "--line-length", "110", *check[1:]]
        ran = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout


@pytest.mark.unit
def test_the_samples_of_settings_are_valid(tmp_path: Path) -> None:
    from diopi.adaptor import read_rules
    from diopi.adaptor.rules import tensors_of
    from diopi.conformance.diopi_case import DiopiCase
    from diopi.conformance.legacy_source import read_device_config

    write_project("mychip", tmp_path / "mychip")
    rules = read_rules(tmp_path / "mychip" / "config" / "convert_config.yaml").operators["diopiMm"]
    assert (
        rules[tensors_of("diopiMm")["input"]].contiguous
        and not rules[tensors_of("diopiMm")["out"]].contiguous
    )
    assert rules[tensors_of("diopiMm")["out"]].dtypes == {"float16": "float32", "bfloat16": "float32"}
    left_out, notices = read_device_config(tmp_path / "mychip" / "config" / "device_config.py")
    assert notices == [] and [rule.entry for rule in left_out] == ["add"]
    reasons = {
        dtype: left_out[0].reason(DiopiCase("own:diopiAdd:0", "diopiAdd", dtype))
        for dtype in ("float16", "float32")
    }
    assert reasons == {"float16": "device_config: add: dtype float16", "float32": None}


# ---- the pages ----


@pytest.mark.null
def test_both_pages_have_the_same_commands_and_parts() -> None:
    english, chinese = ((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    assert blocks(PAGES[0]) == blocks(PAGES[1])
    for pattern in (r"^#+ ", r"^\| `[^`]+` \|", r"^\d\. "):
        assert len(re.findall(pattern, english, re.M)) == len(re.findall(pattern, chinese, re.M)) > 0
    assert set(re.findall(r"`([^`\n]+)`", english)) == set(re.findall(r"`([^`\n]+)`", chinese))


def _environment(folder: Path) -> dict[str, str]:
    """One in which `pip install` goes to a folder of its own, and needs no network."""
    programs = folder / "bin"
    programs.mkdir()
    for name, module in (("diopi", "diopi"), ("dipu", "dipu")):
        (programs / name).write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        (programs / name).chmod(0o755)
    kept = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("DIPU_", "DITORCH_", "DIOPI_", "PYTEST_", "PIP_"))
    }
    kept.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
    return kept | {
        "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(folder / "site"), os.environ.get("PYTHONPATH")])),
        "PIP_TARGET": str(folder / "site"),
        "PIP_NO_DEPS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "120",
    }


@pytest.mark.device
@pytest.mark.slow
def test_the_page_goes_from_nothing_to_a_working_chip(tmp_path: Path) -> None:
    environment = _environment(tmp_path)
    printed: dict[str, str] = {}
    for block in blocks(PAGES[0]):
        folder = tmp_path if block.startswith("diopi new-vendor") else tmp_path / "mychip"
        for command in [block] if folder == tmp_path else block.splitlines():
            ran = subprocess.run(
                ["bash", "-e", "-c", command],
                cwd=folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
            printed[command] = ran.stdout
    _check_training(_one(printed, "python ./examples"))
    assert re.search(r"name +│ +mychip\b", _one(printed, "doctor"))
    assert "15 passed" in _one(printed, "pytest")
    _check_conformance(tmp_path / "mychip" / "report.json")
    assert re.search(r"│ own +│ +\d+ │ +0 │ +0 │ +0 │ ", _one(printed, "--adaptor")), "only passed cases"
    coverage = _one(printed, "coverage")
    assert re.search(r"operator calls: \d+\.\d% by DIOPI, 0\.0% by alias, \d+\.\d% by copies", coverage)
    assert "max_pool2d_with_indices" in coverage and "not taken by diopiAddInp" in re.sub(
        r"\W+", " ", coverage
    )
    _check_coverage(tmp_path / "mychip" / "report.coverage.json")


def _one(printed: dict[str, str], part: str) -> str:
    """What the one command with this part printed."""
    found = [output for command, output in printed.items() if part in command]
    assert len(found) == 1, part
    return found[0]


def _check_training(output: str) -> None:
    losses = [float(loss) for loss in re.findall(r"^step +\d+ loss (\d+\.\d+)$", output, re.M)]
    assert len(losses) == 20 and losses[-1] < losses[0] / 3


def _check_conformance(report: Path) -> None:
    """The three operators are right wherever they answer; the one that is missing is unsupported, not wrong."""
    cases = json.loads(report.read_text(encoding="utf-8"))["cases"]
    counts = Counter((case["function"], case["status"]) for case in cases)
    assert {status for _, status in counts} == {"pass", "unsupported"}
    assert all(counts[operator, "pass"] >= 15 for operator in OPERATORS)
    assert counts["diopiExp", "pass"] == 0 and counts["diopiExp", "unsupported"] > 15


def _check_coverage(report: Path) -> None:
    """The library served its three operators and nothing else; everything else went by copies."""
    operators = json.loads(report.read_text(encoding="utf-8"))["operators"]
    assert {o["name"]: o["copy_calls"] for o in operators if o["diopi_calls"]} == dict.fromkeys(SERVED, 0)
    assert sum(o["copy_calls"] for o in operators) > 300 and sum(o["alias_calls"] for o in operators) == 0
