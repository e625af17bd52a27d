"""Captured calls run again and are judged: a right one passes, whatever is wrong is found."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from captures import Faulty, capture, one, verdicts, with_fault

from op_tools.replay import Item, Options, find_items

pytestmark = pytest.mark.unit


# --- finding ----------------------------------------------------------------------------------------------


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def test_every_layout_is_found_and_the_reference_side_is_not_replayed(tmp_path: Path) -> None:
    touch(
        tmp_path,
        "a/torch.add/77/9/2024-10-09-11-42-15/input.pth",
        "a/torch.add/77/10/2024-10-09-11-42-15/input.pth",
        "a/torch.add/rank1_host_77/3/2024-10-09-11-42-15/input.pth",
        "b/torch.outer/77/autocompare/231/2024-10-08-15-20-39/device/input.pth",
        "b/torch.outer/77/autocompare/231/2024-10-08-15-20-39/cpu/input.pth",
        "c/torch.nn.functional.linear/93/device/input.pth",
        "c/torch.nn.functional.linear/93/cpu/input.pth",
        "d/0/2024-08-06--11-41/torch.Tensor.to/8/input.pth",
        "e/2024-08-02--16-31/1915529/torch.nn.functional.linear/device_input.pth",
        "e/2024-08-02--16-31/1915529/torch.nn.functional.linear/cpu_input.pth",
        "f/only/output.pth",
        "f/cpu/input.pth",
    )
    assert [str(Path(item.label).relative_to(tmp_path)) for item in find_items(tmp_path)] == [
        "a/torch.add/77/9/2024-10-09-11-42-15",
        "a/torch.add/77/10/2024-10-09-11-42-15",
        "a/torch.add/rank1_host_77/3/2024-10-09-11-42-15",
        "b/torch.outer/77/autocompare/231/2024-10-08-15-20-39/device",
        "c/torch.nn.functional.linear/93/device",
        "d/0/2024-08-06--11-41/torch.Tensor.to/8",
        "e/2024-08-02--16-31/1915529/torch.nn.functional.linear/device",
        "f/cpu",
    ]
    single = tmp_path / "a/torch.add/77/9/2024-10-09-11-42-15"
    assert find_items(single) == find_items(single / "input.pth") == [Item(single)]
    assert find_items(tmp_path / "f/only") == []


def test_links_out_of_the_tree_are_not_followed(tmp_path: Path) -> None:
    touch(tmp_path, "outside/torch.add/1/2/input.pth", "tree/readme")
    os.symlink(tmp_path / "outside", tmp_path / "tree" / "link")
    assert find_items(tmp_path / "tree") == []


# --- judging ----------------------------------------------------------------------------------------------


def test_a_right_call_is_the_same_forward_backward_and_as_captured(tmp_path: Path) -> None:
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(16, 8, requires_grad=True)
    folder = capture(tmp_path, F.linear, (x, w, torch.randn(16)), grads=[torch.randn(4, 16)])
    report = one(folder)
    assert (report.status, report.reason) == ("same", "")
    assert verdicts(report) == {
        "input[0]": "same",
        "input[1]": "same",
        "input[2]": "same",
        "output": "same",
        "captured output": "same",
        "grad[0]": "same",
        "grad[1]": "same",
        "captured grad[0]": "same",
        "captured grad[1]": "same",
    }
    assert all(row["allclose"] and row["max_abs_diff"] == 0.0 for row in report.rows)


CALLS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]], dict[str, Any]]] = {
    "aten": (torch.ops.aten.add.Tensor, lambda: (torch.randn(3), torch.randn(3)), {"alpha": 2}),
    "named tuple": (torch.Tensor.sort, lambda: (torch.randn(10, 20, requires_grad=True),), {}),
    "in place": (torch.Tensor.add_, lambda: (torch.randn(3), torch.randn(3)), {}),
    "in place on what needs a gradient": (
        torch.Tensor.mul_,
        lambda: (torch.randn(3, requires_grad=True) * 1, torch.randn(3)),
        {},
    ),
    "item assignment": (torch.Tensor.__setitem__, lambda: (torch.zeros(3), 1, 5.0), {}),
    "slices": (torch.Tensor.__getitem__, lambda: (torch.randn(5, 6), (slice(1, 3), ..., None)), {}),
    "numbers": (torch.Tensor.tolist, lambda: (torch.arange(4),), {}),
    "list of tensors": (torch.cat, lambda: ([torch.randn(2), torch.randn(3)],), {"dim": 0}),
    "list of results": (torch.Tensor.chunk, lambda: (torch.randn(6, requires_grad=True), 3), {}),
    "optimiser": (torch._foreach_add_, lambda: ([torch.zeros(2), torch.zeros(3)], 1.5), {}),
    "expanded": (torch.Tensor.mul, lambda: (torch.randn(4, 1).expand(4, 5), 2), {}),
    "transposed": (torch.mm, lambda: (torch.randn(4, 3).t(), torch.randn(4, 5)), {}),
    "statistics": (
        F.batch_norm,
        lambda: (torch.randn(4, 3, 5), torch.zeros(3), torch.ones(3)),
        {"training": True},
    ),
    "sparse": (torch.sparse.mm, lambda: (torch.eye(3).to_sparse(), torch.randn(3, 2)), {}),
    "nothing in it": (torch.add, lambda: (torch.empty(0, 3), 1), {}),
    "nan": (torch.log, lambda: (torch.tensor([-1.0, 0.0, 1.0]),), {}),
    "float8": (torch.Tensor.to, lambda: (torch.randn(4).to(torch.float8_e4m3fn), torch.float32), {}),
}


@pytest.mark.parametrize("kind", CALLS)
def test_calls_of_every_kind_are_the_same(tmp_path: Path, kind: str) -> None:
    func, make, kwargs = CALLS[kind]
    name = "aten.mm.default" if kind == "sparse" else ""
    func = torch.ops.aten.mm.default if kind == "sparse" else func
    torch.manual_seed(0)
    report = one(capture(tmp_path, func, make(), kwargs, name=name))
    assert (report.status, report.reason) == ("same", "")


def test_one_tensor_given_twice_has_one_gradient(tmp_path: Path) -> None:
    x = torch.randn(5, requires_grad=True)
    report = one(capture(tmp_path, torch.mul, (x, x), grads=[torch.ones(5)]))
    assert report.status == "same", report.reason
    assert verdicts(report)["captured grad[0]"] == "same"


def test_an_output_without_a_gradient_stays_without(tmp_path: Path) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    folder = capture(tmp_path, torch.var_mean, (x,), {"dim": 1}, grads=[None, torch.randn(3)])
    report = one(folder)
    assert report.status == "same", report.reason
    assert verdicts(report)["captured grad"] == "same"


def test_a_wrong_captured_value_is_told_from_rounding(tmp_path: Path) -> None:
    x = torch.rand(100) + 1
    wrong = one(capture(tmp_path / "wrong", torch.exp, (x,), change=lambda y: y * 1.001))
    assert wrong.status == "fail"
    assert verdicts(wrong)["output"] == "same"
    assert "captured value is wrong" in wrong.reason

    def rounded_otherwise(y: torch.Tensor) -> torch.Tensor:
        """One unit in the last place, up here and down there, as another chip may round."""
        y = y.clone()
        y[::20] = torch.nextafter(y[::20], y[::20] + torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0]))
        return y

    nearly = one(capture(tmp_path / "nearly", torch.exp, (x,), change=rounded_otherwise))
    assert nearly.status == "pass"
    assert verdicts(nearly)["captured output"] == "pass"


def test_another_number_of_results_than_captured_fails(tmp_path: Path) -> None:
    report = one(capture(tmp_path, torch.exp, (torch.ones(2),), change=lambda y: (y, y)))
    assert report.status == "fail"
    assert "2 values were captured, the call now gives 1" in report.reason


def test_without_outputs_the_reference_still_judges(tmp_path: Path) -> None:
    report = one(capture(tmp_path, torch.exp, (torch.ones(2),), outputs=False))
    assert report.status == "same"
    assert set(verdicts(report)) == {"input", "output"}


def test_a_wrong_device_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = capture(tmp_path, torch.exp, (torch.rand(100),))
    with_fault(monkeypatch, Faulty(torch.exp, lambda x: torch.exp(x) * 1.001))
    report = one(folder)
    assert report.status == "fail"
    assert verdicts(report) == {"input": "same", "output": "fail", "captured output": "fail"}
    assert report.rows[1]["max_abs_diff"] > 1e-4


def test_a_wrong_gradient_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            return x.exp()

        @staticmethod
        def backward(ctx, grad):  # type: ignore[no-untyped-def]
            return grad * 0

    x = torch.rand(100, requires_grad=True)
    folder = capture(tmp_path, torch.exp, (x,), grads=[torch.full((100,), 1e-5)])
    with_fault(monkeypatch, Faulty(torch.exp, Wrong.apply))
    report = one(folder)
    assert verdicts(report) == {
        "input": "same",
        "output": "same",
        "captured output": "same",
        "grad": "fail",
        "captured grad": "fail",
    }
    assert one(folder, Options(device="cpu", verbose=False, only_run_forward=True)).status == "same"


def test_a_call_that_writes_to_an_input_it_must_not_write_to_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scribbles(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        result = x + y
        y.zero_()
        return result

    folder = capture(tmp_path, torch.add, (torch.rand(5), torch.rand(5)))
    with_fault(monkeypatch, Faulty(torch.add, scribbles))
    report = one(folder)
    assert verdicts(report)["input[1]"] == "fail"
    assert "changed an input it must not change" in report.reason


def test_a_call_that_is_wrong_only_sometimes_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = capture(tmp_path, torch.exp, (torch.rand(100),))
    options = Options(device="cpu", verbose=False, run_times=5)
    assert len(one(folder, options).rows) == 3
    with_fault(monkeypatch, Faulty(torch.exp, lambda x: torch.exp(x) * 2, runs=(5,)))
    report = one(folder, options)
    assert report.status == "fail"
    failed = [row for row in report.rows if row["verdict"] == "fail"]
    assert {row["run"] for row in failed} == {4} and {row["forward_id"] for row in failed} == {1}


def test_random_calls_are_judged_by_their_distribution(tmp_path: Path) -> None:
    torch.manual_seed(0)
    report = one(capture(tmp_path, F.dropout, (torch.randn(1000), 0.5)))
    assert report.status == "pass", report.reason
    assert set(verdicts(report)) == {"output"}


def test_replay_draws_nothing_from_the_random_state_of_the_host(tmp_path: Path) -> None:
    folder = capture(tmp_path, torch.exp, (torch.rand(100),))
    before = torch.get_rng_state()
    one(folder)
    assert torch.equal(before, torch.get_rng_state())


def test_memory_that_was_never_written_is_not_compared(tmp_path: Path) -> None:
    report = one(capture(tmp_path, torch.empty_like, (torch.ones(4),)))
    assert report.status in ("not compared", "same", "pass"), report.reason
    assert "captured output" not in verdicts(report)


def test_autocast_of_the_capture_is_repeated(tmp_path: Path) -> None:
    x, w = torch.randn(4, 8), torch.randn(16, 8)
    with torch.autocast("cpu", torch.bfloat16):
        folder = capture(tmp_path, F.linear, (x, w), extra={"autocast": (True, torch.bfloat16)})
    report = one(folder)
    assert report.status == "same", report.reason
    assert report.times[0]["output"]["args"][0]["dtype"] == "bfloat16"
