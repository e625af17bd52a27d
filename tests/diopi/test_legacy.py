"""`python -m diopi.conformance` with the flags of the published suite."""

import csv
import json
import os
import re
import sqlite3
import subprocess
from pathlib import Path

import pytest
import torch
from forked_python import run_python

from dicore.conformance import runner
from dicore.conformance.case_filter import SelectionError
from dicore.conformance.results import CaseResult, RunReport, WrongElement, WrongTensor
from diopi.conformance import legacy, legacy_output
from diopi.conformance.diopi_case import DiopiCase
from diopi.conformance.legacy_data import DIFFERS, DataSource, data_files, write_data
from diopi.conformance.legacy_options import functions_named, parsed, snake
from diopi.conformance.legacy_source import AdjustedSource, find_device_config, read_device_config
from diopi.vendors import choose

DEVICE_CONFIG = """
import numpy as np
from ..device_config_helper import Skip
device_configs = {
    'relu': dict(name=["relu"], dtype=[Skip(np.float64)], atol=1e-3, rtol=1e-3,
                 tensor_para=dict(args=[{"ins": ["input"], "shape": [Skip((0,))], "dtype": [Skip(np.float16)]}])),
    'leaky': dict(name=["leaky_relu"], para=dict(negative_slope=[Skip(0.5)])),
    'whole': dict(name=[Skip("sort")]),
}
"""


class _Some:
    """A source of two cases."""

    name = "some"

    def groups(self, functions):
        return ["group"]

    def cases(self, group):
        image = torch.arange(48.0, dtype=torch.float64).view(1, 3, 4, 4) - 20
        yield DiopiCase(
            "some:group:0", "diopiRelu", "float64", "", {"input": image, "out": torch.empty_like(image)}
        )
        yield DiopiCase(
            "some:group:1", "diopiRelu", "float32", arguments={"input": torch.tensor([-1.0, 2.0])}
        )


