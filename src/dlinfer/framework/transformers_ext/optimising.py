"""Putting a model on the operators of dlinfer, and taking it off again."""

from __future__ import annotations

import ctypes
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any, NoReturn, get_args

from torch import Tensor, nn

from dlinfer.framework.transformers_ext.attention import NAME
from dlinfer.framework.transformers_ext.decoder import DecoderForward
from dlinfer.framework.transformers_ext.families import FAMILIES, family_of, problem_of
from dlinfer.framework.transformers_ext.linears import Head, PackedLinear, StandIn, rounded_head
from dlinfer.framework.transformers_ext.projections import Precision, leave_file, separate

_STATE = "_dlinfer"


@dataclass
class _State:
    """What was done to a model."""

    attention: str | None
    precision: Precision | None
    decoders: dict[str, DecoderForward] = field(default_factory=dict)
    head: str | None = None
    left: dict[str, str] = field(default_factory=dict)
    """Decoders that could not be put on the operators, and why."""
    gone: bool = False
    """Weights of the model were let go."""


class _NoSaving(StandIn):
    """Replaces `save_pretrained` of a model whose own weights are gone."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(
            "the model's own weights were let go by optimise(model, ..., keep_originals=False), and from_pretrained cannot read"
            " the rounded ones: save the model before optimise, or use torch.save(model.state_dict(), file) and load that into"
            " a model optimised in the same way"
        )


def optimise(model: Any, weights: Precision | None = None, *, keep_originals: bool = True) -> Any:
    """Puts a model of transformers on the operators of dlinfer, in place, and returns it. `restore` takes it back.

    Decoders of supported families (Llama, Mistral, Qwen2, Qwen3; also inside larger models) run as a whole: joined linear
    layers, fused norms and activations, a paged cache. Any other model gets dlinfer's attention only, and a warning says so.

    Args:
        model: a `PreTrainedModel`, in eval mode and on its device already.
        weights: None keeps the weights as they are. "int8" or "int4" stores those of the linear layers in few bits; they are
            read faster and rounded.
        keep_originals: with rounded weights, whether the model's own stay in memory for `restore`. False lets them go layer
            by layer (what is mapped from a file of a checkpoint, at the end); `restore` and `save_pretrained` are refused then.
    """
    if weights is not None and weights not in get_args(Precision):
        raise ValueError(
            f"weights is {weights!r}, expected None, {' or '.join(map(repr, get_args(Precision)))}"
        )
    if weights is None and not keep_originals:
        raise ValueError(
            "keep_originals=False lets weights go that were rounded: give weights='int8' or 'int4' too"
        )
    if not hasattr(model, "set_attn_implementation"):
        raise TypeError(f"optimise takes a model of transformers, not a {type(model).__name__}")
    before = getattr(model, _STATE, None)
    if before is not None:
        way = "load it again" if before.gone else "call restore(model) first"
        raise RuntimeError(f"this model is optimised already: {way} to change how")
    state = _State(model.config._attn_implementation, weights)
    for name, module in model.named_modules():
        if family_of(module) is not None:
            problem = problem_of(module)
            if problem is None:
                state.decoders[name] = DecoderForward(module, weights, keep_originals)
                module.forward = state.decoders[name]  # type: ignore[assignment]
            else:
                state.left[name] = problem
    if state.decoders:
        state.head = _optimise_head(model, weights, keep_originals)
        state.gone = not keep_originals
    _warn(model, state)
    model.set_attn_implementation(NAME)
    setattr(model, _STATE, state)
    if state.gone:
        _settle(model)
    return model


def _settle(model: Any) -> None:
    """What is left to do when weights were let go."""
    for module in model.modules():
        if hasattr(module, "save_pretrained"):
            module.save_pretrained = _NoSaving()
    leave_file(model)
    # glibc keeps what was freed between other pieces; the process would not shrink by it.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _optimise_head(model: Any, weights: Precision | None, keep: bool) -> str | None:
    """The last layer reads as much memory as several others."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if type(head) is not nn.Linear or "forward" in vars(head):
        return None
    path = next(name for name, module in model.named_modules() if module is head)
    if keep or _is_embedding(head.weight, model):
        head.forward = Head(head, weights)  # type: ignore[method-assign]
    else:
        packed = PackedLinear(rounded_head(head), head.in_features, head.out_features)
        model.set_submodule(path, packed)
    return path


def _is_embedding(weight: Tensor, model: nn.Module) -> bool:
    """Whether a layer's weight is an embedding too, which needs it as it is."""
    tables = (module for module in model.modules() if isinstance(module, nn.Embedding))
    return any(table.weight is weight for table in tables)


def _warn(model: Any, state: _State) -> None:
    if state.decoders and not state.left:
        return
    reasons = "; ".join(f"{name or type(model).__name__}: {why}" for name, why in state.left.items())
    reasons = reasons or f"its layers are of no supported family ({', '.join(FAMILIES)})"
    whose = f"a part of {type(model).__name__}" if state.decoders else type(model).__name__
    warnings.warn(f"dlinfer: {whose} gets dlinfer's attention only; {reasons}", stacklevel=3)


def restore(model: Any) -> Any:
    """Takes `optimise` back: the model is transformers' own again, with weights in memory of their own. Returns it."""
    state = getattr(model, _STATE, None)
    if state is None:
        raise RuntimeError("this model is not optimised")
    if state.gone:
        raise RuntimeError(
            "the model's own weights were let go by optimise(model, ..., keep_originals=False):"
            " load the model again, or keep them with keep_originals=True"
        )
    # Layers may have been replaced meanwhile, such as the last one by resize_token_embeddings.
    for module in model.modules():
        if isinstance(vars(module).get("forward"), StandIn):
            del module.forward
    if state.precision is None:
        for layer in (layer for decoder in state.decoders.values() for layer in decoder.layers):
            separate([*layer.source.qkv, *layer.source.gate_up])
    if state.attention is not None:
        model.set_attn_implementation(state.attention)
    delattr(model, _STATE)
    return model


def describe(model: Any) -> str:
    """What of a model runs on the operators of dlinfer, in words."""
    state = getattr(model, _STATE, None)
    if state is None:
        used = getattr(model.config, "_attn_implementation", None) == NAME
        return "attention on dlinfer" if used else "nothing on dlinfer"
    lines = ["attention on dlinfer"]
    kept = "" if state.gone else ", the model's own kept"
    kind = f"weights in {state.precision}{kept}" if state.precision else "weights as they were"
    for name, decoder in state.decoders.items():
        lines.append(f"{name or type(model).__name__}: {len(decoder.layers)} layers on dlinfer, {kind}")
    if state.head is not None:
        lines.append(f"{state.head}: on dlinfer, {f'weights in int8{kept}' if state.precision else kind}")
    lines += [f"{name}: as in transformers, {why}" for name, why in state.left.items()]
    return "\n".join(lines)
