"""Modules of torch.nn whose forward is one function: computed again on the CPU from what a run recorded, and judged.

What a module gave is held against what its own inputs and weights should give, so the word is "wrong", not "suspect".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from op_tools.captured import CallJudge, CapturedCall
from op_tools.diff.layer_values import LayerValues
from op_tools.names import name_of
from op_tools.reference.recompute import RecomputeError
from op_tools.trees import flat_tensors
from op_tools.verdict import Verdict

__all__ = ["is_random", "judged"]

_HOME = "torch.nn.modules."
_DROPOUTS = frozenset(
    ["Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "AlphaDropout", "FeatureAlphaDropout", "RReLU"]
)

Function = Callable[..., Any]
# The function, its arguments and its keyword arguments.
ModuleCall = tuple[Function, tuple[Any, ...], dict[str, Any]]
# Of a call's values and its module's constants; None: not one function.
Rule = Callable[[LayerValues, Mapping[str, Any]], ModuleCall | None]


def _rule(function: Function, weights: str = "", constants: str = "", **only_with: Any) -> Rule:
    """A function of the inputs, with weights and constants of the module under the same names; holds where the constants
    in `only_with` have these values."""

    def rule(values: LayerValues, given: Mapping[str, Any]) -> ModuleCall | None:
        if any(given.get(name) != value for name, value in only_with.items()):
            return None
        named = {**values.buffers, **values.weights}  # a weight that the module was made without is None
        options = {name: named.get(name) for name in weights.split()}
        return function, values.inputs, options | {name: given[name] for name in constants.split()}

    return rule


def _batch_norm(values: LayerValues, constants: Mapping[str, Any]) -> ModuleCall:
    mean, variance = values.buffers.get("running_mean"), values.buffers.get("running_var")
    of_batch = bool(values.facts.get("training")) or mean is None
    # The running statistics are only written to while training: without them nothing is.
    kept = (None, None) if of_batch else (mean, variance)
    weights = (values.weights.get("weight"), values.weights.get("bias"))
    return F.batch_norm, (values.inputs[0], *kept, *weights, of_batch, 0.0, constants["eps"]), {}


def _convolution(function: Function) -> Rule:
    return _rule(function, "weight bias", "stride padding dilation groups", padding_mode="zeros")


def _transposed(function: Function) -> Rule:
    return _rule(function, "weight bias", "stride padding output_padding groups dilation")


_POOL = "kernel_size stride padding ceil_mode"
RULES: dict[str, Rule] = {
    "linear.Linear": _rule(F.linear, "weight bias"),
    # With max_norm it writes to the weight.
    "sparse.Embedding": _rule(F.embedding, "weight", "padding_idx scale_grad_by_freq sparse", max_norm=None),
    "normalization.LayerNorm": _rule(F.layer_norm, "weight bias", "normalized_shape eps"),
    "normalization.RMSNorm": _rule(F.rms_norm, "weight", "normalized_shape eps"),
    "normalization.GroupNorm": _rule(F.group_norm, "weight bias", "num_groups eps"),
    "batchnorm.BatchNorm1d": _batch_norm,
    "batchnorm.BatchNorm2d": _batch_norm,
    "batchnorm.BatchNorm3d": _batch_norm,
    "conv.Conv1d": _convolution(F.conv1d),
    "conv.Conv2d": _convolution(F.conv2d),
    "conv.Conv3d": _convolution(F.conv3d),
    "conv.ConvTranspose1d": _transposed(F.conv_transpose1d),
    "conv.ConvTranspose2d": _transposed(F.conv_transpose2d),
    "conv.ConvTranspose3d": _transposed(F.conv_transpose3d),
    "activation.ReLU": _rule(F.relu),
    "activation.ReLU6": _rule(F.relu6),
    "activation.GELU": _rule(F.gelu, constants="approximate"),
    "activation.SiLU": _rule(F.silu),
    "activation.Mish": _rule(F.mish),
    "activation.Hardswish": _rule(F.hardswish),
    "activation.Sigmoid": _rule(torch.sigmoid),
    "activation.Tanh": _rule(torch.tanh),
    "activation.LogSigmoid": _rule(F.logsigmoid),
    "activation.Softplus": _rule(F.softplus, constants="beta threshold"),
    "activation.LeakyReLU": _rule(F.leaky_relu, constants="negative_slope"),
    "activation.ELU": _rule(F.elu, constants="alpha"),
    "activation.Softmax": _rule(F.softmax, constants="dim"),
    "activation.LogSoftmax": _rule(F.log_softmax, constants="dim"),
    "activation.PReLU": _rule(F.prelu, "weight"),
    "pooling.MaxPool1d": _rule(F.max_pool1d, constants=f"{_POOL} dilation"),
    "pooling.MaxPool2d": _rule(F.max_pool2d, constants=f"{_POOL} dilation"),
    "pooling.MaxPool3d": _rule(F.max_pool3d, constants=f"{_POOL} dilation"),
    "pooling.AvgPool2d": _rule(F.avg_pool2d, constants=f"{_POOL} count_include_pad divisor_override"),
    "pooling.AdaptiveAvgPool1d": _rule(F.adaptive_avg_pool1d, constants="output_size"),
    "pooling.AdaptiveAvgPool2d": _rule(F.adaptive_avg_pool2d, constants="output_size"),
    "loss.CrossEntropyLoss": _rule(F.cross_entropy, "weight", "ignore_index reduction label_smoothing"),
    "loss.MSELoss": _rule(F.mse_loss, constants="reduction"),
}


def is_random(values: LayerValues) -> bool:
    """Whether the module draws random numbers: two devices never draw the same."""
    kind = str(values.facts.get("class", ""))
    constants = values.facts.get("constants")
    rate = constants.get("p", 1) if isinstance(constants, dict) else 1
    drops = kind.startswith(_HOME) and kind.rpartition(".")[2] in _DROPOUTS and rate != 0
    return drops and bool(values.facts.get("training"))


def judged(values: LayerValues) -> dict[str, Verdict]:
    """The verdict of each part (output, grad_input[0], grad_weight:bias) that can be computed again; else nothing."""
    call = _call_of(values)
    if call is None:
        return {}
    function, args, kwargs = call
    captured = CapturedCall(name_of(function), args, kwargs, values.outputs, None, None, values.header)
    judge = CallJudge(function, captured)
    found: dict[str, Verdict] = {}
    try:
        with torch.no_grad():  # what was loaded says that it wants gradients
            found["output"] = judge.judged(values.outputs[0], judge.forward, 0)
            wanted = _wanted(values, args, kwargs)
            grads = values.grad_outputs[:1]
            if wanted and grads and isinstance(grads[0], Tensor):
                backward = judge.backward(grads, list(wanted))
                for index, (part, grad) in enumerate(wanted.values()):
                    if backward.own()[index] is not None:
                        found[part] = judge.judged(grad, backward, index)
    except (RecomputeError, NotImplementedError):  # no such kernel on the CPU: nothing is said of this module
        return found
    return found


def _call_of(values: LayerValues) -> ModuleCall | None:
    kind, constants = str(values.facts.get("class", "")), values.facts.get("constants")
    rule = RULES.get(kind.removeprefix(_HOME)) if kind.startswith(_HOME) else None
    everything = (*values.inputs, *values.weights.values(), *values.buffers.values(), *values.outputs)
    readable = all(isinstance(value, Tensor) for value in everything)
    if rule is None or not isinstance(constants, dict) or not readable:
        return None
    if not values.inputs or len(values.outputs) != 1:
        return None
    try:
        return rule(values, constants)
    except (KeyError, TypeError):  # a module of another version of torch: its constants have other names
        return None


def _wanted(values: LayerValues, args: Any, kwargs: Any) -> dict[int, tuple[str, Tensor]]:
    """Which tensor arguments have a recorded gradient: their index among the arguments, part and gradient."""
    parts: dict[int, tuple[str, Tensor]] = {}
    for index, (tensor, grad) in enumerate(zip(values.inputs, values.grad_inputs, strict=False)):
        if isinstance(grad, Tensor):
            several = len(values.grad_inputs) > 1
            parts[id(tensor)] = (f"grad_input[{index}]" if several else "grad_input", grad)
    for name, tensor in values.weights.items():
        grad = values.grad_weights.get(name)
        if isinstance(grad, Tensor):
            parts[id(tensor)] = (f"grad_weight:{name}", grad)
    flat = flat_tensors(args, kwargs)
    return {index: parts[id(tensor)] for index, tensor in enumerate(flat) if id(tensor) in parts}
