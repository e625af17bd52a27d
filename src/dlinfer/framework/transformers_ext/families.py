"""Decoders whose layers are supported, and what the operators need of each layer.

All of them share one form: RMS norm, attention with rotary embedding, RMS norm, gated MLP, both with a residual. What is not
exactly that form is not touched: adapters, quantised or sharded layers, hooks, subclasses with code of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dlinfer.framework.transformers_ext.linears import PackedLinear, StandIn
from dlinfer.framework.transformers_ext.projections import (
    Dense,
    Precision,
    Projection,
    Quantised,
    join,
    joined,
    joined_bias,
    quantised,
)

FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
"""Names of transformers' classes, without `Model`."""
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True, slots=True)
class Parts:
    """The linear layers of a decoder layer, by what runs as one operator."""

    qkv: tuple[nn.Linear, nn.Linear, nn.Linear]
    out: nn.Linear
    gate_up: tuple[nn.Linear, nn.Linear]
    down: nn.Linear


@dataclass(frozen=True, slots=True)
class Layer:
    """A decoder layer as the operators see it."""

    input_norm: Tensor
    qkv: Projection
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Projection
    post_norm: Tensor
    gate_up: Projection
    down: Projection
    heads: tuple[int, int]
    """Of queries, of keys."""
    size: int
    scale: float
    window_left: int
    """Keys that a query sees before its own; -1: all."""
    epsilon: float
    source: Parts
    separate: tuple[tuple[nn.Linear, Quantised], ...]
    """For layers in few bits: each linear layer with its part of the weight."""


def family_of(module: nn.Module) -> str | None:
    """Which supported decoder a module is."""
    kind = type(module)
    for name in FAMILIES:
        if kind.__name__ == f"{name}Model" and kind.__module__.startswith("transformers.models."):
            return name
    return None


def _parts_of(layer: Any) -> Parts:
    """The linear layers of a decoder layer of transformers."""
    attention, mlp = layer.self_attn, layer.mlp
    return Parts(
        (attention.q_proj, attention.k_proj, attention.v_proj),
        attention.o_proj,
        (mlp.gate_proj, mlp.up_proj),
        mlp.down_proj,
    )


def problem_of(decoder: Any) -> str | None:
    """Why a decoder of a supported family cannot run on the operators, or None."""
    family = family_of(decoder)
    if getattr(decoder.config, "hidden_act", None) != "silu":
        return f"its activation is {getattr(decoder.config, 'hidden_act', None)!r}, not 'silu'"
    for name, module in decoder.named_modules():
        problem = _problem_of_forward(module)
        if module is not decoder:
            problem = _problem_of_kind(module, family) or problem or _problem_of_hooks(module)
        if problem is not None:
            return f"{name or 'it'} {problem}"
    for name, parameter in decoder.named_parameters():
        if type(parameter) is not nn.Parameter:
            return f"{name} is a {type(parameter).__name__}"
    kinds = {(p.dtype, p.device) for p in decoder.parameters()}
    if len(kinds) != 1:
        return f"its weights are of several kinds: {', '.join(sorted(f'{d} on {v}' for d, v in kinds))}"
    dtype, device = kinds.pop()
    if dtype not in (torch.float32, torch.bfloat16, torch.float16, torch.float64) or device.type == "meta":
        return f"its weights are {dtype} on {device}"
    return None


def _problem_of_kind(module: nn.Module, family: str | None) -> str | None:
    kind = type(module)
    supported = kind.__module__.startswith("transformers.") and kind.__name__.startswith(
        (str(family), "SiLU")
    )
    if supported or kind in (nn.Linear, PackedLinear, nn.Embedding, nn.ModuleList, nn.SiLU):
        return None
    return f"is a {kind.__module__}.{kind.__qualname__}"


def _problem_of_forward(module: nn.Module) -> str | None:
    found: Any = vars(module).get("forward")
    # transformers 4 leaves the method of the class behind when hidden states were asked for.
    plain = getattr(found, "__func__", None) is type(module).forward and found.__self__ is module
    if found is not None and not plain and not isinstance(found, StandIn):
        return "has a forward of its own (another library has changed it)"
    return None


def _problem_of_hooks(module: nn.Module) -> str | None:
    """Modules inside are not called, so their hooks would not run; those of the decoder itself do."""
    for held in _HOOKS:
        for hook in getattr(module, held).values():
            # transformers' own: silent unless hidden states are asked for, and then the layers run as ever.
            if "output_capturing_hook" not in getattr(hook, "__qualname__", ""):
                return "has hooks"
    return None


def layer_of(layer: Any, config: Any, precision: Precision | None, keep: bool = True) -> Layer:
    """One decoder layer for the operators. Without `precision` its linear layers then share joined weights.

    With `precision` and not `keep`, packed layers replace its linear layers, whose weights are gone then.
    """
    attention, source = layer.self_attn, _parts_of(layer)
    window = getattr(attention, "sliding_window", None)
    if not hasattr(attention, "sliding_window") and type(layer).__name__ == "MistralDecoderLayer":
        window = config.sliding_window
    queries, size = source.qkv[0].out_features, attention.head_dim
    separate: list[tuple[nn.Linear, Quantised]] = []

    def projection(*linears: nn.Linear) -> Projection:
        if precision is None:
            return Dense(*join(linears)) if len(linears) > 1 else Dense(linears[0].weight, linears[0].bias)
        whole = _rounded(linears, precision)
        separate.extend(_pieces(linears, whole))
        return whole

    qkv, out = projection(*source.qkv), projection(source.out)
    gate_up, down = projection(*source.gate_up), projection(source.down)
    if not keep:
        for linear, part in separate:
            _let_go(linear, part, attention, layer.mlp)
        source, separate = _parts_of(layer), []
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return Layer(
        input_norm=layer.input_layernorm.weight,
        qkv=qkv,
        query_norm=None if query_norm is None else query_norm.weight,
        key_norm=None if key_norm is None else key_norm.weight,
        out=out,
        post_norm=layer.post_attention_layernorm.weight,
        gate_up=gate_up,
        down=down,
        heads=(queries // size, source.qkv[1].out_features // size),
        size=size,
        scale=attention.scaling,
        window_left=-1 if window is None else window - 1,
        epsilon=layer.input_layernorm.variance_epsilon,
        source=source,
        separate=tuple(separate),
    )


def _rounded(linears: tuple[Any, ...], precision: Precision) -> Quantised:
    packed = [linear.held for linear in linears if isinstance(linear, PackedLinear)]
    if packed:
        if len(packed) < len(linears):
            raise RuntimeError(
                "dlinfer: the model was changed after optimise(model, keep_originals=False): a linear layer beside packed"
                " ones is new; change the model before optimise"
            )
        return joined(packed)
    return quantised([linear.weight for linear in linears], joined_bias(linears), precision)


def _pieces(linears: tuple[nn.Linear, ...], whole: Quantised) -> Iterator[tuple[nn.Linear, Quantised]]:
    start = 0
    for linear in linears:
        yield linear, whole.part(start, start + linear.out_features)
        start += linear.out_features


def _let_go(linear: nn.Module, part: Quantised, *parents: nn.Module) -> None:
    """Replaces a linear layer by a packed one; where it is already, it takes its part of the joined weight."""
    if isinstance(linear, PackedLinear):
        linear.hold(part)
        return
    assert isinstance(linear, nn.Linear)
    for parent in parents:
        for name, child in parent.named_children():
            if child is linear:
                setattr(parent, name, PackedLinear(part, linear.in_features, linear.out_features))
