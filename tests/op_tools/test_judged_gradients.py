"""OpAutoCompare where programs do more with gradients than one backward: second derivatives, hooks, checkpoints.

In each of these programs nothing is accused on a device that is right, and a wrong kernel of backward is found.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.graph import register_multi_grad_hook
from torch.utils.checkpoint import checkpoint
from wrong_kernels import aten_name, install, one_element

import op_tools
from op_tools.engine import ENGINE

D = "dipu"
PROGRAMS: dict[str, Callable[[], Any]] = {}


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS[function.__name__] = function
    return function


def network(inputs: int = 6) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, 1)).to(D)


def data(*shape: int) -> Tensor:
    return torch.randn(*shape or (4, 6), device=D, requires_grad=True)


@program
def double_backward() -> None:
    model, x = network(), data()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    slope.square().sum().backward()


@program
def third_order() -> None:
    model, x = network(), data()
    value = model(x).sum()
    for _ in range(2):
        (slope,) = torch.autograd.grad(value, x, create_graph=True)
        value = slope.square().sum()
    value.backward()


@program
def gradient_penalty() -> None:
    """WGAN-GP: the critic's slope between real and made samples is pulled towards one."""
    critic, real, made = network(), torch.randn(4, 6, device=D), torch.randn(4, 6, device=D)
    optimizer = torch.optim.Adam(critic.parameters(), foreach=False)
    for _ in range(2):
        share = torch.rand(4, 1, device=D)
        between = (share * real + (1 - share) * made).requires_grad_()
        value = critic(between)
        (slope,) = torch.autograd.grad(value, between, torch.ones_like(value), create_graph=True)
        penalty = (slope.norm(2, dim=1) - 1).square().mean()
        loss = critic(made).mean() - critic(real).mean() + 10 * penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@program
def prehook_of_a_node() -> None:
    x = data()
    y = torch.tanh(x)
    y.grad_fn.register_prehook(lambda grads: (grads[0] * 3,))
    y.sum().backward()


@program
def hooks_inside_a_call() -> None:
    """The weight goes through a node of its own inside linear: one that the program can reach."""
    x, weight, bias = data(), data(8, 6), data(8)
    y = F.linear(torch.tanh(x), weight, bias)
    for kind in ("register_prehook", "register_hook"):
        for node in (y.grad_fn, *(source for source, _ in y.grad_fn.next_functions)):
            if node is not None:
                getattr(node, kind)(lambda grads, *_: tuple(None if g is None else g * 2 for g in grads))
    y.sum().backward()


@program
def hook_of_a_node() -> None:
    x = data()
    y = torch.tanh(F.linear(x, data(8, 6)))
    y.grad_fn.register_hook(lambda grads, _: (grads[0].mul_(5),))
    y.sum().backward()


@program
def hooks_of_tensors() -> None:
    model, x = network(), data()
    hidden = torch.tanh(x * 2)
    hidden.register_hook(lambda grad: grad * 10)
    x.register_hook(lambda grad: grad.clamp(-0.1, 0.1))
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: grad / (grad.norm() + 1))
    (model(hidden) + hidden.mean()).sum().backward()


@program
def hooks_that_overwrite() -> None:
    """Clipping in place, in a tensor that autograd goes on with."""
    model, x = network(), data()
    hidden = torch.tanh(x * 2)
    for tensor in (hidden, *model.parameters()):
        tensor.register_hook(lambda grad: grad.clamp_(-0.01, 0.01))
    model(hidden).sum().backward()


@program
def hook_of_several_tensors() -> None:
    model, x = network(), data()
    a, b = torch.tanh(x), torch.sin(x)
    register_multi_grad_hook((a, b), lambda grads: [grad.mul_(2) for grad in grads])
    model(a * b).sum().backward()


@program
def hooks_of_modules() -> None:
    model, x = network(), data()
    for module in model:
        module.register_full_backward_hook(
            lambda _, grads, __: tuple(g if g is None else g * 2 for g in grads)
        )
        module.register_full_backward_pre_hook(lambda _, grads: (grads[0] - 1,))
    model(x).sum().backward()


@program
def optimizer_in_backward() -> None:
    """Each parameter is updated, and its gradient freed, as soon as the gradient is there."""
    model, x = network(), data()

    def update(parameter: Tensor) -> None:
        parameter.data.add_(parameter.grad, alpha=-0.1)
        parameter.grad = None

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    for _ in range(2):
        model(model[:2](x)[:, :6]).sum().backward()


@program
def retained_graph() -> None:
    model, x = network(), data()
    loss = model(x).square().mean()
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    (2 * loss).backward()


