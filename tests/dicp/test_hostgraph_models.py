"""Models compiled by the backend `hostgraph` behave as eager ones: training, random numbers, statistics, aliases, any size."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "dicp"))
    monkeypatch.setenv("DICP_FALLBACK", "never")
    torch._dynamo.reset()


def compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend="hostgraph", **{"fullgraph": True, **options})


class Transformer(nn.Module):
    """A block with attention, behind an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.mixed, self.joined = nn.Linear(16, 48), nn.Linear(16, 16)
        self.wide, self.narrow, self.head = nn.Linear(16, 64), nn.Linear(64, 16), nn.Linear(16, 20)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        q, k, v = (
            part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.mixed(self.norms[0](x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.joined(mixed.transpose(1, 2).flatten(2))
        return self.head(x + self.narrow(F.gelu(self.wide(self.norms[1](x)))))


def convolutions() -> nn.Module:
    """Without a bias before a batch norm: its gradient is rounding, of which AdamW makes full steps."""
    return nn.Sequential(
        *(nn.Conv2d(2, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU(), nn.AdaptiveAvgPool2d(1)),
        *(nn.Flatten(), nn.Linear(8, 5)),
    )


def trained(model: nn.Module, call: Callable[..., Tensor], x: Tensor, target: Tensor) -> list[float]:
    """The losses of 50 steps."""
    optimizer = torch.optim.AdamW(model.parameters(), 0.002)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = F.cross_entropy(call(x).flatten(0, -2), target.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("what", ["transformer", "convolutions"])
def test_fifty_steps_follow_eager(what: str) -> None:
    torch.manual_seed(3)
    model = Transformer() if what == "transformer" else convolutions()
    other = copy.deepcopy(model)
    x = torch.randint(0, 20, (4, 8)) if what == "transformer" else torch.randn(6, 2, 8, 8)
    target = x.roll(-1, 1) if what == "transformer" else torch.arange(6) % 5
    mine, found = trained(model, model, x, target), trained(other, compiled(other), x, target)
    assert mine[-1] < 0.8 * mine[0]
    torch.testing.assert_close(found, mine, rtol=2e-3, atol=1e-4)
    for (name, a), b in zip(model.named_buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(b, a, rtol=5e-3, atol=1e-3, msg=name)


def test_random_numbers_are_those_of_eager() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        noise = torch.randn_like(x)
        return F.dropout(x, 0.5) * 2, noise + torch.rand(3), x.bernoulli(0.3)

    x = torch.ones(40, 3)
    call = compiled(function)
    torch.manual_seed(5)
    expected = [function(x), function(x)]
    torch.manual_seed(5)
    found = [call(x), call(x)]
    torch.testing.assert_close(found, expected)
    assert not torch.equal(found[0][0], found[1][0])
    assert torch.rand(1) is not None


def test_a_checkpoint_draws_the_same_numbers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DICP_FALLBACK", "unsupported")  # what saves the generator's state runs eagerly
    layer = nn.Linear(6, 6)

    def function(x: Tensor) -> Tensor:
        return checkpoint(lambda y: F.dropout(layer(y).relu(), 0.5), x, use_reentrant=False).sum()

    gradients = []
    for call in (function, compiled(function)):
        x = torch.ones(30, 6, requires_grad=True)
        torch.manual_seed(1)
        layer.zero_grad()
        call(x).backward()
        assert x.grad is not None and layer.weight.grad is not None
        gradients.append((x.grad, layer.weight.grad.clone()))
    torch.testing.assert_close(gradients[1], gradients[0])


def test_autocast() -> None:
    layer = nn.Linear(8, 8)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        return y, y.softmax(-1) + x

    x = torch.linspace(-1, 1, 24).reshape(3, 8)
    mine, found = function(x), compiled(function)(x)
    torch.testing.assert_close(found, mine, rtol=0.02, atol=0.02)


def test_what_shares_memory_still_does() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x.mul_(2)
        y = x + 1
        return x, x[1:], y, y.t()

    x = torch.arange(6.0).reshape(2, 3)
    same, part, y, turned = compiled(function)(x)
    assert same is x or same.data_ptr() == x.data_ptr()
    assert part.data_ptr() == x[1:].data_ptr() and turned.data_ptr() == y.data_ptr()
    torch.testing.assert_close(x, torch.arange(6.0).reshape(2, 3) * 2)
    torch.testing.assert_close(turned, (x + 1).t())


def test_a_graph_that_breaks() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.tanh() * 2
        torch._dynamo.graph_break()
        return y.exp() if y.sum().item() > 0 else y.sin()

    call = compiled(function, fullgraph=False)
    for x in (torch.ones(4), -torch.ones(4)):
        torch.testing.assert_close(call(x), function(x))


def test_eight_shapes_are_one_library() -> None:
    model = Transformer().eval()
    call = compiled(model, dynamic=True)
    with torch.no_grad():
        call(torch.randint(0, 20, (3, 6)))
        with torch.compiler.set_stance("fail_on_recompile"):
            for batch, length in ((2, 5), (4, 7), (3, 9), (5, 4), (7, 3), (6, 8), (9, 2), (8, 31)):
                x = torch.randint(0, 20, (batch, length))
                torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-5)
