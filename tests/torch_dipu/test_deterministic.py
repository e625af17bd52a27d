"""Capability: torch.use_deterministic_algorithms refuses what torch.cuda refuses, and nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional

import torch_dipu  # noqa: F401


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def x(*sizes: int) -> torch.Tensor:
    return torch.linspace(-1, 1, int(torch.Size(sizes).numel())).view(sizes).to("dipu").requires_grad_()


def back(result: torch.Tensor) -> torch.Tensor:
    result.sum().backward()
    return result


def index(*values: int) -> torch.Tensor:
    return torch.tensor(values, device="dipu")


def unpooled(dims: int) -> torch.Tensor:
    pooled = getattr(functional, f"max_pool{dims}d")(x(1, 1, *[4] * dims), 2, return_indices=True)
    return getattr(functional, f"max_unpool{dims}d")(*pooled, 2)


def scattered(reduce: str) -> torch.Tensor:
    return torch.ones(3, device="dipu").scatter_reduce(
        0, index(0, 0, 2), torch.ones(3, device="dipu") * 2, reduce
    )


REFUSED: dict[str, Callable[[], torch.Tensor]] = {
    "AvgPool3d": lambda: back(nn.AvgPool3d(2)(x(1, 1, 4, 4, 4))),
    "AdaptiveAvgPool2d": lambda: back(nn.AdaptiveAvgPool2d(2)(x(1, 1, 4, 5))),
    "AdaptiveAvgPool3d": lambda: back(nn.AdaptiveAvgPool3d(2)(x(1, 1, 4, 4, 5))),
    "AdaptiveMaxPool2d": lambda: back(nn.AdaptiveMaxPool2d(2)(x(1, 1, 4, 4))),
    "FractionalMaxPool2d": lambda: back(nn.FractionalMaxPool2d(2, output_ratio=0.5)(x(1, 1, 6, 6))),
    "FractionalMaxPool3d": lambda: back(nn.FractionalMaxPool3d(2, output_ratio=0.5)(x(1, 1, 6, 6, 6))),
    "MaxUnpool1d": lambda: unpooled(1),
    "MaxUnpool2d": lambda: unpooled(2),
    "MaxUnpool3d": lambda: unpooled(3),
    "interpolate linear": lambda: back(functional.interpolate(x(1, 1, 4), scale_factor=2, mode="linear")),
    # torch.nn.functional.interpolate takes another way on devices that it takes for cuda's
    "interpolate bilinear": lambda: back(torch._C._nn.upsample_bilinear2d(x(1, 1, 4, 4), (8, 8), False)),
    "interpolate bicubic": lambda: back(functional.interpolate(x(1, 1, 4, 4), scale_factor=2, mode="bicubic")),
    "interpolate trilinear": lambda: back(torch._C._nn.upsample_trilinear3d(x(1, 1, 3, 3, 3), (6, 6, 6), False)),
    "ReflectionPad1d": lambda: back(nn.ReflectionPad1d(1)(x(1, 1, 4))),
    "ReflectionPad2d": lambda: back(nn.ReflectionPad2d(1)(x(1, 1, 4, 4))),
    "ReflectionPad3d": lambda: back(nn.ReflectionPad3d(1)(x(1, 1, 4, 4, 4))),
    "NLLLoss of images": lambda: nn.NLLLoss()(x(1, 3, 2, 2), index(0, 1, 2, 0).view(1, 2, 2)),
    "CTCLoss": lambda: back(
        nn.CTCLoss()(x(6, 1, 4).log_softmax(2), index(1, 2).view(1, 2), torch.tensor([6]), torch.tensor([2]))
    ),
    "EmbeddingBag max": lambda: back(
        functional.embedding_bag(index(0, 1, 2), x(4, 3), index(0, 2), mode="max")
    ),
    "put_": lambda: torch.ones(4, device="dipu").put_(index(1), torch.ones(1, device="dipu")),
    "put_ accumulate": lambda: torch.ones(4, device="dipu").put_(index(1), torch.ones(1, device="dipu"), True),
    "histc": lambda: torch.histc(torch.ones(4, device="dipu")),
    "bincount weights": lambda: torch.bincount(index(1, 1), torch.ones(2, device="dipu")),
    "median with indices": lambda: x(5).detach().median(0).values,
    "nanmedian with indices": lambda: x(5).detach().nanmedian(0).values,
    "kthvalue": lambda: x(5).detach().kthvalue(2).values,
    "grid_sample": lambda: back(functional.grid_sample(x(1, 1, 4, 4), x(1, 2, 2, 2), align_corners=False)),
    "grid_sample of volumes": lambda: back(
        functional.grid_sample(x(1, 1, 3, 3, 3), x(1, 2, 2, 2, 3), align_corners=False)
    ),
    "cumsum": lambda: x(5).detach().cumsum(0),
    "cumsum in place": lambda: x(5).detach().cumsum_(0),
    "cumsum of integers as floats": lambda: index(1, 2).cumsum(0, dtype=torch.float32),
    "scatter_reduce prod": lambda: scattered("prod"),
}  # fmt: skip

TAKEN: dict[str, tuple[Callable[[], torch.Tensor], list[float]]] = {
    "cumsum of integers": (lambda: index(1, 2, 3).cumsum(0), [1, 3, 6]),
    "bincount": (lambda: torch.bincount(index(1, 1, 0)), [1, 2]),
    "median": (lambda: index(3, 1, 2).median().view(1), [2]),
    "scatter_reduce sum": (lambda: scattered("sum"), [5, 1, 3]),
    "index_add": (lambda: torch.ones(3, device="dipu").index_add(0, index(0, 0), torch.ones(2, device="dipu")), [3, 1, 1]),
    "embedding_bag sum": (
        lambda: functional.embedding_bag(index(0, 1), torch.ones(4, 2, device="dipu"), index(0), mode="sum").view(-1),
        [2, 2],
    ),
    "nearest": (
        lambda: back(functional.interpolate(torch.ones(1, 1, 2, device="dipu", requires_grad=True), scale_factor=2))[0, 0],
        [1, 1, 1, 1],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        REFUSED[name]()


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name: str) -> None:
    act, expected = TAKEN[name]
    assert act().tolist() == expected


def test_warnings_only() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = torch.ones(3, device="dipu").cumsum(0)
    assert result.tolist() == [1, 2, 3]
    assert any("cumsum" in str(warning.message) for warning in caught)


def test_without_the_mode_all_is_taken() -> None:
    torch.use_deterministic_algorithms(False)
    for name, act in REFUSED.items():
        assert act().numel() > 0, name
