"""Convolutions by the backend `hostgraph`: sizes, strides, borders, dilation, one channel and many, frozen weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dicp.graph.inference import difference

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "dicp"))
    monkeypatch.setenv("DICP_FALLBACK", "never")
    torch._dynamo.reset()


# channels, outputs, kernel, stride, padding, dilation
LAYERS = [
    *(
        (3, 16, (7, 7), 2, 3, 1),
        (1, 5, (3, 3), 1, 1, 1),
        (16, 50, (3, 3), 1, 1, 1),
        (17, 64, (1, 1), 1, 0, 1),
    ),
    *(
        (40, 33, (1, 1), 2, 0, 1),
        (8, 100, (2, 3), (2, 1), (0, 2), 1),
        (9, 49, (3, 2), 1, 2, 2),
        (7, 8, (3, 3), 3, 1, 3),
    ),
    *((700, 20, (3, 3), 1, 1, 1), (5, 1, (4, 1), 1, (2, 0), 1)),
]


def exact(x: Tensor, layer: nn.Conv2d) -> Tensor:
    bias = None if layer.bias is None else layer.bias.double()
    return F.conv2d(x.double(), layer.weight.double(), bias, layer.stride, layer.padding, layer.dilation)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("last", [False, True])
def test_layers_of_all_sizes(frozen: bool, last: bool) -> None:
    torch.manual_seed(0)
    layers = nn.ModuleList(
        nn.Conv2d(c, o, kernel, stride, padding, dilation, bias=bool(c % 2))
        for c, o, kernel, stride, padding, dilation in LAYERS
    )
    inputs = [torch.randn(2, layer.in_channels, 13, 11 + number) for number, layer in enumerate(layers)]
    if last:
        layers = layers.to(memory_format=torch.channels_last)
        inputs = [x.to(memory_format=torch.channels_last) for x in inputs]

    def function(inputs: list[Tensor]) -> list[Tensor]:
        return [layer(x).relu() for layer, x in zip(layers, inputs, strict=True)]

    with torch.no_grad():
        compiled = torch.compile(function, backend="hostgraph", fullgraph=True, options={"freezing": frozen})
        for _ in range(2):
            found = compiled(inputs)
        for layer, x, result in zip(layers, inputs, found, strict=True):
            wanted = exact(x, layer).relu()
            assert not difference(result, layer(x).relu())
            torch.testing.assert_close(result.double(), wanted, rtol=1e-4, atol=1e-5)


def test_groups_transposed_and_other_dtypes_are_calls_of_torch() -> None:
    torch.manual_seed(0)
    grouped, transposed = nn.Conv2d(8, 8, 3, groups=4), nn.ConvTranspose2d(8, 4, 3, 2)
    x = torch.randn(1, 8, 9, 9)

    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return grouped(x), transposed(x), F.conv2d(x.double(), grouped.weight.double(), groups=4)

    with torch.no_grad():
        torch.testing.assert_close(
            torch.compile(function, backend="hostgraph")(x), function(x), rtol=1e-4, atol=1e-5
        )
