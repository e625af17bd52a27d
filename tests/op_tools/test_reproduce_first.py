"""`op-tools reproduce first`: the surest failure, confirmed on the device; and faults that come and go."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from captures import capture
from test_reproduce_calls import OTHER, exit_code, made, names_of, random, spoiled
from test_reproduce_command import command
from torch import Tensor

import op_tools
from op_tools.reproduce import surest_calls
from op_tools.reproduce.certainty import certainty
from op_tools.reproduce.write import is_wrong
from op_tools.results import Results


@pytest.fixture
def kernel() -> Iterator[Callable[[str, Callable[..., Tensor]], None]]:
    """Replaces a kernel of the device while the test runs."""
    libraries: list[torch.library.Library] = []

    def install(name: str, function: Callable[..., Tensor]) -> None:
        library = torch.library.Library("aten", "IMPL")
        library.impl(name, function, "PrivateUse1", allow_override=True)
        libraries.append(library)

    yield install
    for library in libraries:
        library._destroy()


def logged(run: Path, *rows: dict[str, Any]) -> None:
    results = Results(str(run / "op_autocompare_result"), "op_autocompare_info", list(rows[0]))
    results.extend(rows)
    results.close()


# -- faults that come and go -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("period", "failures"), [(2, 10), (5, 4)])
def test_a_kernel_that_is_wrong_now_and_then_is_found(
    period: int, failures: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture(tmp_path / "run", torch.mul, (random(4, 8), 2.0), change=spoiled)
    _, names = made(tmp_path / "run")
    right, count = names["CASE"].call, 0

    def now_and_then(x: list[Tensor], device: torch.device) -> Any:
        nonlocal count
        count += device == torch.device(OTHER)
        is_off = device == torch.device(OTHER) and count % period == 0
        return spoiled(right(x, device)) if is_off else right(x, device)

    assert exit_code(names, OTHER, now_and_then) == 1
    printed = capsys.readouterr().out
    assert "output: WRONG: 1 of 32 elements are off" in printed
    assert f"failed in {failures} of 20 calls, first in call {period}\n" in printed
    count = 0
    assert exit_code(names, OTHER, now_and_then, "--repeat", "1") == 0
    assert exit_code(names, OTHER) == 0
    assert "0 of 1 values are wrong; failed in 0 of 20 calls" in capsys.readouterr().out


def test_a_kernel_that_reads_what_it_never_wrote_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture(tmp_path / "run", torch.mul, (random(40, 80), 2.0), change=spoiled, device="dipu:0")
    _, names = made(tmp_path / "run")
    right = names["CASE"].call

    def forgets_to_clear(x: list[Tensor], device: torch.device) -> Any:
        if device.type == "cpu":
            return right(x, device)
        return torch.empty_like(x[0]).nan_to_num_(7.0, 0.0, 0.0).eq(7.0) * 1.0 + right(x, device)

    assert exit_code(names, "dipu", forgets_to_clear) == 1
    printed = capsys.readouterr().out
    assert (
        "always on memory full of NaN and never on memory full of zeros: it reads memory that it never"
        in printed
    )
    # A fault that has nothing to do with memory is not put down to it, whatever its period.
    for period in range(2, 12):
        wrong = [[names["CheckedValue"]("off" if call % period == 0 else "")] for call in range(1, 21)]
        assert names["summary"](wrong).endswith(f"first in call {period}"), period


def test_a_call_that_was_captured_right_is_tried_again_on_the_device(
    tmp_path: Path, kernel: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    count = 0

    def third_is_off(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return (x.cpu().exp() + (count % 3 == 0)).to("dipu")

    capture(tmp_path / "run", torch.exp, (random(4, 8),), device="dipu:0")
    kernel("exp", third_is_off)
    words = ("1", "--run", tmp_path / "run", "--device", "dipu", "--no-verify", "-o", tmp_path / "r.py")
    code, out, _ = command(*words, "--repeat", "2", capsys=capsys)
    assert (code, out) == (1, "")
    count = 0
    code, out, _ = command(*words, "--repeat", "7", capsys=capsys)
    assert (code, "output: 32 of 32 elements are off" in out) == (0, True)
    assert names_of(tmp_path / "r.py")["CASE"].repeat == 7


@pytest.mark.parametrize("name", ["mm", "silu"])
def test_a_common_factor_of_a_few_roundings_is_reproduced(name: str, tmp_path: Path) -> None:
    """No element is further off than it may be; all of them together are."""
    func, args = {
        "mm": (torch.mm, (random(64, 128), random(128, 64, seed=1))),
        "silu": (torch.nn.functional.silu, (random(64, 128),)),
    }[name]
    capture(tmp_path / "run", func, args, change=lambda value: value * (1 + 2.0**-21))
    _, names = made(tmp_path / "run")
    right = names["CASE"].call
    assert names["CASE"].checks[0].factor < 2.0**-21
    assert exit_code(names, OTHER, None, "--repeat", "2") == 0
    other_order = {
        "mm": lambda x: (x[1].t() @ x[0].t()).t().contiguous(),
        "silu": lambda x: x[0] * x[0].sigmoid(),
    }[name]
    assert exit_code(names, OTHER, lambda x, device: other_order(x), "--repeat", "2") == 0

    def wrong(x: list[Tensor], device: torch.device) -> Tensor:
        return right(x, device) * (1 - 2.0**-21 if device == torch.device(OTHER) else 1)

    assert exit_code(names, OTHER, wrong, "--repeat", "2") == 1


# -- the surest first ------------------------------------------------------------------------------------------


def test_failures_are_ranked_by_how_sure_they_are() -> None:
    rows: dict[str, dict[str, Any]] = {
        "label": {"name": "aten.mm.default output", "verdict": "lower_precision", "error_over_bound": 1e6},
        "random": {"name": "aten.native_dropout.default output[0]", "verdict": "fail"},
        "average": {"name": "aten.add.Tensor output", "verdict": "fail", "error_over_bound": 0.7},
        "little": {"name": "aten.add.Tensor output", "verdict": "fail", "error_over_bound": 8.0},
        "backward": {"name": "aten.mm.default output", "verdict": "fail", "error_over_bound": 200.0, "phase": "backward"},
        "forward": {"name": "aten.mul.Tensor output", "verdict": "fail", "error_over_bound": 120.0, "phase": "forward"},
        "far": {"name": "aten.mm.default output", "verdict": "fail", "error_over_bound": 1e9, "phase": "backward"},
        "not finite": {"name": "aten.exp.default output", "verdict": "fail", "error_over_bound": float("inf")},
    }  # fmt: skip
    assert sorted(rows, key=lambda name: certainty(rows[name])) == list(rows)
    shape = {"name": "aten.cat.default output", "verdict": "fail", "error_over_bound": float("nan")}
    assert certainty(shape)[0] == certainty(rows["not finite"])[0]


def test_a_run_in_which_nothing_is_wrong_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged(
        tmp_path / "run",
        {"forward_id": 1, "name": "torch.exp output", "verdict": "same"},
        {"forward_id": 2, "name": "torch.exp grad", "verdict": "pass"},
        {"forward_id": 3, "name": "torch.rand output", "verdict": "skipped"},
    )
    code, _, errors = command("first", "--run", tmp_path / "run", capsys=capsys)
    assert (code, "nothing is wrong: OpAutoCompare judged 2 values in" in errors) == (1, True)


def test_first_is_the_surest_and_not_the_earliest(tmp_path: Path) -> None:
    root, x = tmp_path / "run", random(4, 8)
    for number, func in enumerate((torch.exp, torch.sin, torch.cos, torch.tan), 1):
        capture(root, func, (x,), forward_id=number, change=spoiled)
    logged(
        root,
        {"forward_id": 1, "name": "torch.exp output", "verdict": "fail", "error_over_bound": 0.9},
        {"forward_id": 4, "name": "torch.tan output", "verdict": "lower_precision", "error_over_bound": 1e8},
        {"forward_id": 3, "name": "torch.cos output", "verdict": "fail", "error_over_bound": 3000.0},
        {"forward_id": 2, "name": "torch.sin output", "verdict": "fail", "error_over_bound": 9000.0},
    )
    captures = root / "op_capture_results"
    names = [item.folder.relative_to(captures).parts[0] for item in surest_calls(root, is_wrong)]
    assert names == ["torch.cos", "torch.sin", "torch.exp", "torch.tan"]


def test_what_does_not_fail_on_the_device_is_said_and_the_next_is_taken(
    tmp_path: Path, kernel: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    root, x = tmp_path / "run", random(4, 8)
    for number, func in enumerate((torch.exp, torch.sin), 1):
        capture(root, func, (x,), forward_id=number, change=spoiled, device="dipu:0")
    logged(
        root,
        {"forward_id": 1, "name": "torch.exp output", "verdict": "fail", "error_over_bound": float("inf")},
        {"forward_id": 2, "name": "torch.sin output", "verdict": "fail", "error_over_bound": 3.0},
    )
    words = ("first", "--run", root, "--no-verify", "-o", tmp_path / "r.py", "--repeat", "3")
    code, out, _ = command(*words, capsys=capsys)
    assert (code, "torch.exp, captured at" in out) == (0, True)
    assert out.count("passed over: ") == 2 and "NOT confirmed" in out
    kernel("sin", lambda x: (x.cpu().sin() + 1).to("dipu"))
    code, out, _ = command(*words, capsys=capsys)
    first, second, *rest = out.splitlines()
    assert first.startswith("passed over: torch.exp at ")
    assert first.endswith("captured wrong, right in 3 calls on dipu:0 now")
    assert "torch.sin, captured at" in second
    assert "  on dipu:0: failed in 3 of 3 calls" in rest
    assert (code, "torch.sin(x[0])" in (tmp_path / "r.py").read_text()) == (0, True)


def test_modules_with_kernels_are_imported_here_and_by_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel of a program's own extension: torch does not load it by itself."""
    capture(tmp_path / "run", torch.sin, (random(4, 8),), change=spoiled, device="dipu:0")
    Path("own_kernels.py").write_text(
        "import torch\n"
        "library = torch.library.Library('aten', 'IMPL')\n"
        "library.impl('sin', lambda x: (x.cpu().sin() * 2).to('dipu'), 'PrivateUse1', allow_override=True)\n"
    )
    words = ("1", "--run", tmp_path / "run", "--device", "dipu", "--json", "-o", tmp_path / "r.py")
    code, out, errors = command(*words, "--import", "own_kernels", capsys=capsys)
    try:
        assert (code, json.loads(out)["exit_code_on_device"]) == (0, 1), errors
    finally:
        import own_kernels  # the command has put it into sys.modules

        own_kernels.library._destroy()
    code, _, errors = command(*words, "--import", "no_such_kernels", capsys=capsys)
    assert (code, "--import no_such_kernels: No module named" in errors) == (2, True)


