"""Lists of operators: scalar forms, names of what torch splits, names that are wrong, files that change."""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from forked_python import run_python
from op_ways import ways

import torch_dipu  # noqa: F401
from torch_dipu.coverage import Coverage

FALL_BACK = "DIPU_FORCE_FALLBACK_OPS_LIST"


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(12, dtype=torch.float32).reshape(3, 4).to("dipu")


# ---- scalar forms ----


@pytest.mark.parametrize("wish", ["add.Scalar", "add.Scalar_out", ".*.Scalar", ".*Scalar.*"])
def test_what_a_number_is_added_to_is_named_scalar(
    wish: str, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FALL_BACK, wish)
    assert ways("add.Tensor", lambda: x + 3) == (0, 1)
    assert ways("add.Tensor", lambda: 3 + x) == (0, 1)
    assert ways("add.Tensor", lambda: x + x) == (1, 0)
    assert torch.equal((x + 3).cpu(), x.cpu() + 3)


def test_both_forms_answer_to_the_name_that_torch_calls(
    x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FALL_BACK, "add.Tensor,mul_.Scalar,div.Scalar_mode")
    assert ways("add.Tensor", lambda: x + 3) == (0, 1)
    assert ways("add.Tensor", lambda: x + x) == (0, 1)
    assert ways("mul_.Tensor", lambda: x.mul_(2)) == (0, 1)
    assert ways("mul_.Tensor", lambda: x.mul_(x)) == (1, 0)
    assert ways("div.Tensor_mode", lambda: torch.div(x, 2, rounding_mode="floor")) == (0, 1)
    assert ways("div.Tensor_mode", lambda: torch.div(x, x, rounding_mode="floor")) == (1, 0)


