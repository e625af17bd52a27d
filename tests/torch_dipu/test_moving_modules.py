"""A module that moves to the device keeps its parameters as objects, as it does on devices that torch knows by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn


def tied() -> nn.Sequential:
    """Two layers that share one weight, as embeddings and heads of language models do."""
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize("there_and_back", [False, True])
def test_shared_weights_stay_shared(there_and_back: bool) -> None:
    model = tied().to("dipu")
    if there_and_back:
        model = model.cpu()
    assert model[0].weight is model[1].weight
    assert len(list(model.parameters())) == 1
    with torch.no_grad():
        model[0].weight.fill_(2.0)
    assert model[1].weight.cpu().eq(2.0).all()


def test_an_optimizer_made_before_the_move_trains_the_moved_parameters() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    before = model.weight.detach().clone()
    model.to("dipu")
    model(torch.ones(2, 3, device="dipu")).sum().backward()
    optimizer.step()
    assert model.weight.device.type == "dipu"
    torch.testing.assert_close(model.weight.detach().cpu(), before - 0.5 * 2)


def test_data_of_a_parameter_can_be_replaced_by_data_on_the_device() -> None:
    parameter = nn.Parameter(torch.arange(3.0))
    parameter.data = parameter.data.to("dipu") * 2
    assert parameter.device.type == "dipu" and parameter.cpu().tolist() == [0.0, 2.0, 4.0]
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        parameter.data = torch.ones(3).to_sparse()


def test_a_gradient_of_another_device_is_refused() -> None:
    parameter = nn.Parameter(torch.ones(2, device="dipu"))
    with pytest.raises(RuntimeError):
        parameter.grad = torch.ones(2)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8, torch.float32])
def test_histc_counts_whole_numbers(dtype: torch.dtype) -> None:
    """Experts of mixture models are counted so; the CPU has it for floating point only."""
    ids = torch.tensor([0, 3, 3, 1, 0, 3], dtype=dtype, device="dipu")
    counts = torch.histc(ids, bins=4, min=0, max=3)
    assert counts.dtype == dtype and counts.device.type == "dipu"
    assert counts.cpu().tolist() == [2, 1, 0, 3]
