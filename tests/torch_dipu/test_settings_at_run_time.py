"""What a user switches while the program runs: dumps, comparison, fallback, and the coverage of a run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from forked_python import run_python
from op_ways import ways

import torch_dipu  # noqa: F401
from torch_dipu.coverage import Coverage

DEVICE = "dipu"


@pytest.fixture
def x() -> torch.Tensor:
    return torch.arange(12, dtype=torch.float32).reshape(3, 4).to(DEVICE)


@pytest.mark.parametrize("wish", ["add.out", "add.Tensor", "add", ".*", " mul.out , ad.*"])
def test_operators_on_the_list_fall_back_with_the_same_result(
    wish: str, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ways("add.Tensor", lambda: x + x) == (1, 0)
    monkeypatch.setenv("DIPU_FORCE_FALLBACK_OPS_LIST", wish)
    assert ways("add.Tensor", lambda: x + x) == (0, 1)
    assert torch.equal((x + x).cpu(), x.cpu() * 2)
    monkeypatch.delenv("DIPU_FORCE_FALLBACK_OPS_LIST")
    assert ways("add.Tensor", lambda: x + x) == (1, 0)


def test_a_pattern_must_match_the_whole_name(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPU_FORCE_FALLBACK_OPS_LIST", "ad,dd.Tensor,.*.Scalar")
    assert ways("add.Tensor", lambda: x + x) == (1, 0)
    assert ways("eq.Scalar", lambda: x == 3) == (0, 1)


def test_torchs_own_implementation_can_be_kept(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPU_KEEP_TORCHOP_DEFAULT_IMPL_OPS", "rsqrt.out,_softmax.out")
    assert ways("rsqrt", x.rsqrt) == (0, 1)
    assert ways("_softmax", lambda: x.softmax(0)) == (0, 1)
    assert ways("exp", x.exp) == (1, 0)


def test_the_operator_library_can_be_switched_off(x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIPU_WITH_DIOPI_LIBRARY", "DISABLE")
    assert ways("mul.Tensor", lambda: x * 2) == (0, 1)
    monkeypatch.delenv("DIPU_WITH_DIOPI_LIBRARY")
    assert ways("mul.Tensor", lambda: x * 2) == (1, 0)


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("DIPU_FORCE_FALLBACK_OPS_LIST", "add(", "'add\\(' is not a pattern"),
        ("DIPU_DUMP_OP_ARGS", "4", "expected a number from 0 to 3"),
        ("DIPU_LOG_FALLBACK_INFO", "yes", "expected a number from 0 to 1"),
    ],
)
def test_a_wrong_value_is_refused_when_it_is_set(name: str, value: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        os.environ[name] = value
    assert os.environ.get(name) != value


def test_dump_levels(
    x: torch.Tensor, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIPU_DUMP_OP_ARGS", "1")
    x + x
    first = capfd.readouterr().out
    assert first.startswith("[dipu_add_tensor:")
    assert first.endswith("]:add.Tensor  diopiAdd\n")

    monkeypatch.setenv("DIPU_DUMP_OP_ARGS", "2")
    x + 3
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].endswith("]:add.Tensor  diopiAddScalar")
    assert lines[1].startswith(
        "\tadd.Tensor: self:numel:12, sizes:[3, 4], stride:[4, 1], is_view:0, TensorOptions(dtype=float, device=dipu:0,"
    )
    assert ", data_ptr:0x" in lines[1]
    assert lines[2:4] == ["\tadd.Tensor: other:3", "\tadd.Tensor: alpha:1"]
    assert lines[4].startswith("\tadd.Tensor: out:numel:12")
    assert len(lines) == 5

    monkeypatch.setenv("DIPU_DUMP_OP_ARGS", "3")
    x.mul_(2)
    text = capfd.readouterr().out
    before, after = text.split("\tmul_.Tensor: out:")
    assert "  8   9  10  11\n" in before
    assert " 16  18  20  22\n" in after

    monkeypatch.setenv("DIPU_DUMP_OP_ARGS", "0")
    x + x
    assert capfd.readouterr().out == ""


def test_calls_that_fall_back_are_logged_with_the_reason(
    x: torch.Tensor, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIPU_LOG_FALLBACK_INFO", "1")
    monkeypatch.setenv("DIPU_FORCE_FALLBACK_OPS_LIST", "add.out")
    x + x
    assert "add.Tensor falls back" in (told := capfd.readouterr().err)
    assert "DIPU_FORCE_FALLBACK_OPS_LIST names it" in told
    torch.linalg.det(x[:2, :2])
    assert "_linalg_det falls back to the cpu" in (told := capfd.readouterr().err)
    assert "no DIOPI function takes this call" in told


def test_autocompare_prints_as_promised(
    x: torch.Tensor, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIPU_AUTOCOMPARE_OPS_LIST", "add.out,mul.*,uniform_,convolution.*")
    x + x
    lines = capfd.readouterr().out.splitlines()
    assert lines[:3] == ["", "dipu_add_tensor_autocompare", "autocompare:    add.Tensor out:"]
    assert "device=cpu" in lines[3]
    assert "device=dipu:0" in lines[4]
    assert lines[5:] == [
        "\tallclose",
        "autocompare:    add.Tensor self: allclose",
        "autocompare:    add.Tensor other: allclose",
    ]
    x.uniform_()
    assert "uniform_: draws random numbers, not compared" in capfd.readouterr().out
    x.sub(1)
    assert capfd.readouterr().out == ""
    conv = torch.nn.Conv2d(2, 3, 3).to(DEVICE)
    conv(torch.randn(1, 2, 5, 5).to(DEVICE)).sum().backward()
    told = capfd.readouterr().out
    assert "dipu_convolution_overrideable_autocompare" in told
    assert "dipu_convolution_backward_overrideable_autocompare" in told
    assert "not_allclose" not in told
    assert "not compared" not in told


def test_lists_are_read_from_files_and_wrong_ones_are_told(tmp_path: Path) -> None:
    (tmp_path / ".dipu_force_fallback_op_list.config").write_text("# why\nadd.out\nmul.out\n")
    program = (
        "import torch, torch_dipu\n"
        "x = torch.ones(3, device='dipu'); x + x; x * x; x - x\n"
        "counts = torch_dipu.dipu.op_counts()\n"
        "print([counts['aten::%s.Tensor' % n]['diopi'] for n in ('add', 'mul', 'sub')])\n"
    )
    done = run_python(
        "-c", program, cwd=tmp_path, env={**os.environ, "DIPU_AUTOCOMPARE_OPS_LIST": "("}, check=True
    )
    assert done.stdout.splitlines()[-1] == "[0, 0, 1]"
    assert "these settings are left out" in done.stderr
    assert "DIPU_AUTOCOMPARE_OPS_LIST: '(' is not a pattern" in done.stderr


def test_coverage_counts_calls_time_and_reasons(x: torch.Tensor) -> None:
    x + x
    with Coverage() as coverage:
        for _ in range(3):
            x + x
        torch.linalg.det(x[:2, :2])
    by_name = {o.name: o for o in coverage.operators}
    assert by_name["aten::add.Tensor"].diopi_calls == 3
    assert by_name["aten::add.Tensor"].diopi_seconds > 0
    fallen = by_name["aten::_linalg_det"]
    assert fallen.fallback_calls == 1
    assert fallen.fallback_seconds > 0
    assert fallen.reason == "no DIOPI function"
    assert coverage.operators[0] == fallen
    assert coverage.calls == sum(o.diopi_calls + o.fallback_calls for o in coverage.operators)
    assert 0 < coverage.share < 1
    assert coverage.as_dict()["fallback_seconds"] == coverage.fallback_seconds


def test_dipu_coverage_runs_a_program(tmp_path: Path) -> None:
    script = tmp_path / "step.py"
    script.write_text(
        "import sys, torch\nx = torch.ones(4, 4, device='dipu')\n"
        "for _ in range(9): x = x + 1\ntorch.linalg.det(x)\nprint('given', sys.argv[1:])\n"
    )
    command = ["-m", "dipu", "coverage", "--json", str(tmp_path / "c.json")]
    done = run_python(*command, "--at-least", "99.9", str(script), "--steps", "3")
    assert "given ['--steps', '3']" in done.stdout
    assert "by DIOPI" in done.stdout
    assert "_linalg_det" in done.stdout
    assert done.returncode == 1, done.stdout + done.stderr
    figures = json.loads((tmp_path / "c.json").read_text())
    assert figures["diopi_calls"] >= 9
    assert figures["diopi_share"] < 0.999
    missing = run_python(*command, str(tmp_path / "no.py"))
    assert missing.returncode == 2
    assert "does not exist" in missing.stdout + missing.stderr