def test_the_scalar_form_alone_is_compared(
    x: torch.Tensor, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIPU_AUTOCOMPARE_OPS_LIST", "add.Scalar")
    x + x
    assert capfd.readouterr().out == ""
    x + 3
    assert "autocompare:    add.Tensor out:" in capfd.readouterr().out


# ---- what torch splits ----


def step(*, train: bool = True) -> dict[str, Callable[[], object]]:
    """Forward and backward of what the documents name."""
    image, kernel = torch.randn(1, 2, 5, 5).to("dipu"), torch.randn(3, 2, 3, 3).to("dipu").requires_grad_()
    rows, weight = torch.randn(4, 6).to("dipu"), torch.randn(5, 6).to("dipu").requires_grad_()
    bias, targets = torch.randn(5).to("dipu").requires_grad_(), torch.tensor([0, 2, 1, 4]).to("dipu")
    pair = torch.randn(2, 4, 6).to("dipu"), torch.randn(2, 6, 3).to("dipu").requires_grad_()
    return {
        "conv2d": lambda: F.conv2d(image, kernel).sum().backward(),
        "linear": lambda: F.linear(rows, weight, bias).sum().backward(),
        "matmul": lambda: torch.matmul(*pair).sum().backward(),
        "dropout": lambda: F.dropout(weight, 0.5, train).sum().backward(),
        "cross_entropy_loss": lambda: F.cross_entropy(F.linear(rows, weight), targets).backward(),
    }


PARTS = {
    "conv2d": {"convolution", "convolution_backward"},
    "linear": {"addmm", "mm"},
    "matmul": {"bmm"},
    "dropout": {"native_dropout", "native_dropout_backward"},
    "cross_entropy_loss": {"_log_softmax", "nll_loss_forward", "nll_loss_backward", "_log_softmax_backward_data"},
}  # fmt: skip


@pytest.mark.parametrize("variable", [FALL_BACK, "DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS"])
@pytest.mark.parametrize("name", PARTS)
def test_what_the_documents_name_falls_back_as_a_whole(
    name: str, variable: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = step()[name]
    with Coverage() as before:
        run()
    fallen = {o.name.removeprefix("aten::") for o in before.operators if o.fallback_calls}
    assert fallen & PARTS[name] <= {"native_dropout_backward"}  # which no DIOPI function does
    monkeypatch.setenv(variable, name)
    monkeypatch.setenv("DIPU_LOG_FALLBACK_INFO", "1")
    with Coverage() as coverage:
        run()
    asked = {o.name.removeprefix("aten::"): o for o in coverage.operators if o.fallback_calls}
    assert set(asked) == PARTS[name]
    told = capfd.readouterr().err
    assert "matches no operator" not in told
    for part, operator in asked.items():
        if operator.functions:
            assert operator.reason.startswith(f"{variable} names it ({operator.fallback_calls} call")
        assert operator.asked == {variable: operator.fallback_calls}
        assert f"dipu: {part} falls back to the cpu, by alias: {variable} names it" in told


@pytest.mark.parametrize("name", PARTS)
def test_what_the_documents_name_is_compared(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    run = step()[name]
    monkeypatch.setenv("DIPU_AUTOCOMPARE_OPS_LIST", name)
    run()
    told = capfd.readouterr().out
    compared = {
        line.removeprefix("dipu_").removesuffix("_autocompare")
        for line in told.splitlines()
        if line.endswith("_autocompare")
    }
    assert {part.replace("_overrideable", "") for part in compared} == PARTS[name]
    assert "not_allclose" not in told
    if name == "dropout":
        assert "native_dropout: draws random numbers, not compared" in told


# ---- names that are wrong ----


def test_a_name_that_no_operator_has_is_told_once_with_near_ones(
    x: torch.Tensor, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FALL_BACK, "convolutoin,add.Tesnor,add.Tensor,qqqqqqqq,mine::operator,zz.*")
    told = capfd.readouterr().err
    assert f"dipu: {FALL_BACK}: 'convolutoin' matches no operator; did you mean convolution?" in told
    assert f"dipu: {FALL_BACK}: 'add.Tesnor' matches no operator; did you mean add.Tensor" in told
    assert f"dipu: {FALL_BACK}: 'qqqqqqqq' matches no operator.\n" in told
    assert f"dipu: {FALL_BACK}: 'zz.*' matches no operator.\n" in told
    assert "'add.Tensor'" not in told
    assert "mine::operator" not in told  # another library may bring it later
    assert ways("add.Tensor", lambda: x + x) == (0, 1)  # the rest of the list counts
    monkeypatch.setenv(FALL_BACK, "convolutoin,qqqqqqqq")
    assert capfd.readouterr().err == ""


def test_an_operator_that_torch_makes_others_of_is_told(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FALL_BACK, "einsum")
    assert "'einsum' reaches no device: torch makes other operators of it" in capfd.readouterr().err


# ---- files ----

PROGRAM = """
import os, time, torch
x = torch.ones(3, device="dipu")

def falls_back(seconds=0.0):
    end = time.monotonic() + seconds
    while True:
        before = dict(torch.dipu.op_counts().get("aten::add.Tensor", {"alias": 0}))["alias"]
        x + x
        if torch.dipu.op_counts()["aten::add.Tensor"]["alias"] > before:
            return True
        if time.monotonic() > end:
            return False

def write(text, name=".dipu_force_fallback_op_list.config"):
    with open(os.path.join(START, name), "w") as file:
        file.write(text)

START = os.getcwd()
"""


def program(folder: Path, body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_python(
        "-c", PROGRAM + textwrap.dedent(body), cwd=folder, timeout=120, env={**os.environ, **environment}
    )


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    done = program(
        tmp_path,
        """
        print(falls_back())
        os.chdir("/")  # the file of the folder the program was started in counts
        write("# suspects\\nadd.out  # since Monday\\n")
        print(falls_back(20))
        write("mul.out\\n")
        time.sleep(0.3)
        [x + x for _ in range(40)]
        print(falls_back())
        write("add.*\\n")
        os.environ["DIPU_FORCE_FALLBACK_OPS_LIST"] = "sub"  # read at once when the variable is set
        print(falls_back())
        os.remove(os.path.join(START, ".dipu_force_fallback_op_list.config"))
        del os.environ["DIPU_FORCE_FALLBACK_OPS_LIST"]
        print(falls_back())
        """,
    )
    assert done.stdout.split() == ["False", "True", "False", "True", "False"], done.stdout + done.stderr


def test_a_file_that_becomes_wrong_keeps_the_list_and_is_told(tmp_path: Path) -> None:
    done = program(
        tmp_path,
        """
        write("add.out\\n")
        print(falls_back(20))
        write("# two lines\\nadd(\\n")
        time.sleep(0.3)
        [x + x for _ in range(40)]
        print(falls_back())
        """,
    )
    assert done.stdout.split() == ["True", "True"], done.stdout + done.stderr
    assert "the list stays as it was: " in done.stderr
    assert ".dipu_force_fallback_op_list.config:2: 'add(' is not a pattern" in done.stderr
    assert done.stderr.count("stays as it was") == 1


def test_names_in_a_file_are_checked_too(tmp_path: Path) -> None:
    (tmp_path / ".specified_autocompare_op_list.config").write_text("ad.Tensor\n")
    done = program(tmp_path, "print(falls_back())")
    assert done.stdout == "False\n"
    assert (
        "DIPU_AUTOCOMPARE_OPS_LIST: 'ad.Tensor' matches no operator; did you mean add.Tensor" in done.stderr
    )
