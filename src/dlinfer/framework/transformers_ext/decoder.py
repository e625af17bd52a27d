"""The forward of a decoder on the operators: all layers in one loop, no module in between.

What it cannot do runs through transformers' own layers (`plain`): gradients, caches of other kinds, hidden states of layers,
masks that are more than padding.
"""

from __future__ import annotations

from functools import update_wrapper
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils import logging

from dlinfer.framework.transformers_ext.batches import Batch, plan
from dlinfer.framework.transformers_ext.cache import PagedLayer, adopt
from dlinfer.framework.transformers_ext.families import Layer, layer_of, problem_of
from dlinfer.framework.transformers_ext.kernels import DecoderKernels, kernels
from dlinfer.framework.transformers_ext.linears import PackedLinear, RoundedLinear, StandIn
from dlinfer.framework.transformers_ext.projections import Precision, leave_file, version_of

_logger = logging.get_logger(__name__)
# What callers of a decoder hand through without meaning anything to it.
_HARMLESS = frozenset(
    {"return_dict", "output_attentions", "output_hidden_states", "logits_to_keep", "cache_position"}
)


class DecoderForward(StandIn):
    """Replaces `forward` of one decoder."""

    def __init__(self, decoder: Any, precision: Precision | None, keep: bool = True) -> None:
        """`keep`: the decoder's own weights stay where rounded ones are used. Else each layer's go when it is rounded."""
        self.decoder = decoder
        self.precision = precision
        self.keep = keep
        self._plain = type(decoder).forward
        # generate and others look at the signature.
        update_wrapper(self, self._plain)
        self.layers: list[Layer] = []
        self._weights_read: list[tuple[int, int]] = []
        self.refresh()

    def refresh(self) -> None:
        """Reads the weights of the decoder. RuntimeError: it is no longer one for the operators."""
        problem = problem_of(self.decoder)
        if problem is not None:
            raise RuntimeError(
                f"dlinfer: the model was changed after optimise(model): {problem}; {self._way_back()}"
            )
        config = self.decoder.config
        self.layers = [
            layer_of(layer, config, self.precision, self.keep)
            for layer in self.decoder.layers[: config.num_hidden_layers]
        ]
        for layer in self.layers:
            for linear, part in layer.separate:
                linear.forward = RoundedLinear(part)  # type: ignore[method-assign]
        if not self.keep:
            leave_file(self.decoder)
        self._windowed = any(layer.window_left >= 0 for layer in self.layers)
        self._weights_read = self._fingerprint()

    def _fingerprint(self) -> list[tuple[int, int]]:
        """Where the weights lie, and for those that were rounded whether they were written since."""
        rounded = self.precision is not None and self.keep
        found = [(p.data_ptr(), version_of(p) if rounded else 0) for p in self.decoder.parameters()]
        if not self.keep:
            packed = (module for module in self.decoder.modules() if isinstance(module, PackedLinear))
            found += [(held.data_ptr(), 0) for module in packed for held in module.buffers()]
        return found

    def _way_back(self) -> str:
        return "call restore(model) first" if self.keep else "change the model before optimise"

    def __call__(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        *,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """`forward` of the decoder. What comes behind the embeddings has other positions in other versions of transformers."""
        decoder = self.decoder
        cached = decoder.config.use_cache if use_cache is None else use_cache
        if not torch.compiler.is_compiling():
            self._look(past_key_values)
        found = None
        if self._can(kwargs, attention_mask, position_ids, past_key_values, cached, inputs_embeds):
            if (input_ids is None) == (inputs_embeds is None):
                raise ValueError("give either input_ids or inputs_embeds")
            states = decoder.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
            cache = DynamicCache() if past_key_values is None and cached else past_key_values
            if self._fits(states, position_ids) and (cache is None or adopt(cache, len(self.layers))):
                held = None if cache is None else cache.layers
                found = plan(states, attention_mask, None if held is None else held[0], self._windowed)
        if found is None:
            return self._plain(
                decoder,
                input_ids=input_ids,
                attention_mask=attention_mask,
                position_ids=position_ids,
                past_key_values=past_key_values,
                inputs_embeds=inputs_embeds,
                use_cache=use_cache,
                **kwargs,
            )
        hidden = self._run(states, position_ids, found, held)
        return BaseModelOutputWithPast(last_hidden_state=hidden, past_key_values=cache if cached else None)

    def _look(self, cache: Any) -> None:
        """Reads weights that moved. They do not change within a text; to look at all for every token would cost."""
        begins = cache is None or not cache.get_seq_length()
        if begins and self._fingerprint() != self._weights_read:
            self.refresh()

    def _fits(self, states: Tensor, positions: Tensor | None) -> bool:
        """Whether embeddings and positions are what the kernels take unseen; torch's own errors come for others."""
        weight = self.decoder.norm.weight
        kind = states.dim() == 3 and states.shape[2:] == weight.shape
        if not kind or states.dtype != weight.dtype or states.device != weight.device:
            return False
        return positions is None or (
            positions.dim() == 2
            and positions.shape[0] in (1, states.shape[0])
            and positions.shape[1] == states.shape[1]
        )

    def _can(
        self,
        kwargs: dict[str, Any],
        mask: Any,
        positions: Tensor | None,
        cache: Any,
        cached: bool,
        embeddings: Tensor | None,
    ) -> bool:
        """Whether this call is one for the operators, as far as that can be told without its numbers."""
        decoder = self.decoder
        if torch.compiler.is_compiling() or decoder.training:
            return False
        # It chooses other dtypes for single operators of torch.
        if torch.is_autocast_enabled(decoder.norm.weight.device.type):
            return False
        wanted = embeddings is not None and embeddings.requires_grad
        if torch.is_grad_enabled() and (wanted or any(p.requires_grad for p in decoder.parameters())):
            _logger.warning_once(
                "dlinfer: gradients are wanted, so transformers' own layers run, which are slower."
                " Under torch.no_grad() (generate uses it) dlinfer's operators run."
            )
            return False
        config = decoder.config
        asked = (
            kwargs.get(flag, getattr(config, flag, None))
            for flag in ("output_attentions", "output_hidden_states")
        )
        if any(asked) or kwargs.get("return_dict", config.return_dict) is False:
            return False
        if any(
            value is not None and value is not False
            for name, value in kwargs.items()
            if name not in _HARMLESS
        ):
            return False
        if not getattr(config, "is_causal", True) or (mask is not None and not isinstance(mask, Tensor)):
            return False
        # Sequences behind each other in one row are told by their positions only.
        packed = positions is not None and mask is None and cache is None and not cached
        return not packed

    def _run(
        self, states: Tensor, positions: Tensor | None, batch: Batch, held: list[PagedLayer] | None
    ) -> Tensor:
        decoder = self.decoder
        sequences, new = batch.shape
        if positions is None:
            seen = 0 if held is None else held[0].seen
            positions = torch.arange(seen, seen + new, device=states.device).unsqueeze(0)
        cos, sin = decoder.rotary_emb(states, position_ids=positions)
        if cos.shape[0] != sequences:
            cos, sin = cos.expand(sequences, -1, -1), sin.expand(sequences, -1, -1)
        cos, sin, residual = batch.packed(cos), batch.packed(sin), batch.packed(states)
        where = None if held is None else self._slots_and_table(batch, held, residual)
        run = kernels(states.device.type)
        hidden = None
        for index, layer in enumerate(self.layers):
            if hidden is None:
                norm = run.rms_norm(residual, layer.input_norm, layer.epsilon)
            else:
                norm, residual = run.add_rms_norm(hidden, residual, layer.input_norm, layer.epsilon)
            pages = None if held is None else held[index].pages
            attended = _attention(run, layer, norm, cos, sin, batch, pages, where)
            attended = layer.out(attended, run)
            norm, residual = run.add_rms_norm(attended, residual, layer.post_norm, layer.epsilon)
            hidden = layer.down(run.silu_and_mul(layer.gate_up(norm, run)), run)
        hidden, _ = run.add_rms_norm(hidden, residual, decoder.norm.weight, decoder.norm.variance_epsilon)
        for layer in held or ():
            layer.advance(new, batch.kept)
        return batch.unpacked(hidden)

    def _slots_and_table(self, batch: Batch, held: list[PagedLayer], like: Tensor) -> tuple[Tensor, Tensor]:
        """Slots of the new tokens, and the table of pages; all layers have the same."""
        for layer, cache in zip(self.layers, held, strict=False):
            cache.reserve(batch.shape[0], batch.max_kv, like, layer.heads[1], layer.size)
        capacity = held[0].capacity
        return batch.slots(capacity, like.device), batch.table(capacity, like.device)


def _attention(
    run: DecoderKernels,
    layer: Layer,
    norm: Tensor,
    cos: Tensor,
    sin: Tensor,
    batch: Batch,
    pages: tuple[Tensor, Tensor] | None,
    where: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """[tokens, heads * size]: what a layer's heads found."""
    (heads, kv_heads), size = layer.heads, layer.size
    query, key, value = (
        layer.qkv(norm, run)
        .view(-1, heads + 2 * kv_heads, size)
        .split_with_sizes((heads, kv_heads, kv_heads), 1)
    )
    if layer.query_norm is not None and layer.key_norm is not None:
        query = run.rms_norm(query, layer.query_norm, layer.epsilon)
        key = run.rms_norm(key, layer.key_norm, layer.epsilon)
    query, key = run.apply_rotary_pos_emb(query, key, cos, sin)
    # The result may lie on the query: nothing reads that any more.
    if pages is not None and where is not None:
        run.fill_kv_cache(key, pages[0], value, pages[1], where[0])
    if batch.steps and pages is not None and where is not None:
        run.paged_decode_attention(
            query, *pages, where[1], batch.kv_lengths, batch.max_kv, query, layer.scale, None, layer.window_left,
        )  # fmt: skip
    elif batch.fresh:
        run.prefill_attention(
            query, key, value, batch.cu_seqlens_q, batch.kv_lengths, batch.max_new, query, layer.scale, True, None, None,
            layer.window_left,
        )  # fmt: skip
    else:
        assert pages is not None and where is not None, "tokens before this call are in a cache"
        run.paged_prefill_attention(
            query, *pages, where[1], batch.cu_seqlens_q, batch.kv_lengths, batch.max_new, batch.max_kv, query, layer.scale,
            True, None, None, layer.window_left,
        )  # fmt: skip
    return query.view(-1, heads * size)
