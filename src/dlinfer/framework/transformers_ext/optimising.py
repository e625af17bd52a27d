"""Putting a model on the operators of dlinfer, and taking it off again."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any, get_args

from torch import nn

from dlinfer.framework.transformers_ext.attention import NAME
from dlinfer.framework.transformers_ext.families import FAMILIES, family_of, problem_of
from dlinfer.framework.transformers_ext.linears import Head
from dlinfer.framework.transformers_ext.projections import Precision, separate
from dlinfer.framework.transformers_ext.stack import Stack

__all__ = ["describe", "optimise", "restore"]

_STATE = "_dlinfer"


@dataclass
class _State:
    """What was done to a model."""

    attention: str | None
    precision: Precision | None
    stacks: dict[str, Stack] = field(default_factory=dict)
    head: str | None = None
    left: dict[str, str] = field(default_factory=dict)
    """Decoders that could not be put on the operators, and why."""


def optimise(model: Any, weights: Precision | None = None) -> Any:
    """Puts a model of transformers on the operators of dlinfer, in place, and returns it. `restore` takes it back.

    Decoders of known families (Llama, Mistral, Qwen2, Qwen3; also inside larger models) run as a whole: joined linear
    layers, fused norms and activations, a paged cache. Any other model gets dlinfer's attention only, and a warning says so.

    Args:
        model: a `PreTrainedModel`, in eval mode and on its device already.
        weights: None keeps the weights as they are. "int8" or "int4" stores those of the linear layers in few bits; they are
            read faster and rounded. The model's own weights stay for `restore`.
    """
    if weights is not None and weights not in get_args(Precision):
        raise ValueError(
            f"weights is {weights!r}, expected None, {' or '.join(map(repr, get_args(Precision)))}"
        )
    if not hasattr(model, "set_attn_implementation"):
        raise TypeError(f"optimise takes a model of transformers, not a {type(model).__name__}")
    if getattr(model, _STATE, None) is not None:
        raise RuntimeError("this model is optimised already: call restore(model) first to change how")
    state = _State(model.config._attn_implementation, weights)
    for name, module in model.named_modules():
        if family_of(module) is not None:
            problem = problem_of(module)
            if problem is None:
                state.stacks[name] = Stack(module, weights)
                module.forward = state.stacks[name]  # type: ignore[assignment]
            else:
                state.left[name] = problem
    if state.stacks:
        state.head = _optimise_head(model, weights)
    _warn(model, state)
    model.set_attn_implementation(NAME)
    setattr(model, _STATE, state)
    return model


def _optimise_head(model: Any, weights: Precision | None) -> str | None:
    """The last layer reads as much memory as several others."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if type(head) is not nn.Linear or "forward" in vars(head):
        return None
    head.forward = Head(head, weights)  # type: ignore[method-assign]
    return next(name for name, module in model.named_modules() if module is head)


def _warn(model: Any, state: _State) -> None:
    if state.stacks and not state.left:
        return
    reasons = "; ".join(f"{name or type(model).__name__}: {why}" for name, why in state.left.items())
    reasons = reasons or f"its layers are of no known family ({', '.join(FAMILIES)})"
    whose = f"a part of {type(model).__name__}" if state.stacks else type(model).__name__
    warnings.warn(f"dlinfer: {whose} gets dlinfer's attention only; {reasons}", stacklevel=3)


def restore(model: Any) -> Any:
    """Takes `optimise` back: the model is transformers' own again, with weights in memory of their own. Returns it."""
    state = getattr(model, _STATE, None)
    if state is None:
        raise RuntimeError("this model is not optimised")
    for name, stack in state.stacks.items():
        del model.get_submodule(name).forward
        for layer in stack.layers:
            for linear, _ in layer.separate:
                del linear.forward
            if state.precision is None:
                separate([*layer.source.qkv, *layer.source.gate_up])
    if state.head is not None:
        del model.get_submodule(state.head).forward
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
    kind = f"weights in {state.precision}" if state.precision else "weights as they were"
    for name, stack in state.stacks.items():
        lines.append(f"{name or type(model).__name__}: {len(stack.layers)} layers on dlinfer, {kind}")
    if state.head is not None:
        lines.append(f"{state.head}: on dlinfer, {'weights in int8' if state.precision else kind}")
    lines += [f"{name}: as in transformers, {why}" for name, why in state.left.items()]
    return "\n".join(lines)