def test_a_call_with_a_label_is_saved_and_reproduced(
    tmp_path: Path, kernel: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    def in_bfloat16(a: Tensor, b: Tensor) -> Tensor:
        a, b = (value.cpu().bfloat16().float() for value in (a, b))
        return (a @ b).to("dipu")

    kernel("mm", in_bfloat16)
    a, b = random(24, 64).to("dipu"), random(64, 24, seed=1).to("dipu")
    with op_tools.OpAutoCompare(results=str(tmp_path / "run")) as tool:
        for _ in range(3):
            torch.mm(a, b)
    assert tool.counts == {"lower_precision": 3}
    saved = list((tmp_path / "run" / "op_capture_results").rglob("device/input.pth"))
    assert len(saved) == 1, "one of an operator is enough"
    capsys.readouterr()
    words = ("first", "--run", tmp_path / "run", "--no-verify", "-o", tmp_path / "r.py")
    code, out, _ = command(*words, capsys=capsys)
    assert (code, "lower precision than its dtype: behaves like bfloat16 inputs" in out) == (0, True)
    assert "  on dipu:0: failed in 20 of 20 calls" in out
    assert "torch.mm is less precise than its dtype on dipu:0." in (tmp_path / "r.py").read_text()


def test_an_operator_that_always_fails_leaves_room_for_others(
    tmp_path: Path, kernel: Callable[..., None]
) -> None:
    kernel("sin", lambda x: (x.cpu().sin() + 1).to("dipu"))
    kernel("exp", lambda x: (x.cpu().exp() + 1).to("dipu"))
    x = random(4).to("dipu")
    with op_tools.OpAutoCompare(results=str(tmp_path / "run"), save_failures=4):
        for _ in range(6):
            torch.sin(x)
        torch.exp(x)
    captures = tmp_path / "run" / "op_capture_results"
    saved = [path.relative_to(captures).parts[0] for path in captures.rglob("device/input.pth")]
    assert sorted(saved) == ["torch.exp", "torch.sin"]
