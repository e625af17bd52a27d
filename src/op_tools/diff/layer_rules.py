"""Modules of torch.nn whose forward is one function: computed again on the CPU from what a run recorded, and judged.

What a module gave is held against what its own inputs and weights should give, so the word is "wrong", not "suspect".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class ModuleCall:
    """The tensors of a call and the constants of its module, without a graph."""

    inputs: tuple[Any, ...]
    weights: Mapping[str, Any]
    buffers: Mapping[str, Any]
    constants: Mapping[str, Any]
    training: bool

    @property
    def x(self) -> Any:
        return self.inputs[0]

    def weight(self, name: str) -> Any:
        """A parameter, or None where the module was made without it."""
        return self.weights.get(name)


Function = Callable[..., Any]
# The function, its positional arguments (all tensors among them) and its keyword arguments; None: not one call.
Rule = Callable[[ModuleCall], tuple[Function, tuple[Any, ...], dict[str, Any]] | None]


def _plain(function: Function, *constants: str) -> Rule:
    """A function of the inputs, with constants of the module under the same names."""
    return lambda m: (function, m.inputs, {name: m.constants[name] for name in constants})


def _weighted(function: Function, *constants: str) -> Rule:
    """The same for functions of an input, a weight and a bias."""
    return lambda m: (
        function,
        (m.x, m.weight("weight"), m.weight("bias")),
        {name: m.constants[name] for name in constants},
    )


def _embedding(m: ModuleCall) -> Any:
    if m.constants.get("max_norm") is not None:  # writes to the weight
        return None
    names = ("padding_idx", "scale_grad_by_freq", "sparse")
    return F.embedding, (m.x, m.weight("weight")), {name: m.constants[name] for name in names}


def _layer_norm(m: ModuleCall) -> Any:
    shape = list(m.constants["normalized_shape"])
    return F.layer_norm, (m.x, shape, m.weight("weight"), m.weight("bias"), m.constants["eps"]), {}


def _rms_norm(m: ModuleCall) -> Any:
    return (
        F.rms_norm,
        (m.x, list(m.constants["normalized_shape"]), m.weight("weight"), m.constants["eps"]),
        {},
    )


def _group_norm(m: ModuleCall) -> Any:
    groups = m.constants["num_groups"]
    return F.group_norm, (m.x, groups, m.weight("weight"), m.weight("bias"), m.constants["eps"]), {}


def _batch_norm(m: ModuleCall) -> Any:
    mean, variance = m.buffers.get("running_mean"), m.buffers.get("running_var")
    of_batch = m.training or mean is None
    # The running statistics are only written to while training: without them nothing is.
    kept = (None, None) if of_batch else (mean, variance)
    args = (m.x, *kept, m.weight("weight"), m.weight("bias"), of_batch, 0.0, m.constants["eps"])
    return F.batch_norm, args, {}


def _convolution(function: Function) -> Rule:
    def rule(m: ModuleCall) -> Any:
        if m.constants.get("padding_mode") != "zeros":
            return None
        names = ("stride", "padding", "dilation", "groups")
        options = {name: m.constants[name] for name in names}
        return function, (m.x, m.weight("weight"), m.weight("bias")), options

    return rule


def _transposed(function: Function) -> Rule:
    def rule(m: ModuleCall) -> Any:
        names = ("stride", "padding", "output_padding", "groups", "dilation")
        options = {name: m.constants[name] for name in names}
        return (
            (function, (m.x, m.weight("weight"), m.weight("bias")), options) if len(m.inputs) == 1 else None
        )

    return rule


def _cross_entropy(m: ModuleCall) -> Any:
    names = ("ignore_index", "reduction", "label_smoothing")
    options = {name: m.constants[name] for name in names}
    return F.cross_entropy, (*m.inputs, m.buffers.get("weight")), options


_POOL = ("kernel_size", "stride", "padding", "ceil_mode")
RULES: dict[str, Rule] = {
    "linear.Linear": _weighted(F.linear),
    "sparse.Embedding": _embedding,
    "normalization.LayerNorm": _layer_norm,
    "normalization.RMSNorm": _rms_norm,
    "normalization.GroupNorm": _group_norm,
    "batchnorm.BatchNorm1d": _batch_norm,
    "batchnorm.BatchNorm2d": _batch_norm,
    "batchnorm.BatchNorm3d": _batch_norm,
    "conv.Conv1d": _convolution(F.conv1d),
    "conv.Conv2d": _convolution(F.conv2d),
    "conv.Conv3d": _convolution(F.conv3d),
    "conv.ConvTranspose1d": _transposed(F.conv_transpose1d),
    "conv.ConvTranspose2d": _transposed(F.conv_transpose2d),
    "conv.ConvTranspose3d": _transposed(F.conv_transpose3d),
    "activation.ReLU": _plain(F.relu),
    "activation.ReLU6": _plain(F.relu6),
    "activation.GELU": _plain(F.gelu, "approximate"),
    "activation.SiLU": _plain(F.silu),
    "activation.Mish": _plain(F.mish),
    "activation.Hardswish": _plain(F.hardswish),
    "activation.Sigmoid": _plain(torch.sigmoid),
    "activation.Tanh": _plain(torch.tanh),
    "activation.LogSigmoid": _plain(F.logsigmoid),
    "activation.Softplus": _plain(F.softplus, "beta", "threshold"),
    "activation.LeakyReLU": _plain(F.leaky_relu, "negative_slope"),
    "activation.ELU": _plain(F.elu, "alpha"),
    "activation.Softmax": _plain(F.softmax, "dim"),
    "activation.LogSoftmax": _plain(F.log_softmax, "dim"),
    "activation.PReLU": lambda m: (F.prelu, (m.x, m.weight("weight")), {}),
    "pooling.MaxPool1d": _plain(F.max_pool1d, *_POOL, "dilation"),
    "pooling.MaxPool2d": _plain(F.max_pool2d, *_POOL, "dilation"),
    "pooling.MaxPool3d": _plain(F.max_pool3d, *_POOL, "dilation"),
    "pooling.AvgPool2d": _plain(F.avg_pool2d, *_POOL, "count_include_pad", "divisor_override"),
    "pooling.AdaptiveAvgPool1d": _plain(F.adaptive_avg_pool1d, "output_size"),
    "pooling.AdaptiveAvgPool2d": _plain(F.adaptive_avg_pool2d, "output_size"),
    "loss.CrossEntropyLoss": _cross_entropy,
    "loss.MSELoss": _plain(F.mse_loss, "reduction"),
}


def is_random(values: LayerValues) -> bool:
    """Whether the module draws random numbers: two devices never draw the same."""
    kind = str(values.facts.get("class", ""))
    return kind.startswith(_HOME) and kind.rpartition(".")[2] in _DROPOUTS and _draws(values.facts)


def _draws(facts: Mapping[str, Any]) -> bool:
    constants = facts.get("constants")
    rate = constants.get("p", 1) if isinstance(constants, dict) else 1
    return bool(facts.get("training")) and rate != 0


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


def _call_of(values: LayerValues) -> tuple[Function, tuple[Any, ...], dict[str, Any]] | None:
    facts = values.facts
    kind, constants = str(facts.get("class", "")), facts.get("constants")
    rule = RULES.get(kind.removeprefix(_HOME)) if kind.startswith(_HOME) else None
    everything = (*values.inputs, *values.weights.values(), *values.buffers.values(), *values.outputs)
    readable = all(isinstance(value, Tensor) for value in everything)
    if rule is None or not isinstance(constants, dict) or not readable or not values.inputs:
        return None
    if len(values.outputs) != 1:
        return None
    recorded = ModuleCall(
        values.inputs, values.weights, values.buffers, constants, bool(facts.get("training"))
    )
    try:
        return rule(recorded)
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
