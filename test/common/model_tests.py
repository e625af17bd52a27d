"""What every model must show: results, losses and gradients as right as those of eager PyTorch."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dicp.conformance.observation import Observations, observed
from dicp.registry import find

from .options import MODES
from .utils import dynamo, get_device, parse_args, update_dynamo_config

__all__ = ["check_inference", "check_training", "modes"]

Loss = Callable[[Any], Tensor]

# How much farther from the exact result than eager PyTorch a compiled model may be: both round, in another order.
FARTHER = 8.0
NOISE = 32 * torch.finfo(torch.float32).eps

modes = pytest.mark.parametrize(
    "dynamic",
    MODES[parse_args().dynamic],
    ids=["dynamic" if m else "static" for m in MODES[parse_args().dynamic]],
)


def assert_as_right(what: str, got: Tensor, eager: Tensor, exact: Tensor) -> None:
    """Beside the result in float64, the largest error is of the size of eager's own."""
    assert got.dtype == eager.dtype and got.shape == eager.shape, what
    got, eager, exact = (value.detach().cpu().double() for value in (got, eager, exact))
    size = exact.abs().max().item() if exact.numel() else 0.0
    allowed = FARTHER * (eager - exact).abs().max().item() + NOISE * size if exact.numel() else 0.0
    error = (got - exact).abs().max().item() if exact.numel() else 0.0
    assert error <= allowed, (
        f"{what}: off by {error:.3g} of {size:.3g}; eager PyTorch is within {allowed:.3g}"
    )


def _moved(values: Sequence[Any], **to: Any) -> list[Any]:
    return [
        value.to(**to)
        if isinstance(value, Tensor) and value.is_floating_point()
        else value.to(to["device"])
        if isinstance(value, Tensor) and "device" in to
        else value
        for value in values
    ]


def _compiled(model: nn.Module, dynamic: bool) -> Callable[..., Any]:
    dynamo.reset()
    update_dynamo_config(dynamic)
    return torch.compile(model, backend=parse_args().backend, dynamic=dynamic)


def _assert_compiled(seen: Observations) -> None:
    """A model whose operators all ran eagerly would prove nothing."""
    assert seen.calls and sum(seen.compiled.values()) > 2 * len(seen.refused), seen.refused


def check_inference(model: nn.Module, inputs: Sequence[Sequence[Any]], dynamic: bool) -> None:
    """One compiled model, called with each of the inputs; the first alone where sizes are fixed."""
    device = get_device()
    given = inputs if dynamic else inputs[:1]
    with torch.no_grad(), observed(find(parse_args().backend)) as seen:
        eager = [model(*values) for values in given]
        wide = copy.deepcopy(model).double()
        exact = [wide(*_moved(values, dtype=torch.float64)) for values in given]
        compiled = _compiled(copy.deepcopy(model).to(device), dynamic)
        for number, values in enumerate(given):
            got = compiled(*_moved(values, device=device))
            assert_as_right(f"call {number}", got, eager[number], exact[number])
    _assert_compiled(seen)


def check_training(
    model: nn.Module, inputs: Sequence[Any], loss: Loss, dynamic: bool, steps: int = 3
) -> None:
    """Steps of SGD: the loss of each, then the gradients and buffers of the last."""
    if os.environ.get("TEST_DICP_INFER", "").strip().lower() in ("1", "true"):
        pytest.skip("TEST_DICP_INFER: inference only")
    device = get_device()
    eager, wide, own = (copy.deepcopy(model).train() for _ in range(3))
    wide = wide.double()
    wanted = _trained(eager, eager, inputs, loss, steps)
    exact = _trained(wide, wide, _moved(inputs, dtype=torch.float64), loss, steps)
    own = own.to(device)
    with observed(find(parse_args().backend)) as seen:
        got = _trained(own, _compiled(own, dynamic), _moved(inputs, device=device), loss, steps)
    for name, value in got.items():
        assert_as_right(name, value, wanted[name], exact[name])
    _assert_compiled(seen)


def _trained(
    model: nn.Module, run: Callable[..., Any], inputs: Sequence[Any], loss: Loss, steps: int
) -> dict[str, Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    found = {}
    for step in range(steps):
        optimizer.zero_grad()
        value = loss(run(*inputs))
        value.backward()
        found[f"loss {step}"] = value.detach().clone()
        optimizer.step()
    found |= {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return found | {name: b for name, b in model.named_buffers() if b.is_floating_point()}