@program
def some_inputs_only() -> None:
    model, x = network(), data()
    loss = model(x).sum()
    torch.autograd.grad(loss, x, retain_graph=True)
    torch.autograd.grad(loss, model[0].weight, retain_graph=True)
    loss.backward(inputs=[model[0].bias])


@program
def checkpoint_reentrant() -> None:
    model, x = network(), data()
    checkpoint(model, x, use_reentrant=True).sum().backward()


@program
def checkpoint_not_reentrant() -> None:
    model, x = network(), data()
    checkpoint(model, x, use_reentrant=False).sum().backward()


@program
def checkpoint_of_checkpoints_with_second_derivative() -> None:
    model, x = network(), data()

    def outer(value: Tensor) -> Tensor:
        return checkpoint(model, value * 2, use_reentrant=False)

    (slope,) = torch.autograd.grad(checkpoint(outer, x, use_reentrant=False).sum(), x, create_graph=True)
    slope.square().sum().backward()


@program
def zeros_without_memory() -> None:
    """The gradient of sgn is a tensor of zeros that has no memory."""
    (torch.tanh(data()).sgn() * data()).sum().backward()


class Scaled(torch.autograd.Function):
    """Writes in its input, and in the gradient that it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.mul_(3)


class Nested(torch.autograd.Function):
    """A backward that runs autograd itself."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            return torch.autograd.grad(torch.tanh(inner), inner, grad)[0]


@program
def functions_of_the_program() -> None:
    model, x = network(), data()
    hidden = Scaled.apply(torch.tanh(x * 1) * 1)
    model(Nested.apply(hidden) + hidden).sum().backward()


@program
def closures() -> None:
    model, x = network(), torch.randn(4, 6, device=D)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


@program
def shared_and_accumulated() -> None:
    """One weight in two calls, and gradients that add up over two runs."""
    weight, bias, x = data(6, 6), data(6), data()
    for _ in range(2):
        hidden = torch.tanh(F.linear(x, weight, bias))
        (F.linear(hidden, weight, bias) + hidden).sum().backward()


@program
def outputs_that_nothing_uses() -> None:
    lstm, x = nn.LSTM(6, 5, batch_first=True).to(D), data(2, 3, 6)
    torch.tanh(lstm(x)[0]).sum().backward()


@program
def many_directions_at_once() -> None:
    """The gradients of a run stand for many each."""
    model, x = network(), data()
    torch.autograd.functional.jacobian(lambda value: model(value).sum(dim=1), x, vectorize=True)


@program
def tangents() -> None:
    model = network()
    with forward_ad.dual_level():
        y = model(forward_ad.make_dual(data(), torch.randn(4, 6, device=D)))
        (forward_ad.unpack_dual(y).tangent + y).sum().backward()


@pytest.fixture(autouse=True)
def no_warnings_of_torch() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*reference cycle.*|.*non-full backward hook.*")
        yield


def watched(run: Callable[[], Any]) -> op_tools.OpAutoCompare:
    torch.manual_seed(0)
    with op_tools.OpAutoCompare() as tool:
        run()
    assert ENGINE.failures.seen == {}
    return tool


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_accused_on_a_device_that_is_right(name: str, capfd: Any) -> None:
    tool = watched(PROGRAMS[name])
    out = capfd.readouterr().out
    assert tool.counts.get("fail", 0) == 0, out
    assert tool.counts["same"] > 5


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_wrong_kernel_of_backward_is_found(name: str, rows: Any) -> None:
    library = install("tanh_backward", one_element)
    try:
        watched(PROGRAMS[name])
    finally:
        library._destroy()
    failed = {row["name"] for row in rows("op_autocompare_result") if row["verdict"] == "fail"}
    assert any(row.startswith(aten_name("tanh_backward")) for row in failed), failed
    # Only the kernel itself and the calls that it is the backward of.
    owners = ("aten.tanh_backward", "torch.tanh", "torch.lstm", "torch.Tensor.tanh")
    assert all(row.startswith(owners) for row in failed), failed


@pytest.mark.parametrize("name", ["checkpoint_reentrant", "checkpoint_not_reentrant"])
def test_a_kernel_that_is_wrong_only_when_a_checkpoint_computes_again_is_found(name: str, rows: Any) -> None:
    library = install("tanh", one_element, only_in_backward=True)
    try:
        watched(PROGRAMS[name])
    finally:
        library._destroy()
    failed = [row for row in rows("op_autocompare_result") if row["verdict"] == "fail"]
    # Its gradient too, where the wrong output is what autograd has saved.
    assert "torch.tanh output" in {row["name"] for row in failed} <= {"torch.tanh output", "torch.tanh grad"}
    assert {row["phase"] for row in failed} == {"backward"}
