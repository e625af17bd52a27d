"""A few operators are observed at their kernels: what they see is what record functions see, and other calls cost nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
from wrong_kernels import install, one_element

import op_tools
from op_tools.engine import ENGINE, native
from op_tools.runs import open_run

pytestmark = pytest.mark.device

D = "dipu"
NAMES = (
    "aten.gelu.*, aten.gelu_backward.*, aten.mul_?.Tensor, aten.addmm.default, aten.mm.default, aten.index.Tensor, aten.sort.*,"
    "aten.unsqueeze.default, aten.native_dropout.default, aten._index_put_impl_.default, aten._foreach_mul_.Scalar, aten.exp.*"
)


def leaf(*shape: int) -> torch.Tensor:
    values = torch.linspace(-1, 2, torch.Size(shape).numel(), device="cpu").reshape(shape)
    return values.to(D).requires_grad_()


def forward_and_backward() -> None:
    x, w = leaf(3, 4), leaf(4, 4)
    (F.gelu(x @ w) * 2).sum().backward()


def views_in_place_and_out() -> None:
    x = leaf(4).detach()
    x.unsqueeze(0).mul_(torch.full((4,), 2.0, device=D))
    torch.mul(x, x, out=torch.empty(4, device=D))
    torch._foreach_mul_([x, x.clone()], 2.0)
    torch.sort(x, descending=True)


def autocast() -> None:
    x, w = leaf(3, 4), leaf(4, 4)
    with torch.autocast(D, dtype=torch.bfloat16):
        F.linear(x, w).float().mul(2).sum().backward()


def checkpointed() -> None:
    x = leaf(5)
    checkpoint(lambda t: F.dropout(F.gelu(t), 0.5) * t, x, use_reentrant=False).sum().backward()


def second_derivative() -> None:
    x = leaf(5)
    (first,) = torch.autograd.grad((F.gelu(x) * x).sum(), x, create_graph=True)
    first.mul(first).sum().backward()


def transforms() -> None:
    x = leaf(3, 4).detach()
    torch.vmap(lambda row: F.gelu(row) * row)(x)


def without_gradients() -> None:
    x = leaf(3)
    with torch.inference_mode():
        F.gelu(x) * x
    with torch.no_grad():
        x[torch.tensor([0, 1], device=D)] * 2


def index_backward() -> None:
    x = leaf(4)
    x[torch.tensor([0, 1, 1], device=D)].sum().backward()


def on_another_thread() -> None:
    thread = threading.Thread(target=forward_and_backward)
    thread.start()
    thread.join()


def errors() -> None:
    x = leaf(3)
    for other in (torch.ones(2, device=D), torch.ones(3, dtype=torch.complex64, device=D)):
        try:
            torch.mul(x, other).exp().gt(0)
        except RuntimeError:
            continue


def other_devices() -> None:
    x = torch.ones(3, device="cpu")
    F.gelu(x) * 2
    (leaf(3).detach().cpu() * 2).to(D).mul(3)


def sparse() -> None:
    x = torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (3,)).to(D)
    (x * x).to_dense() * 2


PROGRAMS: list[Callable[[], None]] = [
    forward_and_backward, views_in_place_and_out, autocast, checkpointed, second_derivative, transforms, without_gradients,
    index_backward, on_another_thread, errors, other_devices, sparse,
]  # fmt: skip


def observed(program: Callable[[], None], folder: str) -> list[tuple[Any, ...]]:
    torch.manual_seed(0)
    with op_tools.OpObserve(level="aten", list=NAMES, results=folder):
        program()
    rows = open_run(folder).rows("observe")
    return sorted(
        tuple(str(row.get(key)) for key in ("name", "phase", "forward_name", "input", "output", "call_site"))
        for row in rows
    )


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_kernels_show_what_record_functions_show(
    program: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_kernels = observed(program, "kernels")
    monkeypatch.setattr(native, "_FEW", 0)
    assert at_kernels == observed(program, "functions")
    assert at_kernels


def per_sample_gradients() -> None:
    w = leaf(4, 4).detach()
    torch.vmap(torch.func.grad(lambda w, row: F.gelu(row @ w).sum()), in_dims=(None, 0))(
        w, leaf(3, 4).detach()
    )


def vector_products() -> None:
    x = leaf(5).detach()
    torch.func.jvp(lambda t: F.gelu(t) * t, (x,), (x,))
    torch.func.vjp(lambda t: F.gelu(t) * t, x)[1](x)
    torch.func.grad(torch.func.grad(lambda t: (t * t).exp().sum()))(x[0])


TRANSFORMS: dict[Callable[[], None], dict[str, int]] = {
    per_sample_gradients: {"aten.gelu.default": 1, "aten.gelu_backward.default": 1},
    # A tangent is computed inside the call that it belongs to.
    vector_products: {"aten.gelu.default": 2, "aten.gelu_backward.default": 1, "aten.exp.default": 1},
}


@pytest.mark.parametrize("program", TRANSFORMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("few", [100, 0])
def test_kernels_are_seen_in_the_gradients_of_functorch(
    program: Callable[[], None], few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "_FEW", few)
    names = [row[0] for row in observed(program, "r")]
    assert {name: names.count(name) for name in TRANSFORMS[program]} == TRANSFORMS[program]


def test_nothing_else_is_asked_about_and_no_mode_or_callback_is_on() -> None:
    asked: list[str] = []

    class Few(op_tools.OpObserve):
        def wants_aten(self, name: str, func: Any) -> bool:
            asked.append(name)
            return super().wants_aten(name, func)

    x = leaf(3)
    with Few(level="aten", list="aten.gelu.default", results="r"):
        assert torch._C._len_torch_function_stack() == 0 and torch._C._len_torch_dispatch_stack() == 0
        (x * x).sum().backward()
        assert asked == []
        F.gelu(x)
    assert asked == ["aten.gelu.default"]
    assert [row["name"] for row in open_run("r").rows("observe")] == ["aten.gelu.default"]


def test_a_kernel_that_is_replaced_meanwhile_is_the_one_that_runs_and_is_seen() -> None:
    x = leaf(8).detach()
    right = F.gelu(x).cpu()
    with op_tools.OpAutoCompare(list="aten.gelu.default", results="r") as tool:
        F.gelu(x)
        library = install("gelu", one_element)
        wrong = F.gelu(x).cpu()
        library._destroy()
        again = F.gelu(x).cpu()
    assert not torch.equal(wrong, right) and torch.equal(again, right)
    assert tool.failed_names == {"aten.gelu.default": 1} and sum(tool.counts.values()) == 3


def test_the_kernels_are_put_back(capsys: pytest.CaptureFixture[str]) -> None:
    x = leaf(3)
    with (
        op_tools.OpFallback(list="torch.nn.functional.gelu"),
        op_tools.OpObserve(level="aten", list="aten.gelu.default,aten.gelu_backward.default", results="r"),
    ):
        F.gelu(x).sum().backward()
    counts = len(list(open_run("r").rows("observe")))
    F.gelu(x).sum().backward()
    assert counts == 2 == len(list(open_run("r").rows("observe")))
    assert "op_tools" not in torch._C._dispatch_dump("aten::gelu")


def test_a_list_of_functions_sleeps_until_one_is_called_and_then_sees_its_backward() -> None:
    x = leaf(8)
    library = install("gelu_backward", one_element)
    try:
        with op_tools.OpAutoCompare(list="torch.nn.functional.gelu", results="r") as tool:
            (x * x).sum().backward()
            assert ENGINE.native.sleeps
            with torch.autocast(D, dtype=torch.bfloat16):  # gradients are judged kernel by kernel
                y = F.gelu(x)
            assert not ENGINE.native.sleeps
            y.sum().backward()
    finally:
        library._destroy()
    assert set(tool.failed_names) & {"aten.gelu_backward.default", "torch.nn.functional.gelu"}
    failed = [row for row in open_run("r").rows("autocompare") if row["verdict"] == "fail"]
    assert failed[0]["phase"] == "backward"
