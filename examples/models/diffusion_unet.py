"""A diffusion model in plain torch: a UNet that knows the time step learns to predict noise; then it draws a picture."""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training import ROWS, STEPS, Experiment, Sample, main

SIZE, CHANNELS, TIMES = 16, 32, 100


def noise_levels(device: torch.device) -> Tensor:
    """What remains of the picture (its variance) after each time step, by a straight schedule."""
    return torch.cumprod(1 - torch.linspace(1e-4, 0.05, TIMES, device=device), dim=0)


def time_embedding(times: Tensor) -> Tensor:
    """Sines and cosines of the time at frequencies from 1 to 1/10000."""
    half = CHANNELS // 2
    steps = torch.arange(half, device=times.device, dtype=torch.float32)
    angles = times[:, None].float() * torch.exp(steps * (-math.log(10000.0) / half))
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


class Block(nn.Module):
    """Two convolutions with the time between them, added to what came in."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(4, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.time = nn.Linear(4 * CHANNELS, outputs)
        self.second = nn.Sequential(
            nn.GroupNorm(4, outputs), nn.SiLU(), nn.Conv2d(outputs, outputs, 3, padding=1)
        )
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.first(x) + self.time(F.silu(time))[:, :, None, None]
        result: Tensor = self.second(hidden) + self.skip(x)
        return result


class Attention(nn.Module):
    """Every pixel of the picture looks at every other."""

    def __init__(self, channels: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(4, channels)
        self.project_in, self.project_out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        rows, channels, height, width = x.shape
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        split = self.project_in(pixels).view(rows, height * width, 3, self.heads, channels // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).reshape(pixels.shape)
        return x + self.project_out(mixed).transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """One step down, attention in the middle, one step up beside what was seen on the way down."""

    def __init__(self) -> None:
        super().__init__()
        channels = 2 * CHANNELS
        self.time = nn.Sequential(
            nn.Linear(CHANNELS, 4 * CHANNELS), nn.SiLU(), nn.Linear(4 * CHANNELS, 4 * CHANNELS)
        )
        self.enter = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.down = Block(CHANNELS, CHANNELS)
        self.shrink = nn.Conv2d(CHANNELS, channels, 3, stride=2, padding=1)
        self.middle = nn.ModuleList([Block(channels, channels), Block(channels, channels)])
        self.attention = Attention(channels)
        self.grow = nn.ConvTranspose2d(channels, CHANNELS, 2, stride=2)
        self.up = Block(channels, CHANNELS)
        self.leave = nn.Sequential(nn.GroupNorm(4, CHANNELS), nn.SiLU(), nn.Conv2d(CHANNELS, 3, 3, padding=1))

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        time = self.time(time_embedding(times))
        seen = self.down(self.enter(x), time)
        hidden = self.middle[0](self.shrink(seen), time)
        hidden = self.middle[1](self.attention(hidden), time)
        noise: Tensor = self.leave(self.up(torch.cat([self.grow(hidden), seen], dim=1), time))
        return noise


def loss(model: nn.Module, batch: Sample) -> Tensor:
    """How well the noise that was mixed in is found again."""
    kept = noise_levels(batch["times"].device)[batch["times"]][:, None, None, None]
    noisy = batch["image"] * kept.sqrt() + batch["noise"] * (1 - kept).sqrt()
    return F.mse_loss(model(noisy, batch["times"]), batch["noise"])


@torch.no_grad()
def draw(model: nn.Module, device: str, start: Tensor, steps: int = 8) -> Tensor:
    """Start from noise and remove what the model finds, in a few large steps without new noise (DDIM)."""
    x = start.to(device, next(model.parameters()).dtype)
    levels = noise_levels(x.device)
    times = torch.arange(TIMES - 1, -1, -TIMES // steps, device=device)
    for index, time in enumerate(times):
        found = model(x, time[None])
        kept = levels[time]
        clean = (x - (1 - kept).sqrt() * found) / kept.sqrt()
        later = levels[times[index + 1]] if index + 1 < len(times) else torch.ones((), device=device)
        x = later.sqrt() * clean + (1 - later).sqrt() * found
    return x[0]


def build() -> Experiment:
    model = UNet()
    rows = STEPS * ROWS
    images, noise = torch.randn(2, rows, 3, SIZE, SIZE)
    samples = [
        {"image": image, "noise": mixed_in, "times": time}
        for image, mixed_in, time in zip(images, noise, torch.randint(TIMES, (rows,)), strict=True)
    ]
    # Drawn on the CPU: the generators of two devices give different numbers.
    return Experiment(model, samples, loss, partial(draw, start=torch.randn(1, 3, SIZE, SIZE)))


if __name__ == "__main__":
    main(build)
