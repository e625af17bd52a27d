"""A llama decoder as a plain loop over dlinfer's operators: paged cache, one new token for each sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dlinfer import ops

BLOCK = 64


@dataclass
class _Layer:
    norm_in: Tensor
    qkv: Tensor
    out: Tensor
    norm_post: Tensor
    gate_up: Tensor
    down: Tensor
    key_cache: Tensor
    value_cache: Tensor


class PagedDecoder:
    """The weights of a transformers llama, with queries, keys and values, and gate and up, side by side."""

    def __init__(self, model: Any, batch: int, longest: int) -> None:
        config, self._weights = model.config, model.model
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._size, self._epsilon = config.head_dim, config.rms_norm_eps
        self._head_weight = model.lm_head.weight
        device, dtype = self._head_weight.device, self._head_weight.dtype
        columns = -(-longest // BLOCK)
        # Blocks of a sequence lie anywhere, as they do in a server.
        order = torch.randperm(batch * columns, generator=torch.Generator().manual_seed(0), device="cpu")
        self.table = order.view(batch, columns).to(device, torch.int32)
        self.longest = columns * BLOCK
        shape = (batch * columns, BLOCK, self._kv_heads, self._size)
        self.layers = [self._layer(layer, shape, dtype) for layer in model.model.layers]
        places = torch.arange(self.longest, device=device)
        cos, sin = model.model.rotary_emb(
            torch.empty(1, 1, 1, dtype=dtype, device=device), places.unsqueeze(0)
        )
        self._cos, self._sin = cos[0], sin[0]
        self.tokens = torch.zeros(batch, dtype=torch.int64, device=device)
        self.lengths = torch.zeros(batch, dtype=torch.int32, device=device)
        """Tokens in the cache."""

    def _layer(self, layer: Any, shape: tuple[int, ...], dtype: torch.dtype) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        device = attention.q_proj.weight.device
        return _Layer(
            layer.input_layernorm.weight.detach(),
            torch.cat([p.weight.detach() for p in (attention.q_proj, attention.k_proj, attention.v_proj)]),
            attention.o_proj.weight.detach(),
            layer.post_attention_layernorm.weight.detach(),
            torch.cat([mlp.gate_proj.weight.detach(), mlp.up_proj.weight.detach()]),
            mlp.down_proj.weight.detach(),
            torch.zeros(shape, dtype=dtype, device=device),
            torch.zeros(shape, dtype=dtype, device=device),
        )

    def fill(self, keys: list[Tensor], values: list[Tensor]) -> None:
        """Takes over the caches of another implementation, [batch, kv_heads, length, size] for each layer."""
        length = keys[0].shape[2]
        places = torch.arange(length, device=self.table.device)
        slots = (self.table[:, places // BLOCK].long() * BLOCK + places % BLOCK).flatten()
        for layer, key, value in zip(self.layers, keys, values, strict=True):
            ops.fill_kv_cache(
                key.transpose(1, 2).flatten(0, 1), value.transpose(1, 2).flatten(0, 1), layer.key_cache, layer.value_cache,
                slots,
            )  # fmt: skip
        self.lengths.fill_(length)

    def step(self) -> Tensor:
        """Logits of `tokens`, which are put into the cache; the most likely ones are the next `tokens`."""
        batch = self.tokens.shape[0]
        place = self.lengths.long()
        block = self.table.gather(1, (place // BLOCK).unsqueeze(1)).squeeze(1).long()
        slots = block * BLOCK + place % BLOCK
        cos, sin = self._cos[place], self._sin[place]
        self.lengths += 1
        residual = torch.nn.functional.embedding(self.tokens, self._weights.embed_tokens.weight)
        hidden = ops.rms_norm(residual, self.layers[0].norm_in, self._epsilon)
        for number, layer in enumerate(self.layers):
            hidden = self._attention(layer, hidden, cos, sin, slots, batch)
            hidden, residual = ops.add_rms_norm(hidden, residual, layer.norm_post, self._epsilon)
            hidden = ops.linear(ops.silu_and_mul(ops.linear(hidden, layer.gate_up)), layer.down)
            last = number + 1 == len(self.layers)
            norm = self._weights.norm.weight if last else self.layers[number + 1].norm_in
            hidden, residual = ops.add_rms_norm(hidden, residual, norm, self._epsilon)
        logits = ops.linear(hidden, self._head_weight)
        self.tokens.copy_(logits.argmax(-1))
        return logits

    def _attention(
        self, layer: _Layer, hidden: Tensor, cos: Tensor, sin: Tensor, slots: Tensor, batch: int
    ) -> Tensor:
        heads, kv_heads, size = self._heads, self._kv_heads, self._size
        qkv = ops.linear(hidden, layer.qkv).view(batch, heads + 2 * kv_heads, size)
        query, key, value = qkv.split([heads, kv_heads, kv_heads], 1)
        query, key = ops.apply_rotary_pos_emb(query, key, cos, sin)
        ops.fill_kv_cache(key, value, layer.key_cache, layer.value_cache, slots)
        seen = ops.paged_decode_attention(
            query,
            layer.key_cache,
            layer.value_cache,
            self.table,
            BLOCK,
            None,
            self.lengths,
            self.longest,
            heads,
            kv_heads,
        )
        return ops.linear(seen.view(batch, -1), layer.out)
