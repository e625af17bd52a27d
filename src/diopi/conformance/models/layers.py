"""Layers that several models share."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def conv_norm(
    channels: int,
    to: int,
    kernel: int | tuple[int, int] = 3,
    stride: int = 1,
    *,
    groups: int = 1,
    dilation: int = 1,
    activation: nn.Module | None = None,
) -> nn.Sequential:
    """Convolution that keeps the size (before its stride), batch norm, activation."""
    sizes = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (sizes[0] // 2 * dilation, sizes[1] // 2 * dilation)
    convolution = nn.Conv2d(
        channels, to, sizes, stride, padding, groups=groups, dilation=dilation, bias=False
    )
    return nn.Sequential(convolution, nn.BatchNorm2d(to), activation or nn.ReLU(inplace=True))


class SqueezeExcite(nn.Module):
    """Scales channels by what the whole image says."""

    def __init__(self, channels: int, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        inner = max(4, channels // 4)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, inner, 1),
            activation(),
            nn.Conv2d(inner, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x)


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a shortcut."""

    def __init__(
        self, channels: int, width: int, stride: int = 1, *, excite: bool = False, dilation: int = 1
    ) -> None:
        super().__init__()
        to = width * 4
        self.body = nn.Sequential(
            conv_norm(channels, width, 1),
            conv_norm(width, width, 3, stride, dilation=dilation),
            conv_norm(width, to, 1, activation=nn.Identity()),
            SqueezeExcite(to) if excite else nn.Identity(),
        )
        plain = channels == to and stride == 1
        self.shortcut = (
            nn.Identity() if plain else conv_norm(channels, to, 1, stride, activation=nn.Identity())
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Stages of bottlenecks; gives the features of every stage."""

    def __init__(
        self,
        blocks: tuple[int, ...],
        width: int = 4,
        *,
        excite: bool = False,
        dilations: tuple[int, ...] = (1, 1, 1, 1),
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_norm(3, 2 * width, 7, 2), nn.MaxPool2d(3, 2, 1))
        channels, stages = 2 * width, []
        for number, (count, dilation) in enumerate(zip(blocks, dilations, strict=True)):
            stride = 1 if number == 0 or dilation > 1 else 2
            inner = width * 2**number
            layers = [Bottleneck(channels, inner, stride, excite=excite, dilation=dilation)]
            channels = inner * 4
            layers += [
                Bottleneck(channels, inner, excite=excite, dilation=dilation) for _ in range(count - 1)
            ]
            stages.append(nn.Sequential(*layers))
        self.stages = nn.ModuleList(stages)
        self.channels = [width * 2**n * 4 for n in range(len(blocks))]

    def forward(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features


class Pyramid(nn.Module):
    """Feature pyramid: every level gets what the coarser ones know."""

    def __init__(self, channels: list[int], to: int) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(c, to, 1) for c in channels)
        self.smooth = nn.ModuleList(nn.Conv2d(to, to, 3, padding=1) for _ in channels)

    def forward(self, features: list[Tensor]) -> list[Tensor]:
        levels = [lateral(f) for lateral, f in zip(self.lateral, features, strict=True)]
        for i in range(len(levels) - 1, 0, -1):
            size = levels[i - 1].shape[-2:]
            levels[i - 1] = levels[i - 1] + nn.functional.interpolate(levels[i], size=size, mode="nearest")
        return [smooth(level) for smooth, level in zip(self.smooth, levels, strict=True)]


class Pooled(nn.Module):
    """The head of a classifier."""

    def __init__(
        self, features: nn.Module, channels: int, classes: int = 10, *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.features = features
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x)
        last = features[-1] if isinstance(features, list) else features
        pooled = nn.functional.adaptive_avg_pool2d(last, 1).flatten(1)
        logits: Tensor = self.head(self.dropout(pooled))
        return logits
