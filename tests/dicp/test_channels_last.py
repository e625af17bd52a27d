"""Convolutions run with channels last: what is computed, and how outputs lie in memory, stays as it was."""

from __future__ import annotations

import pytest
import torch
from graph_capture import captured
from torch import Tensor, nn
from torch.nn import functional as F

from dicp.graph.verify import verify_graph
from dicp.passes.channels_last import channels_last

pytestmark = pytest.mark.unit
aten = torch.ops.aten


class Branches(nn.Module):
    """Two convolutions of one input, a view between others, outputs of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 8, 1)
        self.third, self.norm = nn.Conv2d(16, 4, 3, 2), nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        y = F.relu(self.norm(torch.cat((self.first(x), self.second(x)), 1)))
        z = self.third(F.max_pool2d(y, 2))
        return y, z.view(z.shape[0], -1).softmax(1), z.mean((2, 3)), z.transpose(1, 2)[0]


def test_outputs_are_those_of_before_and_convolutions_read_channels_last() -> None:
    model, x = Branches().eval(), torch.randn(2, 3, 17, 19)
    with torch.no_grad():
        expected = model(x)
        (graph,) = captured(model, x)
        rewritten = channels_last(graph)
    verify_graph(rewritten, "channels_last", "types")
    found = [n for n in rewritten.graph.nodes if n.target is aten.convolution.default]
    assert len(found) == 3
    for node in found:
        assert node.args[0].meta["val"].is_contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        outputs = torch.compile(model, backend="hostgraph", fullgraph=True)(x)
    torch.testing.assert_close(outputs, expected)
    assert [o.stride() for o in outputs] == [e.stride() for e in expected]


def test_graphs_that_look_at_strides_stay_as_they_are() -> None:
    convolution = nn.Conv2d(3, 4, 1)

    def function(x: Tensor) -> Tensor:
        return torch.as_strided(convolution(x), (2, 5), (5, 1))

    with torch.no_grad():
        (graph,) = captured(function, torch.randn(1, 3, 6, 6))
        before = str(graph.graph)
        assert str(channels_last(graph).graph) == before
