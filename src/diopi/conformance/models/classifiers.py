"""Image classifiers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from diopi.conformance.models import Step, classified, model
from diopi.conformance.models.layers import Pooled, ResNet, SqueezeExcite, conv_norm


@model("resnet50")
def resnet50() -> Step:
    """Bottlenecks 3-4-6-3."""
    net = ResNet((3, 4, 6, 3))
    return classified(Pooled(net, net.channels[-1]), 64)


@model("resnet101")
def resnet101() -> Step:
    """Deeper third stage (shortened), other width and size."""
    net = ResNet((3, 4, 8, 3), width=6)
    return classified(Pooled(net, net.channels[-1], classes=12), 56, classes=12, batch=3)


@model("seresnet50")
def seresnet50() -> Step:
    """Bottlenecks with squeeze and excitation."""
    net = ResNet((3, 4, 6, 3), excite=True)
    return classified(Pooled(net, net.channels[-1]), 48, batch=3)


@model("vgg16")
def vgg16() -> Step:
    """Plain 3x3 convolutions with biases, dropout in the head."""
    layers: list[nn.Module] = []
    channels = 3
    for to in (8, 8, 0, 12, 12, 0, 16, 16, 16, 0, 24, 24, 24, 0, 24, 24, 24, 0):
        if to:
            layers += [nn.Conv2d(channels, to, 3, padding=1), nn.ReLU(inplace=True)]
            channels = to
        else:
            layers.append(nn.MaxPool2d(2))
    head = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 64), nn.ReLU(True), nn.Dropout(0.5)]
    return classified(nn.Sequential(*layers, *head, nn.Linear(64, 10)), 32)


class _Inverted(nn.Module):
    """Inverted residual: widen, depthwise, narrow."""

    def __init__(
        self,
        channels: int,
        to: int,
        stride: int,
        expand: int,
        *,
        kernel: int = 3,
        activation: type[nn.Module] = nn.ReLU6,
        excite: bool = False,
    ) -> None:
        super().__init__()
        inner = channels * expand
        self.adds = stride == 1 and channels == to
        self.body = nn.Sequential(
            conv_norm(channels, inner, 1, activation=activation()) if expand > 1 else nn.Identity(),
            conv_norm(inner, inner, kernel, stride, groups=inner, activation=activation()),
            SqueezeExcite(inner, nn.SiLU) if excite else nn.Identity(),
            conv_norm(inner, to, 1, activation=nn.Identity()),
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.adds else y


@model("mobilenet_v2")
def mobilenet_v2() -> Step:
    """Inverted residuals with ReLU6."""
    plan = [(8, 1, 1), (8, 2, 6), (8, 1, 6), (12, 2, 6), (12, 1, 6), (16, 2, 6), (16, 1, 6), (24, 1, 6)]
    layers: list[nn.Module] = [conv_norm(3, 8, 3, 2, activation=nn.ReLU6(inplace=True))]
    channels = 8
    for to, stride, expand in plan:
        layers.append(_Inverted(channels, to, stride, expand))
        channels = to
    layers.append(conv_norm(channels, 48, 1, activation=nn.ReLU6(inplace=True)))
    return classified(Pooled(nn.Sequential(*layers), 48, dropout=0.2), 48)


@model("efficientnet")
def efficientnet() -> Step:
    """Inverted residuals with SiLU, 5x5 kernels and squeeze and excitation."""
    plan = [(8, 1, 1, 3), (12, 2, 6, 3), (12, 1, 6, 3), (16, 2, 6, 5), (16, 1, 6, 5), (24, 2, 6, 3)]
    layers: list[nn.Module] = [conv_norm(3, 8, 3, 2, activation=nn.SiLU(inplace=True))]
    channels = 8
    for to, stride, expand, kernel in plan:
        layers.append(_Inverted(channels, to, stride, expand, kernel=kernel, activation=nn.SiLU, excite=True))
        channels = to
    layers.append(conv_norm(channels, 64, 1, activation=nn.SiLU()))
    return classified(Pooled(nn.Sequential(*layers), 64, dropout=0.2), 40, batch=3)


class _Dense(nn.Module):
    """Every layer reads all earlier ones."""

    def __init__(self, channels: int, growth: int, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(channels + i * growth),
                nn.ReLU(),
                nn.Conv2d(channels + i * growth, 4 * growth, 1, bias=False),
                nn.BatchNorm2d(4 * growth),
                nn.ReLU(),
                nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )
            for i in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


@model("densenet121")
def densenet121() -> Step:
    """Dense blocks and transitions with average pooling."""
    channels, growth = 8, 4
    layers: list[nn.Module] = [conv_norm(3, channels, 7, 2), nn.MaxPool2d(3, 2, 1)]
    for number, count in enumerate((4, 6, 6, 4)):
        layers.append(_Dense(channels, growth, count))
        channels += growth * count
        if number < 3:
            layers += [
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                nn.Conv2d(channels, channels // 2, 1),
                nn.AvgPool2d(2),
            ]
            channels //= 2
    return classified(Pooled(nn.Sequential(*layers), channels), 64)


class _Shuffled(nn.Module):
    """Halves of the channels take different ways and are shuffled."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        half = channels // 2
        source = half if stride == 1 else channels
        self.stride = stride
        self.way = nn.Sequential(
            conv_norm(source, half, 1),
            conv_norm(half, half, 3, stride, groups=half, activation=nn.Identity()),
            conv_norm(half, half, 1),
        )
        if stride > 1:
            self.other = nn.Sequential(
                conv_norm(channels, channels, 3, stride, groups=channels, activation=nn.Identity()),
                conv_norm(channels, half, 1),
            )

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 1:
            left, right = x.chunk(2, 1)
            joined = torch.cat([left, self.way(right)], 1)
        else:
            joined = torch.cat([self.other(x), self.way(x)], 1)
        n, c, h, w = joined.shape
        return joined.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


