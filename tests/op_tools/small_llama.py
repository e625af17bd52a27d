"""A small llama that trains for a few steps: the program the tools for people are tried on.

Run: python small_llama.py --device dipu --steps 3 [--wrong silu] [--numerics reordered] [--variant extra|missing] [--layers 1]
It prints `step N loss X` for each step. With --wrong one kernel of the device is replaced by a wrong one.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent))

WIDTH, HEADS, LAYERS, VOCABULARY, BATCH, LENGTH = 32, 2, 2, 61, 2, 12


class RMSNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat((-right, left), -1) * sin


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        shape = (BATCH, LENGTH, HEADS, WIDTH // HEADS)
        query, key, value = (
            part(x).view(shape).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        scores = query @ key.transpose(-1, -2) * shape[-1] ** -0.5
        hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool, device=x.device).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).reshape(BATCH, LENGTH, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm_attention, self.norm_network = Attention(), RMSNorm(), RMSNorm()
        self.gate = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x), cos, sin)
        y = self.norm_network(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, variant: str = "", layers: int = LAYERS) -> None:
        super().__init__()
        self.variant = variant
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.norm = RMSNorm()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        angles = torch.arange(LENGTH, device=tokens.device).unsqueeze(1) * 10000 ** (
            -torch.arange(0, WIDTH // HEADS, 2, device=tokens.device) / (WIDTH // HEADS)
        )
        cos, sin = (part.repeat(1, 2) for part in (angles.cos(), angles.sin()))
        x = self.tokens(tokens)
        if self.variant == "extra":
            x = x.clamp(-100, 100)
        for block in self.blocks:
            x = block(x, cos, sin)
        if self.variant != "missing":
            x = self.norm(x)
        return self.head(x)


def train(device: str, steps: int, variant: str = "", layers: int = LAYERS) -> list[float]:
    """The loss of each step, from the same start on every device."""
    torch.manual_seed(0)
    model = Llama(variant, layers)
    tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    model, tokens = model.to(device), tokens.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"step {step} loss {losses[-1]:.6f}", flush=True)
    return losses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="dipu")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--wrong", default="")
    parser.add_argument("--numerics", default="plain")
    parser.add_argument("--variant", choices=("", "extra", "missing"), default="")
    parser.add_argument("--layers", type=int, default=LAYERS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.device == "dipu":
        import torch_dipu  # noqa: F401

        torch.get_device_module("dipu").configure(numerics=options.numerics)
    if options.wrong:
        from wrong_kernels import install

        install(options.wrong)
    train(options.device, options.steps, options.variant, options.layers)


if __name__ == "__main__":
    main()
