"""ResNet-18 for 224 x 224 images, in plain PyTorch: the model of docs/profiler.md."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["BasicBlock", "ResNet18", "resnet18"]


class BasicBlock(nn.Module):
    """Two convolutions of 3 x 3 beside a shortcut; the first may halve the image."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            convolution = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet18(nn.Module):
    def __init__(self, classes: int = 1000, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        layers: list[nn.Module] = []
        channels_in = width
        for stage in range(4):
            channels = width << stage
            layers.append(BasicBlock(channels_in, channels, stride=1 if stage == 0 else 2))
            layers.append(BasicBlock(channels, channels, stride=1))
            channels_in = channels
        self.layers = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels_in, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layers(x))
        logits: torch.Tensor = self.fc(torch.flatten(x, 1))
        return logits


def resnet18(classes: int = 1000, width: int = 64) -> ResNet18:
    """Random weights; 11.7 million of them at the usual width."""
    return ResNet18(classes, width)
