"""A wrong generator: saved by OpAutoCompare, and written as a file that judges what is drawn by its distribution."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import op_tools
import torch_dipu  # noqa: F401
from op_tools.reproduce import ReproduceOptions, find_call, surest_calls, write
from op_tools.reproduce.drawn_source import drawn_source
from op_tools.reproduce.judged import JudgedCall
from op_tools.reproduce.script import Builder, build, failures_on, load, tried
from op_tools.reproduce.write import is_wrong
from op_tools.runs import BadInput

pytestmark = pytest.mark.device

DIPU, CPU = torch.device("dipu"), torch.device("cpu")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """The results of a run whose dropout drops too much; the wrong kernel stays."""

    def dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
        keep = (torch.rand(x.shape) >= p + 0.1).to(x.device)
        return x * keep / (1 - p), keep

    library = torch.library.Library("aten", "IMPL")
    library.impl("native_dropout", dropout, "PrivateUse1", allow_override=True)
    torch.manual_seed(0)
    x = torch.randn(40, 100).to(DIPU)
    with op_tools.OpAutoCompare(results=str(tmp_path)):
        torch.nn.functional.dropout(x, 0.2)
    yield tmp_path
    library._destroy()


def test_a_wrong_draw_is_saved_and_reproduced(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    item = find_call("aten.native_dropout.default", run, is_wrong)
    assert item.folder.name == "device" and not (item.folder.parent / "cpu").exists()
    made = write(ReproduceOptions(item, run / "repro.py", verify=False, must_fail=True, repeat=3))
    assert made.operator == "aten.native_dropout.default"
    assert made.confirmed == "on dipu:0: failed in 3 of 3 calls"
    assert "a rate of 0.7" in made.wrong[0]
    text = made.path.read_text()
    assert (
        "judged by their distribution" in text
        and "import op_tools" not in text
        and "from op_tools" not in text
    )


def test_the_file_accuses_the_device_and_not_the_cpu(run: Path) -> None:
    call = JudgedCall.of_item(find_call("aten.native_dropout.default", run, is_wrong))
    script = build(Builder(call), "")
    assert tried(script, call) == (True, True)
    assert failures_on(script, DIPU, 2)[0] == 2
    assert failures_on(script, CPU, 2)[0] == 0
    case, memory = load(script)["CASE"], script.packer.tensor()
    (x,) = (load(script)["read"](saved, memory) for saved in case.inputs)
    keep = torch.rand(x.shape) >= 0.2
    assert case.drawn([x], [x * keep / 0.8, keep]) == ""
    assert "not x / (1 - p)" in case.drawn([x], [x * keep, keep])


def test_the_surest_call_of_a_run_may_be_random(run: Path) -> None:
    assert [item.folder.name for item in surest_calls(run, is_wrong)] == ["device"]


def test_the_judge_in_the_file_is_written_for_old_interpreters() -> None:
    source = drawn_source("torch.Tensor.normal_", "gathered(x[0], 1.0)")
    names: dict[str, dict[str, str]] = {}
    exec(compile(source.partition("\ndef loaded")[0], "file", "exec"), names)
    assert len(names["SOURCES"]) == 12
    for name, text in names["SOURCES"].items():
        assert "op_tools" not in "\n".join(line for line in text.splitlines() if "import" in line), name
        ast.parse(text, feature_version=(3, 9))
        assert "strict=" not in text


def test_an_operator_of_unknown_distribution_is_refused(tmp_path: Path) -> None:
    with op_tools.OpCapture(results=str(tmp_path)):
        torch.nn.functional.gumbel_softmax(torch.randn(3, 4).to(DIPU))
    item = find_call("torch.nn.functional.gumbel_softmax", tmp_path, lambda item: True)
    with pytest.raises(BadInput, match="nothing is known about their distribution"):
        JudgedCall.of_item(item)
