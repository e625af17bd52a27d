"""A small decoder over dlinfer's operators with paged caches, and steps for it, for tests of graphs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dlinfer import ops

HEADS, KV_HEADS, SIZE, BLOCK, HIDDEN, VOCABULARY = 6, 3, 16, 4, 96, 64
COLUMNS = 32
"""Blocks for each sequence at most."""


@dataclass
class Step:
    """What one decoding step gets, as LMDeploy has it: an object beside the tensors."""

    tokens: Tensor
    table: Tensor
    lengths: Tensor
    slots: Tensor
    longest: int

    def to(self, device: str) -> Step:
        """The same on a device."""
        tensors = (self.tokens, self.table, self.lengths, self.slots)
        return Step(*(tensor.to(device) for tensor in tensors), self.longest)


class Layer(nn.Module):
    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()

        def weight(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(shape, generator=generator) * shape[-1] ** -0.5)

        self.norms = nn.Parameter(1 + 0.1 * torch.randn(2, HIDDEN, generator=generator))
        self.qkv = weight((HEADS + 2 * KV_HEADS) * SIZE, HIDDEN)
        self.out = weight(HIDDEN, HEADS * SIZE)
        self.up = weight(4 * HIDDEN, HIDDEN)
        self.down = weight(HIDDEN, 2 * HIDDEN)

    def forward(
        self,
        hidden: Tensor,
        residual: Tensor,
        rotary: tuple[Tensor, Tensor],
        caches: list[Tensor],
        step: Step,
    ) -> tuple[Tensor, Tensor]:
        hidden, residual = ops.add_rms_norm(hidden, residual, self.norms[0], 1e-6)
        states = ops.linear(hidden, self.qkv).view(-1, HEADS + 2 * KV_HEADS, SIZE)
        query, key, value = states.split([HEADS, KV_HEADS, KV_HEADS], 1)
        query, key = ops.apply_rotary_pos_emb(query, key, *rotary)
        ops.fill_kv_cache(key, value, *caches, step.slots)
        # As LMDeploy does it: the result goes where the query was.
        hidden = ops.paged_decode_attention(
            query, *caches, step.table, BLOCK, None, step.lengths, step.longest, HEADS, KV_HEADS, SIZE, attn_output=query
        )  # fmt: skip
        hidden, residual = ops.add_rms_norm(
            ops.linear(hidden.flatten(1), self.out), residual, self.norms[1], 1e-6
        )
        return ops.linear(ops.silu_and_mul(ops.linear(hidden, self.up)), self.down), residual


class Decoder(nn.Module):
    """Tokens to the hidden states of the next."""

    def __init__(self, layers: int = 2, seed: int = 1) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embedding = nn.Parameter(torch.randn(VOCABULARY, HIDDEN, generator=generator))
        self.layers = nn.ModuleList(Layer(generator) for _ in range(layers))
        self.register_buffer("frequencies", 10_000 ** -(torch.arange(SIZE // 2) / (SIZE // 2)))

    def forward(self, caches: list[list[Tensor]], step: Step) -> Tensor:
        angles = (step.lengths - 1).unsqueeze(1) * self.frequencies
        angles = torch.cat((angles, angles), 1)
        rotary = angles.cos(), angles.sin()
        hidden = self.embedding[step.tokens]
        residual = torch.zeros_like(hidden)
        for layer, pair in zip(self.layers, caches, strict=True):
            hidden, residual = layer(hidden, residual, rotary, pair, step)
        return hidden + residual


def new_caches(layers: int = 2, blocks: int = 512, device: str = "cpu") -> list[list[Tensor]]:
    """Caches with something in every slot, so that a wrong slot is seen."""
    generator = torch.Generator().manual_seed(7)
    shape = (blocks, BLOCK, KV_HEADS, SIZE)
    return [[torch.randn(shape, generator=generator).to(device) for _ in range(2)] for _ in range(layers)]


def make_step(batch: int, longest: int, columns: int | None = None, blocks: int = 512) -> Step:
    """A step of `batch` sequences, the longest with `longest` keys; no block belongs to two sequences."""
    generator = torch.Generator().manual_seed(1000 * batch + longest)
    lengths = torch.randint(1, longest + 1, (batch,), generator=generator, dtype=torch.int32)
    lengths[0] = longest
    columns = -(-longest // BLOCK) if columns is None else columns
    table = torch.randperm(blocks, generator=generator)[: batch * columns].view(batch, columns).int()
    last = lengths.long() - 1
    slots = table.long().gather(1, (last // BLOCK).unsqueeze(1)).flatten() * BLOCK + last % BLOCK
    tokens = torch.randint(0, VOCABULARY, (batch,), generator=generator)
    return Step(tokens, table, lengths, slots, longest)
