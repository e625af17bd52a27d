"""`ditorch config`: every setting, where its value came from, and what in the file or the environment is no good."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from forked_programs import run_commands
from forked_python import clean_environment

from _ditorch import configuration, run_tools
from _ditorch.configuration import ConfigEntry, Configuration, UnknownGroup, read_all
from dicore.settings import variables_of

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(**settings: str) -> Configuration:
    return read_all(clean_environment(**settings))


def one(found: Configuration, group: str, name: str) -> ConfigEntry:
    (entry,) = [f for f in found.entries if (f.group, f.name) == (group, name)]
    return entry


def test_defaults_environment_and_file(tmp_path: Path) -> None:
    (tmp_path / "ditorch.toml").write_text(
        '# settings\n[op_tools]\nverbose = true\n\n[op_tools.time_measure]\ntop = 7\nlevel = "aten"\nverbose = false\n'
        '[op_tools.capture]\nlist = ["torch.add", "torch.mul"]\n'
    )
    found = read(OP_TIME_MEASURE_LEVEL="api", OP_CAPTURE_MAX_BYTES="2K")
    assert found.problems == found.warnings == []
    level = one(found, "time_measure", "level")
    assert (level.value, level.origin) == ("api", "environment variable OP_TIME_MEASURE_LEVEL")
    assert (level.variable, level.meaning) == (
        "OP_TIME_MEASURE_LEVEL",
        "api, or aten for what reaches the kernels",
    )
    top = one(found, "time_measure", "top")
    assert (top.value, top.default, top.origin, top.changed) == (7, 10, "ditorch.toml:6", True)
    assert (one(found, "capture", "max_bytes").value, one(found, "capture", "max_bytes").default) == (
        2048,
        None,
    )
    assert one(found, "capture", "list").value == "torch.add,torch.mul"
    sync = one(found, "time_measure", "sync")
    assert (sync.value, sync.origin, sync.changed) == (False, "default", False)
    # What holds for all tools is said once, and again where a tool differs.
    assert (one(found, "op_tools", "verbose").value, one(found, "op_tools", "verbose").origin) == (
        True,
        "ditorch.toml:3",
    )
    verbose = [entry for entry in found.entries if entry.name == "verbose"]
    assert [(f.group, f.value, f.origin) for f in verbose[1:]] == [("time_measure", False, "ditorch.toml:8")]


def test_every_setting_of_every_tool_is_shown() -> None:
    shown = {entry.variable for entry in read().entries}
    for tool in run_tools.offered():
        assert {variable.name for variable in variables_of(tool.schema).values()} <= shown
    assert {"DITORCH_DEVICE", "DITORCH_DISABLE_MOCK", "DIPU_DEVICE", "DIPU_MOCK_CUDA"} <= shown
    assert {"DIPU_HOST_MEMORY", "DIPU_HOST_NUMERICS", "OP_TOOLS_MEMORY_INTERVAL"} <= shown


def test_the_settings_of_every_package_are_shown_with_their_owner() -> None:
    found = read(DLINFER_CPU_MEMORY="0.5", DLINFER_CHECK="perhaps")
    memory = one(found, "dlinfer", "DLINFER_CPU_MEMORY")
    assert (memory.value, memory.default, memory.dynamic) == ("0.5", "4", False)
    assert one(found, "torch_dipu", "DIPU_DUMP_OP_ARGS").dynamic is True
    assert one(found, "host", "DIPU_HOST_ALIAS").default == "1"
    assert one(found, "diopi", "DIPU_DEVICE").meaning.startswith("the vendor: a name (host)")
    assert found.problems == ["environment variable DLINFER_CHECK: expected 0 or 1, got 'perhaps'"]


def test_environment_only_settings() -> None:
    found = read(DITORCH_DEVICE="dipu", LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16="1e-2,1e-2")
    device = one(found, "ditorch", "DITORCH_DEVICE")
    assert (device.value, device.origin) == ("dipu", "environment variable DITORCH_DEVICE")
    assert one(found, "op_tools", "LINEAR_AUTOCOMPARE_ERROR_TOLERANCE_FLOAT16").value == "1e-2,1e-2"


def test_no_framework_is_a_choice() -> None:
    assert read(DITORCH_DEVICE="none").problems == []
    assert "'nune'" in read(DITORCH_DEVICE="nune").problems[0]


def test_pyproject(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "x"\n[tool.ditorch.op_tools.observe]\nlevel = "aten"\n[tool.ditorch.op_tols]\nx = 1\n'
    )
    found = read()
    assert (one(found, "observe", "level").value, one(found, "observe", "level").origin) == (
        "aten",
        "pyproject.toml:4",
    )
    (problem,) = found.problems
    assert (
        f"{tmp_path}/pyproject.toml: unknown table or key [tool.ditorch.op_tols]. Did you mean 'op_tools'?"
        in problem
    )


def test_all_errors_are_listed(tmp_path: Path) -> None:
    (tmp_path / "ditorch.toml").write_text(
        '[op_tools]\nverbos = true\n[op_tools.time_measure]\ntop = "many"\nlst = "x"\n[op_tools.autocompar]\nx = 1\n'
        '[op_tools.capture]\nlist = "*add"\n[op_tool.observe]\nlevel = "aten"\n'
    )
    found = read(OP_AUTOCOMPARE_RATE="often", OP_TIME_MEASURE_SINC="1")
    text = "\n".join(found.problems)
    file = tmp_path / "ditorch.toml"
    for expected in (
        f"{file}: unknown key 'verbos' in [op_tools]. Did you mean 'verbose'?",
        f"{file}: unknown key 'lst' in [op_tools.time_measure]. Did you mean 'list'?",
        f"{file}: unknown table [op_tools.autocompar]. Did you mean 'autocompare'?",
        f"{file}: unknown table or key [op_tool]. Did you mean 'op_tools'?",
        f"top in {file}: invalid literal",
        f"capture.list ({file}): '*add' is not a valid pattern",
        "environment variable OP_AUTOCOMPARE_RATE: could not convert",
    ):
        assert expected in text
    assert len(found.problems) == 7
    assert json.loads(json.dumps(found.as_dict()))["problems"] == found.problems
    (warning,) = found.warnings
    assert "OP_TIME_MEASURE_SINC is set but is no setting" in warning and "OP_TIME_MEASURE_SYNC" in warning
    assert one(found, "time_measure", "sync").value is False  # what is good is shown all the same


def test_a_file_that_is_no_toml(tmp_path: Path) -> None:
    (tmp_path / "ditorch.toml").write_text("[op_tools\n")
    found = read(DITORCH_DEVICE="dipu")
    assert f"{tmp_path}/ditorch.toml cannot be read" in found.problems[0] and "line 1" in found.problems[0]
    assert one(found, "ditorch", "DITORCH_DEVICE").value == "dipu"


def test_a_file_of_the_wrong_shape(tmp_path: Path) -> None:
    file = tmp_path / "ditorch.toml"
    for text in ("op_tools = 3", "[[op_tools]]\nverbose = true"):
        file.write_text(text)
        assert f"{file}: op_tools must be a table" in read().problems[0]
    file.write_text("[op_tools]\nautocompare = 5\nverbose = true\n")
    (tmp_path / "pyproject.toml").write_text("[tool]\nditorch = 3\n")  # not read beside the other
    found = read()
    (problem,) = found.problems
    assert f"{file}: op_tools.autocompare must be a table, got 5" in problem
    assert one(found, "op_tools", "verbose").value is True
    file.unlink()
    assert "pyproject.toml: tool.ditorch must be a table, got 3" in read().problems[0]


def test_narrowed() -> None:
    found = read(OP_TIME_MEASURE_TOP="3", OP_OBSERVE_LEVEL="aten")
    assert {f.group for f in found.narrowed("time", False).entries} == {"op_tools", "time_measure"}
    assert [f.name for f in found.narrowed(None, True).entries] == ["top", "level"]
    assert [f.name for f in found.narrowed("observe", True).entries] == ["level"]
    assert {f.group for f in found.narrowed("torch_dipu", False).entries} == {"diopi", "host", "torch_dipu"}
    assert {f.group for f in found.narrowed("dlinfer", False).entries} == {"dlinfer"}
    with pytest.raises(UnknownGroup, match=r"Did you mean 'overflow"):
        found.narrowed("overflo", False)


def test_the_example_says_the_defaults(tmp_path: Path) -> None:
    text = configuration.example()
    table = tomllib.loads(text)["op_tools"]
    assert table["results"] == "op_tools_results" and table["autocompare"]["rate"] == 0.005
    (tmp_path / "ditorch.toml").write_text(text)
    found = read()
    assert found.problems == []
    for entry in found.entries:
        assert entry.value == entry.default, entry
        if entry.name == entry.variable or entry.default is None:
            assert entry.variable in text
        else:
            assert entry.origin.startswith("ditorch.toml:"), entry


def test_the_table_fits_100_columns(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    configuration.show(read(OP_TIME_MEASURE_TOP="3"), Console(width=100))
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    for word in ("time_measure", "OP_TIME_MEASURE_TOP", "lines of each summary", "environment variable"):
        assert word in printed


@pytest.mark.device
def test_the_program(tmp_path: Path) -> None:
    good = tmp_path / "good"
    good.mkdir()
    (tmp_path / "ditorch.toml").write_text("[op_tools]\nverbos = 1\n")
    as_json, table, unknown, example, help_text = run_commands(
        tmp_path,
        ["config", "--json", "--changed"],
        ["config", "--tool", "memory"],
        ["config", "--tool", "memori"],
        ["config", "--example"],
        ["run", "--help"],
        settings={"OP_TOOLS_MEMORY_INTERVAL": "2"},
    )
    assert as_json.returncode == table.returncode == 2
    content = json.loads(as_json.stdout)
    assert content["ok"] is False and "verbos" in content["problems"][0]
    assert [(s["name"], s["value"]) for s in content["settings"]] == [("interval", 2.0)]
    assert "unknown key 'verbos'" in table.stderr and "OP_TOOLS_MEMORY_INTERVAL" in table.stdout
    assert unknown.returncode == 2 and "Did you mean 'memory'?" in unknown.stderr
    assert example.returncode == 0 and "op_tools" in tomllib.loads(example.stdout)
    assert help_text.returncode == 0 and "ditorch run [OPTIONS] -m MODULE" in help_text.stdout