def _run(folder: Path, *flags: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    return run_python("-m", "diopi.conformance", *flags, cwd=folder, env=environment)


@pytest.fixture
def host() -> str:
    vendor = choose("host")
    if vendor.problem():
        pytest.skip(f"the host vendor is not built: {vendor.problem()}")
    return str(vendor.library)


def test_published_names_are_functions_with_their_variants():
    assert {"diopiAdd", "diopiAddInp", "diopiAddScalar", "diopiAddInpScalar"} == set(functions_named("add"))
    assert functions_named("diopiAdd") == {"diopiAdd"}
    assert "diopiConvolution2dBackward" in functions_named("conv2d")
    assert [snake(f) for f in ("diopiRelu", "diopiBatchNorm", "diopiNLLLossV2")] == [
        "relu",
        "batch_norm",
        "nll_loss_v2",
    ]
    with pytest.raises(SelectionError, match="relu"):
        functions_named("relux")


def test_lines_look_as_the_documents_show(capsys):
    log = legacy_output.logger()
    legacy_output.tell(log, CaseResult("own:diopiRelu:0", "diopiRelu", "float32", "", "pass"), 0)
    wrong = WrongTensor("out", [2], "float32", "2 are off", [WrongElement([1], "0.5", "0.25")])
    failed = CaseResult(
        "own:diopiRelu:1", "diopiRelu", "float32", "", "fail", "out is off", arguments=["input: x"]
    )
    failed.wrong.append(wrong)
    legacy_output.tell(log, failed, 2)
    lines = capsys.readouterr().out.splitlines()
    date = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    assert re.fullmatch(date + r" - DIOPI-Test - INFO - Run diopi_functions\.relu succeed", lines[0])
    assert " - DIOPI-Test - ERROR - Run diopi_functions.relu failed [own:diopiRelu:1]" in lines[1]
    assert lines[2].endswith("input: x") and lines[-1].endswith("at [1]: expected 0.5, got 0.25")


def test_reports_hold_what_failed(tmp_path):
    results = [
        CaseResult("own:diopiRelu:0", "diopiRelu", "float32", "", "pass"),
        CaseResult("own:diopiExp:1", "diopiExp", "float16", "strided", "fail", "off", arguments=["input: y"]),
    ]
    legacy_output.write_errors(results, 1, tmp_path / "error_report.csv")
    rows = list(csv.DictReader((tmp_path / "error_report.csv").open()))
    assert [(r["case"], r["reason"], r["details"]) for r in rows] == [("own:diopiExp:1", "off", "input: y")]
    for _ in range(2):
        legacy_output.write_database(results, "now", "lib.so", tmp_path / "sub" / "runs.db")
    (tmp_path / "notes.txt").write_text("no database " * 100)
    with pytest.raises(ValueError, match=r"cannot be added to .*notes\.txt: file is not a database"):
        legacy_output.write_database(results, "now", "lib.so", tmp_path / "notes.txt")
    connection = sqlite3.connect(tmp_path / "sub" / "runs.db")
    found = connection.execute("select run, id, status from result order by run, id").fetchall()
    connection.close()
    assert found == [
        (1, "own:diopiExp:1", "fail"),
        (1, "own:diopiRelu:0", "pass"),
        (2, "own:diopiExp:1", "fail"),
        (2, "own:diopiRelu:0", "pass"),
    ]


def test_a_device_config_skips_with_its_reason(tmp_path):
    (tmp_path / "device_config.py").write_text(DEVICE_CONFIG)
    path = find_device_config(tmp_path)
    assert (
        path is not None
        and find_device_config(path) == path
        and find_device_config(tmp_path / "nothing") is None
    )
    rules, notices = read_device_config(path)
    assert len(notices) == 1 and "atol, rtol not used" in notices[0]

    def reason(function, dtype, **arguments):
        case = DiopiCase("a:b:0", function, dtype, arguments=arguments)
        return next((r for rule in rules if (r := rule.reason(case))), None)

    assert reason("diopiRelu", "float64", input=torch.ones(2)) == "device_config: relu: dtype float64"
    assert (
        reason("diopiReluInp", "float32", input=torch.ones(0)) == "device_config: relu: input of shape (0,)"
    )
    assert (
        reason("diopiRelu", "float32", input=torch.ones(2).half())
        == "device_config: relu: input of dtype float16"
    )
    assert reason("diopiRelu", "float32", input=torch.ones(2)) is None
    assert "negative_slope = 0.5" in reason(
        "diopiLeakyRelu", "float32", input=torch.ones(2), negative_slope=0.5
    )
    assert reason("diopiLeakyRelu", "float32", input=torch.ones(2), negative_slope=0.25) is None
    assert reason("diopiSort", "int64") == "device_config: whole"
    (marked, plain) = AdjustedSource(_Some(), tuple(rules)).cases("group")
    assert marked.outcome == ("skipped", "device_config: relu: dtype float64")
    assert plain.outcome is None
    assert marked.label == "", "the reason belongs to a device, not to the case"
    assert write_data(tmp_path / "data", AdjustedSource(_Some(), tuple(rules)), "group", None).cases == 2
    stored = torch.load(tmp_path / "data" / "some-group.pt", weights_only=True)
    assert [row["label"] for row in stored["cases"]] == ["", ""]


def test_layout_bytes_and_dtypes_are_changed_as_asked():
    (image, _) = AdjustedSource(_Some(), nhwc_min_dim=4).cases("group")
    assert image.arguments["input"].is_contiguous(memory_format=torch.channels_last)
    assert image.arguments["out"].stride() == image.arguments["input"].stride()
    assert torch.equal(image.arguments["input"], next(_Some().cases("group")).arguments["input"])
    (small, _) = AdjustedSource(_Some(), four_bytes=True).cases("group")
    assert small.dtype == "float32" and small.arguments["input"].dtype == torch.float32
    (only,) = AdjustedSource(_Some(), unwanted_dtypes=frozenset(["float64"])).cases("group")
    assert only.id == "some:group:1"


class _Listed:
    """A source of the given calls."""

    def __init__(self, *calls, name="some"):
        self.calls, self.name = calls, name

    def groups(self, functions):
        return ["group"]

    def cases(self, group):
        for number, (function, dtype, arguments) in enumerate(self.calls):
            yield DiopiCase(f"{self.name}:{group}:{number}", function, dtype, "mine", arguments)


def test_data_travels_and_damage_is_seen(tmp_path):
    assert write_data(tmp_path, _Some(), "group", None).cases == 2
    assert write_data(tmp_path, _Some(), "group", frozenset(["diopiExp"])).cases == 0
    (path,) = tmp_path.glob("*.pt")
    document = torch.load(path, weights_only=True)
    assert document["cases"][1]["expected"]["out"].tolist() == [0.0, 2.0]
    source = DataSource(tmp_path)
    first, second = source.cases(*source.groups(None))
    assert first.function == "diopiRelu" and second.arguments["input"].tolist() == [-1.0, 2.0]
    document["cases"][0]["expected"]["out"][0, 0, 0, 0] = 5.0
    torch.save(document, path)
    damaged, sound = source.cases(*source.groups(None))
    status, told = damaged.outcome
    assert status == "fail" and told.startswith(f"{DIFFERS}: out of some:group:0") and "gen_data" in told
    assert sound.outcome is None


def _differs(folder: Path, change, *call) -> bool:
    """Whether a reference that was stored and changed is seen to differ."""
    assert write_data(folder, _Listed(call), "group", None).cases == 1
    path = folder / "some-group.pt"
    document = torch.load(path, weights_only=True)
    change(document["cases"][0]["expected"])
    torch.save(document, path)
    (case,) = DataSource(folder).cases("some-group")
    return case.outcome is not None


def test_integers_are_compared_exactly_but_for_positions(tmp_path):
    def nothing(expected):
        pass

    def out(expected):
        expected["out"][0] = not expected["out"][0] if expected["out"].dtype == torch.bool else 9

    def indices(expected):
        expected["indices"] = expected["indices"].flip(0)

    def slightly(expected):
        expected["out"] *= 1 + 1e-6

    whole = {"input": torch.tensor([1, -2]), "other": torch.tensor([3, 4])}
    for call in (("diopiMul", "int64", whole), ("diopiLt", "int64", whole)):
        assert _differs(tmp_path, out, *call) and not _differs(tmp_path, nothing, *call)
    ties = {"input": torch.tensor([1.0, 1.0]), "dim": 0, "descending": False}
    assert not _differs(tmp_path, indices, "diopiSort", "float32", ties)
    floats = ("diopiExp", "float32", {"input": torch.tensor([1.0, 2.0])})
    assert not _differs(tmp_path, slightly, *floats) and _differs(tmp_path, out, *floats)


def test_a_result_that_is_a_view_of_its_input_is_written(tmp_path):
    real = ("diopiReal", "complex64", {"input": torch.tensor([1 + 2j, 3 - 4j])})
    assert write_data(tmp_path, _Listed(real), "group", None).cases == 1
    (row,) = torch.load(tmp_path / "some-group.pt", weights_only=True)["cases"]
    assert row["expected"]["out"].tolist() == [1.0, 3.0] and row["label"] == "mine"


def test_what_has_no_reference_is_counted_or_told(tmp_path, monkeypatch, capsys):
    fits = ("diopiMm", "float32", {"input": torch.ones(2, 3), "mat2": torch.ones(3, 2)})
    unknown = ("diopiMm", "bool", {"input": torch.ones(2, 2).bool(), "mat2": torch.ones(2, 2).bool()})
    wrong = ("diopiMm", "float32", {"input": torch.ones(2, 3), "mat2": torch.ones(2, 3)})
    done = write_data(tmp_path, _Listed(fits, unknown, wrong), "group", None)
    assert done.cases == 1 and done.left_out == {"diopiMm": 1}
    (problem,) = done.problems
    assert problem.startswith("some:group:2: the reference of diopiMm raised RuntimeError")
    for calls, code in ((((fits, unknown)), 0), ((fits, unknown, wrong), 1), ((unknown,), 5)):
        monkeypatch.setattr(legacy, "_sources", lambda *_, calls=calls: [_Listed(*calls)])
        assert legacy.main(["--mode", "gen_data", "--data_dir", str(tmp_path / "new")]) == code
        told = capsys.readouterr().out
        assert "Left out 1 case of diopiMm: torch has no such kernel" in told
        assert ("ERROR - Not written: some:group:2" in told) == (code == 1)


def test_only_files_of_gen_data_are_read(tmp_path):
    write_data(tmp_path, _Some(), "group", None)
    document = torch.load(tmp_path / "some-group.pt", weights_only=True)
    torch.save({"weight": torch.ones(2)}, tmp_path / "checkpoint.pt")
    torch.save({**document, "version": 7}, tmp_path / "later.pt")
    torch.save({**document, "cases": [{"id": "x"}]}, tmp_path / "part.pt")
    (tmp_path / "text.pt").write_text("no tensors")
    (file,), notices = data_files(tmp_path)
    assert (file.stem, file.source, file.group, file.cases) == ("some-group", "some", "group", 2)
    assert file.functions == {"diopiRelu"}
    named = {Path(notice.split(" is ignored: ")[0]).name: notice for notice in notices}
    assert set(named) == {"checkpoint.pt", "later.pt", "part.pt", "text.pt"}
    assert "did not write it" in named["checkpoint.pt"] and "version is 7" in named["later.pt"]
    assert DataSource(tmp_path).groups(frozenset(["diopiExp"])) == []
    assert DataSource(tmp_path).groups(frozenset(["diopiRelu"])) == ["some-group"]


@pytest.mark.parametrize(
    ("flags", "used", "told"),
    [
        (["--fname", "relu"], ["data"], "Use the data of data: some group"),
        ([], ["data"], "Use the data of data: some group"),
        (["--fname", "exp"], ["own", "opinfo"], "data are not used: nothing of exp is there"),
        (["--fname", "relu", "exp"], ["own", "opinfo"], "data are not used: nothing of exp is there"),
        (["--model_name", "bert"], ["data"], "Use the data of data: models bert"),
        (["--model_name", "resnet50"], ["models"], "nothing of the model resnet50 is there"),
        (["--model_name", "bert", "--fname", "exp"], ["models"], "nothing of exp is there"),
    ],
)
def test_data_are_used_only_for_what_they_hold(flags, used, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    relu = ("diopiRelu", "float32", {"input": torch.ones(2)})
    write_data(Path("data"), _Some(), "group", None)
    write_data(Path("data"), _Listed(relu, name="models"), "bert", None)
    torch.save([1, 2], "data/checkpoint.pt")
    found = legacy._tested(parsed(["--mode", "run_test", *flags]), legacy_output.logger())
    assert [source.name for source in found] == used
    printed = capsys.readouterr().out
    assert told in printed
    assert "checkpoint.pt is ignored" in printed
    if used != ["data"]:
        assert "Use cases made now: " in printed


def _reported(monkeypatch, tmp_path, **changes) -> int:
    """The exit code of run_test after a run that found this."""

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "run_suite", lambda *_: RunReport("lib.so", **changes))
    return legacy.main(["--fname", "relu", "--library", "lib.so"])


def test_the_exit_code_is_that_of_the_report(tmp_path, monkeypatch, capsys):
    unsupported = CaseResult("own:diopiRelu:0", "diopiRelu", "float32", "", "unsupported")
    passed = CaseResult("own:diopiRelu:1", "diopiRelu", "float32", "", "pass")
    failed = CaseResult("own:diopiRelu:2", "diopiRelu", "float32", "", "fail")
    assert _reported(monkeypatch, tmp_path, results=[unsupported]) == 5
    assert "Nothing passed" in capsys.readouterr().out
    assert _reported(monkeypatch, tmp_path, results=[passed], interrupted=True) == 130
    assert "Interrupted" in capsys.readouterr().out
    assert _reported(monkeypatch, tmp_path, results=[passed, failed]) == 1
    assert _reported(monkeypatch, tmp_path, results=[passed, unsupported]) == 0
    assert _reported(monkeypatch, tmp_path, results=[passed], whole=True, not_covered=["diopiExp"]) == 1
    assert "Without a case: diopiExp" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--mode", "nonsense"], "invalid choice"),
        (["--nhwc_min_dim", "3"], "--nhwc_min_dim needs --nhwc"),
        (["--model_name", "bert", "--config", "x.py"], "give one of them"),
        (["--mode", "gen_data", "--pytest_args", "-x"], "belongs to --mode run_test"),
        (["--test_result_path", "a.xlsx"], "must end in .json or .csv"),
        (["--test_result_path", "/nowhere/a.csv"], "give a file in a folder that exists"),
        (["--mode", "gen_data", "--case", "own:diopiAbs:0"], "--case belongs to --mode run_test"),
        (["--impl_folder", "/nowhere/at/all"], "no such folder"),
    ],
)
def test_wrong_flags_are_refused(flags, told, capsys):
    with pytest.raises(SystemExit) as caught:
        legacy.main(flags)
    assert caught.value.code == 2 and told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--fname", "relux"], "no operator is called 'relux'"),
        (["--model_name", "resnet_50"], "did you mean resnet50"),
        (["--config", "nowhere.py"], "no such file"),
        (["--mode", "gen_case", "--nhwc"], "need run_test"),
        (["--pytest_args", "-x", "--case_output_dir", "nowhere"], "holds no test files"),
        (["--filter_dtype", "float33"], "float33"),
        (
            ["--data_dir", "nowhere"],
            "--data_dir nowhere: there is no such folder; --mode gen_data --data_dir",
        ),
        (["--data_dir", "."], "--data_dir .: no file there is of --mode gen_data"),
        (["--config", "mine.py", "--config", "mine.py"], "mine.py is given twice"),
        (
            ["--fname", "relu", "--case", "own:diopiRelu:999"],
            "there is no case own:diopiRelu:999: own:diopiRelu has",
        ),
    ],
)
def test_what_cannot_be_done_is_told(flags, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(
        "a = dict(name=['diopiRelu'], tensor_para=dict(args=[dict(ins=['input'], shape=[(2,)])]))"
    )
    assert legacy.main(flags) == 2
    assert told in capsys.readouterr().out


def test_the_list_of_models(capsys):
    assert legacy.main(["--get_model_list"]) == 0
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert len(lines) == 40
    named = lines["resnet50"].split(", ")
    assert {"convolution2d", "convolution2d_backward", "batch_norm", "relu_inp"} <= set(named)
    assert "convolution3d" not in named and all(functions_named(name) for name in named)


def test_a_run_from_data_and_pytest_files(tmp_path, host):
    entry = {"name": ["relu"], "tensor_para": {"args": [{"ins": ["input"], "shape": [[4], [2, 3]]}]}}
    (tmp_path / "mine.json").write_text(json.dumps({"mine": entry}))
    made = _run(tmp_path, "--mode", "gen_data", "--config", "mine.json")
    assert made.returncode == 0 and "number for data: 2, in data" in made.stdout
    ran = _run(
        tmp_path, "--library", host, "--test_result_path", "all.json", "--html_report", "--workers", "1"
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("INFO - Run diopi_functions.relu succeed") == 2
    assert "Run test cases number: 2 (2 pass, 0 fail" in ran.stdout
    assert "diopiRelu" in (tmp_path / "report.html").read_text()
    assert len(json.loads((tmp_path / "all.json").read_text())["cases"]) == 2
    assert not (tmp_path / "error_report.csv").exists()
    path = tmp_path / "data" / "file-mine::relu.pt"
    document = torch.load(path, weights_only=True)
    document["cases"][0]["expected"]["out"] += 1
    torch.save(document, path)
    ran = _run(tmp_path, "--library", host, "--workers", "1")
    assert ran.returncode == 1 and "Run test cases number: 2 (1 pass, 1 fail" in ran.stdout, ran.stdout
    assert f"relu failed [data:file-mine::relu:0] (float32): {DIFFERS}" in ran.stdout
    assert DIFFERS in (tmp_path / "error_report.csv").read_text()
    again = _run(tmp_path, "--library", host, "--workers", "1", "--case", "data:file-mine::relu:1", "--nhwc")
    assert again.returncode == 0 and "Run test cases number: 1 (1 pass" in again.stdout, again.stdout
    assert "dimensions and more are in channels-last order (--nhwc)" in again.stdout
    assert not (tmp_path / "error_report.csv").exists()


def test_written_pytest_files_run(tmp_path, host):
    flags = [
        "--mode",
        "gen_case",
        "--fname",
        "diopiSiluInp",
        "--model_name",
        "efficientnet",
        "--library",
        host,
    ]
    made = _run(tmp_path, *flags)
    assert made.returncode == 0, made.stdout + made.stderr
    assert [path.name for path in (tmp_path / "gencases").iterdir()] == ["test_diopi_silu_inp.py"]
    ran = _run(tmp_path, "--pytest_args", "-q -p no:cacheprovider", "--library", host)
    assert ran.returncode == 0 and re.search(r"\d+ passed", ran.stdout), ran.stdout


def test_main_py_is_the_same_program():
    program = Path(__file__).parents[2] / "conformance" / "main.py"
    told = run_python(str(program), "--get_model_list", check=True)
    lines = told.stdout.splitlines()
    assert len(lines) == 40 and sum(line.startswith("llama: ") for line in lines) == 1
