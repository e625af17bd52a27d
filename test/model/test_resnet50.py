"""ResNet-50 with few channels: convolutions, batch norms that keep statistics, pooling."""

import torch

from ..common.model_tests import check_inference, check_training, modes
from ..common.models import ResNet


def small(blocks: tuple[int, ...] = (3, 4, 6, 3)) -> ResNet:
    torch.manual_seed(0)
    return ResNet(width=4, blocks=blocks, classes=10)


def images(batch: int, size: int) -> torch.Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(size))


@modes
def test_inference(dynamic: bool) -> None:
    check_inference(small().eval(), [[images(2, 48)], [images(3, 64)]], dynamic)


@modes
def test_training(dynamic: bool) -> None:
    """One block a stage: rounding grows with every batch norm, and so does what eager PyTorch itself is off."""
    labels = torch.tensor([1, 2, 3, 1])
    check_training(
        small((1, 1, 1, 1)),
        [images(4, 64)],
        lambda scores: torch.nn.functional.cross_entropy(scores, labels.to(scores.device)),
        dynamic,
    )