@model("shufflenet_v2")
def shufflenet_v2() -> Step:
    """Channel split, depthwise convolutions, channel shuffle."""
    layers: list[nn.Module] = [conv_norm(3, 16, 3, 2), nn.MaxPool2d(3, 2, 1)]
    layers += [_Shuffled(16, 2), _Shuffled(16, 1), _Shuffled(16, 2), _Shuffled(16, 1), conv_norm(16, 32, 1)]
    return classified(Pooled(nn.Sequential(*layers), 32), 64, batch=3)


class _Inception(nn.Module):
    """Branches of different kernels, side by side."""

    def __init__(self, channels: int, to: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            [
                conv_norm(channels, to, 1),
                nn.Sequential(conv_norm(channels, to, 1), conv_norm(to, to, 5)),
                nn.Sequential(
                    conv_norm(channels, to, 1), conv_norm(to, to, (1, 7)), conv_norm(to, to, (7, 1))
                ),
                nn.Sequential(nn.AvgPool2d(3, 1, 1), conv_norm(channels, to, 1)),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class _InceptionNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_norm(3, 8, 3, 2), nn.MaxPool2d(3, 2), _Inception(8, 6))
        self.reduce = nn.ModuleList([conv_norm(24, 12, 3, 2), nn.MaxPool2d(3, 2, 1)])
        self.rest = nn.Sequential(_Inception(36, 8), _Inception(32, 8))
        self.auxiliary = nn.Linear(36, 10)
        self.head = nn.Linear(32, 10)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.stem(x)
        x = torch.cat([reduce(x) for reduce in self.reduce], 1)
        side = self.auxiliary(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))
        x = nn.functional.adaptive_avg_pool2d(self.rest(x), 1).flatten(1)
        return self.head(self.dropout(x)), side


@model("inception_v3")
def inception_v3() -> Step:
    """Inception blocks and an auxiliary head, label smoothing."""
    net = _InceptionNet()
    images, labels = torch.randn(3, 3, 49, 49), torch.randint(0, 10, (3,))

    def loss() -> Tensor:
        main, side = net(images)
        smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
        return smooth(main, labels) + 0.4 * smooth(side, labels)

    return Step(net, loss)
