"""Models that answer for every pixel, and the denoiser of a diffusion model."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diopi.conformance.models import Step, model
from diopi.conformance.models.layers import ResNet, conv_norm

_CLASSES = 5


def _segmented(net: nn.Module, side: int, batch: int = 2) -> Step:
    images = torch.randn(batch, 3, side, side)
    labels = torch.randint(0, _CLASSES, (batch, side, side))
    labels[0, :2] = 255  # pixels that nobody labelled
    return Step(net, lambda: F.cross_entropy(net(images), labels, ignore_index=255))


class _UNet(nn.Module):
    """Down, up, and shortcuts between the same sizes."""

    def __init__(self) -> None:
        super().__init__()
        widths = (6, 12, 24)
        self.down = nn.ModuleList(
            nn.Sequential(conv_norm(a, b), conv_norm(b, b))
            for a, b in zip((3, *widths[:-1]), widths, strict=True)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in ((12, 24), (6, 12)))
        self.join = nn.ModuleList(nn.Sequential(conv_norm(2 * a, a), conv_norm(a, a)) for a in (12, 6))
        self.head = nn.Conv2d(6, _CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for number, down in enumerate(self.down):
            x = down(x)
            kept.append(x)
            x = F.max_pool2d(x, 2) if number < 2 else x
        for up, join, beside in zip(self.up, self.join, (kept[1], kept[0]), strict=True):
            x = join(torch.cat([beside, up(x)], 1))
        answer: Tensor = self.head(x)
        return answer


@model("unet")
def unet() -> Step:
    """Transposed convolutions and concatenations."""
    return _segmented(_UNet(), 32)


class _Upsampled(nn.Module):
    """A backbone, a head, and bilinear interpolation to the size of the image."""

    def __init__(self, backbone: ResNet, head: nn.Module, *, align: bool = False) -> None:
        super().__init__()
        self.backbone, self.head, self.align = backbone, head, align

    def forward(self, x: Tensor) -> Tensor:
        small = self.head(self.backbone(x)[-1])
        return F.interpolate(small, size=x.shape[-2:], mode="bilinear", align_corners=self.align)


@model("fcn")
def fcn() -> Step:
    """Dilated backbone and a plain convolutional head."""
    net = ResNet((1, 1, 1, 1), dilations=(1, 1, 2, 4))
    head = nn.Sequential(conv_norm(net.channels[-1], 16), nn.Dropout2d(0.1), nn.Conv2d(16, _CLASSES, 1))
    return _segmented(_Upsampled(net, head), 40)


class _Atrous(nn.Module):
    """The same map seen at several dilations and as a whole."""

    def __init__(self, channels: int, to: int) -> None:
        super().__init__()
        self.views = nn.ModuleList(
            [conv_norm(channels, to, 1), *(conv_norm(channels, to, 3, dilation=d) for d in (2, 4, 6))]
        )
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), conv_norm(channels, to, 1))
        self.join = nn.Sequential(conv_norm(5 * to, to, 1), nn.Conv2d(to, _CLASSES, 1))

    def forward(self, x: Tensor) -> Tensor:
        seen = [view(x) for view in self.views]
        seen.append(F.interpolate(self.whole(x), size=x.shape[-2:], mode="bilinear", align_corners=False))
        answer: Tensor = self.join(torch.cat(seen, 1))
        return answer


@model("deeplabv3")
def deeplabv3() -> Step:
    """Atrous spatial pyramid pooling."""
    net = ResNet((1, 2, 1, 1), dilations=(1, 1, 2, 4))
    return _segmented(_Upsampled(net, _Atrous(net.channels[-1], 8)), 48)


class _PooledPyramid(nn.Module):
    """Averages over 1, 2, 3 and 6 parts beside the map itself."""

    def __init__(self, channels: int, to: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(n), nn.Conv2d(channels, to, 1), nn.ReLU())
            for n in (1, 2, 3, 6)
        )
        self.join = nn.Sequential(conv_norm(channels + 4 * to, to), nn.Conv2d(to, _CLASSES, 1))

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[-2:]
        seen = [F.interpolate(part(x), size=size, mode="bilinear", align_corners=True) for part in self.parts]
        answer: Tensor = self.join(torch.cat([x, *seen], 1))
        return answer


@model("pspnet")
def pspnet() -> Step:
    """Pyramid pooling."""
    net = ResNet((1, 1, 2, 1), dilations=(1, 1, 2, 4))
    return _segmented(_Upsampled(net, _PooledPyramid(net.channels[-1], 8), align=True), 56)


class _Residual(nn.Module):
    """Group norm, SiLU, convolution, with the time added between."""

    def __init__(self, channels: int, to: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, to, 3, padding=1)
        )
        self.time = nn.Linear(time, to)
        self.second = nn.Sequential(
            nn.GroupNorm(4, to), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(to, to, 3, padding=1)
        )
        self.shortcut = nn.Conv2d(channels, to, 1) if channels != to else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(x) + self.time(F.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.second(y)


class _Attend(nn.Module):
    """Self attention, attention to the text, gated feed-forward."""

    def __init__(self, channels: int, text: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(4, channels)
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        self.query = nn.ModuleList(nn.Linear(channels, channels, bias=False) for _ in range(2))
        self.key = nn.ModuleList(nn.Linear(c, channels, bias=False) for c in (channels, text))
        self.value = nn.ModuleList(nn.Linear(c, channels, bias=False) for c in (channels, text))
        self.out = nn.ModuleList(nn.Linear(channels, channels) for _ in range(2))
        self.gated = nn.Linear(channels, 4 * channels)
        self.back = nn.Linear(2 * channels, channels)

    def _attention(self, number: int, x: Tensor, to: Tensor) -> Tensor:
        def split(t: Tensor) -> Tensor:
            return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        query, key, value = self.query[number](x), self.key[number](to), self.value[number](to)
        scores = split(query) @ split(key).transpose(-1, -2) / math.sqrt(query.shape[-1] // self.heads)
        mixed = scores.softmax(-1) @ split(value)
        answer: Tensor = self.out[number](mixed.transpose(1, 2).flatten(-2))
        return answer

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        n, c, h, w = image.shape
        x = self.norm(image).flatten(2).transpose(1, 2)
        normed = self.norms[0](x)
        x = x + self._attention(0, normed, normed)
        x = x + self._attention(1, self.norms[1](x), text)
        value, gate = self.gated(self.norms[2](x)).chunk(2, -1)
        x = x + self.back(value * F.gelu(gate))
        return image + x.transpose(1, 2).reshape(n, c, h, w)


class _Denoiser(nn.Module):
    def __init__(self, width: int = 16, text: int = 24) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width))
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        self.down = _Residual(width, width, 4 * width)
        self.attend_down = _Attend(width, text)
        self.shrink = nn.Conv2d(width, width, 3, 2, 1)
        self.middle = _Residual(width, 2 * width, 4 * width)
        self.attend = _Attend(2 * width, text)
        self.grow = nn.Conv2d(2 * width, width, 3, padding=1)
        self.up = _Residual(2 * width, width, 4 * width)
        self.leave = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 4, 3, padding=1))

    def forward(self, x: Tensor, step: Tensor, text: Tensor) -> Tensor:
        half = self.width // 2
        rates = torch.exp(-math.log(10_000) * torch.arange(half) / half)
        angles = step[:, None].float() * rates[None]
        time = self.time(torch.cat([angles.cos(), angles.sin()], -1))
        first = self.attend_down(self.down(self.enter(x), time), text)
        middle = self.attend(self.middle(self.shrink(first), time), text)
        grown = self.grow(F.interpolate(middle, scale_factor=2.0, mode="nearest"))
        answer: Tensor = self.leave(self.up(torch.cat([grown, first], 1), time))
        return answer


@model("stable_diffusion_unet")
def stable_diffusion_unet() -> Step:
    """Residual blocks with time, cross attention to a text, mean squared error of the noise."""
    net = _Denoiser()
    clean, noise, text = torch.randn(2, 4, 12, 12), torch.randn(2, 4, 12, 12), torch.randn(2, 7, 24)
    steps = torch.randint(0, 1000, (2,))
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)

    def loss() -> Tensor:
        share = kept[steps][:, None, None, None]
        noisy = share.sqrt() * clean + (1 - share).sqrt() * noise
        return F.mse_loss(net(noisy, steps, text), noise)

    return Step(net, loss, optimizer="adamw")
