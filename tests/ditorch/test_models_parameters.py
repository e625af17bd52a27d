"""A module that moves keeps its parameters: what programs for cuda rely on without saying so."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.device


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def test_shared_weights_stay_shared_there_and_back(mapped: ModuleType) -> None:
    model = Tied()
    weight, count = model.first.weight, len(list(model.parameters()))
    model.cuda()
    assert model.first.weight is weight and model.second.weight is weight
    assert weight.device.type == "dipu" and isinstance(weight, nn.Parameter) and weight.is_leaf
    assert len(list(model.parameters())) == count
    model.cpu()
    assert model.second.weight is weight and weight.device.type == "cpu"


def test_an_optimizer_made_before_the_move_trains_what_moved(mapped: ModuleType) -> None:
    def trained(move: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model, x = Tied(), torch.randn(3, 4)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(x).sum().backward()  # on the CPU: the gradient moves along, and its accumulator is made anew
        if move:
            model, x = model.cuda(), x.cuda()
        model(x).sum().backward()
        optimizer.step()
        return model.first.weight.detach().cpu()

    assert torch.equal(trained(True), trained(False))


def test_data_takes_over_a_tensor_of_the_device(mapped: ModuleType) -> None:
    parameter = nn.Parameter(torch.ones(3))
    parameter.data = parameter.data.cuda()
    assert parameter.is_cuda and isinstance(parameter, nn.Parameter)
    parameter.data = torch.zeros(2)
    assert parameter.device.type == "cpu" and parameter.shape == (2,)
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        parameter.data = torch.eye(3).to_sparse()


def test_the_answer_is_taken_back_with_the_mapping(mapped: ModuleType) -> None:
    there = torch.zeros(1, device="dipu")
    assert torch._has_compatible_shallow_copy_type(torch.zeros(1), there)
    mapped.disable()
    try:
        answers = torch._C._dispatch_has_kernel_for_dispatch_key(
            "aten::_has_compatible_shallow_copy_type", "PrivateUse1"
        )
        # A device that answers by itself goes on doing so.
        assert torch._has_compatible_shallow_copy_type(torch.zeros(1), there) == answers
    finally:
        mapped.enable()
    assert torch._has_compatible_shallow_copy_type(torch.zeros(1), there)
