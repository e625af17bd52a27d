"""Checkpoints with quantised weights, and caches of 8 bits (`quant_policy=8`)."""

from __future__ import annotations

import functools
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dlinfer import ops
from dlinfer.framework.lmdeploy.devices import serves
from dlinfer.framework.lmdeploy.replacing import around


@functools.cache
def install() -> None:
    """Once in a process."""
    _refuse_other_weights()
    _multiply_any_shape()
    _keep_signs()
    _give_scales_to_layers()


# ---- weights ----
#
# Checkpoints with quantised weights: AWQ of 4 bits and w8a8 are served, others are refused before anything is loaded.
#
# LMDeploy 0.18 would start with some that it cannot serve here, and give wrong answers or fail far from the cause.

_SERVED = "dlinfer serves LMDeploy with awq (4 bits) and smooth_quant (int8 or float8_e4m3fn) weights"
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def weight_problem(hf_config: Any) -> str:
    """Why the weights of a checkpoint cannot be served; empty if they can or are not quantised."""
    parts = (hf_config, getattr(hf_config, "llm_config", None), getattr(hf_config, "text_config", None))
    for part in parts:
        setting = getattr(part, "quantization_config", None)
        if setting:
            unserved = _unserved(setting, any(getattr(part, name, 0) for name in _EXPERTS))
            return f"quantization_config of the checkpoint: {unserved}. {_SERVED}." if unserved else ""
    return ""


def _unserved(setting: Mapping[str, Any], experts: bool) -> str:
    method = setting.get("quant_method")
    if method == "awq":
        return _unserved_awq(setting, experts)
    if method != "smooth_quant":
        return f"quant_method is {method!r}"
    dtype = setting.get("quant_dtype") or "int8"
    served = ("int8",) if experts else ("int8", "float8_e4m3fn")
    why = " for a model with experts" if experts else ""
    return "" if dtype in served else f"quant_dtype is {dtype!r}, expected {' or '.join(served)}{why}"


def _unserved_awq(setting: Mapping[str, Any], experts: bool) -> str:
    expected = {"bits": (4,), "zero_point": (True,), "version": ("gemm",)}
    for name, values in expected.items():
        found = setting.get(name, values[0])
        found = found.lower() if isinstance(found, str) else found
        if found not in values:
            return f"{name} is {found!r}, expected {values[0]!r} for awq"
    size = setting.get("group_size", 128)
    if not isinstance(size, int) or size < 1:
        return f"group_size is {size!r}, expected at least 1 for awq"
    whole = setting.get("modules_to_not_convert") or setting.get("ignored_layers")
    return "awq for a model with experts, which LMDeploy does not load" if experts and not whole else ""


def _refuse_other_weights() -> None:
    """Where LMDeploy looks at a checkpoint's configuration first."""
    from lmdeploy.pytorch.check_env.model import ModelChecker

    @around(ModelChecker, "check_dtype")
    def check_dtype(original: Any, self: Any, config: Any) -> None:
        problem = weight_problem(config) if serves(self.device_type) else ""
        if problem:
            self.log_and_exit(mod_name="dlinfer", message=problem)
        original(self, config)


def _multiply_any_shape() -> None:
    """LMDeploy takes the first dimension away and puts it back. A graph for all sizes does not know that it is 1."""
    from lmdeploy.pytorch.backends.dlinfer.awq_modules import AwqLinearW4A16Impl

    def forward(
        self: Any,
        x: Tensor,
        qweight: Tensor,
        scales: Tensor,
        qzeros: Tensor,
        bias: Tensor | None = None,
        all_reduce: bool = False,
        group: Any = None,
    ) -> Tensor:
        return ops.weight_quant_matmul(x, qweight, scales, qzeros, bias, all_reduce, self.group_size)

    AwqLinearW4A16Impl.forward = forward


# ---- caches ----
#
# `quant_policy=8`: caches of 8 bits, with fixed scales from a record file. Other kinds of small caches are refused.
#
# LMDeploy 0.18 makes such caches of numbers without a sign, which loses every negative key of a file with offsets of 0. It keeps
# the scales once for all engines of a process, and only without graphs. Here caches have a sign, as the files expect, and
# every layer of attention has its own scales, in graphs too.


def policy_problem(quant_policy: int) -> str:
    """Why an engine cannot have the caches that it asks for; empty if it can."""
    from lmdeploy.messages import QuantPolicy

    if quant_policy == QuantPolicy.NONE:
        return ""
    if quant_policy != QuantPolicy.INT8:
        return (
            f"quant_policy={int(quant_policy)} asks for caches that LMDeploy gives dlinfer no scales for. "
            "Use quant_policy=8 with a file of scales, or quant_policy=0: docs/lmdeploy.md."
        )
    try:
        recorded_scales()
    except ValueError as error:
        return str(error)
    return ""


def _keep_signs() -> None:
    """Caches of int8, and none beside them for the scales of each token, which this device type never reads."""
    from lmdeploy.messages import QuantPolicy
    from lmdeploy.pytorch.backends import get_backend
    from lmdeploy.pytorch.engine.cache_engine import schema

    @around(schema, "_resolve_kv_cache_dtype")
    def resolve(original: Any, model_config: Any, quant_policy: Any) -> Any:
        if quant_policy == QuantPolicy.INT8 and serves(get_backend().get_name()):
            return torch.int8
        return original(model_config, quant_policy)

    @around(schema, "build_quant_cache_descs")
    def build(original: Any, *args: Any, **kwargs: Any) -> Any:
        return [] if serves(get_backend().get_name()) else original(*args, **kwargs)


def _give_scales_to_layers() -> None:
    """When the model is there, before its first step."""
    from lmdeploy.messages import QuantPolicy
    from lmdeploy.pytorch.backends.dlinfer.ascend import AscendOpsBackend
    from lmdeploy.pytorch.backends.dlinfer.ascend.op_backend import AscendKVQuantMeta

    @around(AscendOpsBackend, "build_graph_runner")
    def build(
        original: Any, model: Any, model_config: Any, cache_config: Any, backend_config: Any, device: Any
    ) -> Any:
        if cache_config.quant_policy == QuantPolicy.INT8:
            _give_scales(model, device, model_config.dtype)
        return original(model, model_config, cache_config, backend_config, device)

    # Would fill the scales that all engines share, which no layer may read any more.
    AscendKVQuantMeta.set_value = staticmethod(lambda *args: None)


class _Tensors(NamedTuple):
    """A layer's scales as the operators take them: for keys, for values, and for both."""

    key: list[Tensor]
    value: list[Tensor]
    scales: Tensor
    zeros: Tensor


def _give_scales(model: Any, device: Any, dtype: torch.dtype) -> None:
    from lmdeploy.pytorch.backends.dlinfer.attention import DlinferAttentionImpl

    # Modules are in the order in which they were made, which is the order of the layers.
    parts = (getattr(module, "impl", None) for module in model.modules())
    layers = [part for part in parts if isinstance(part, DlinferAttentionImpl)]
    for layer, found in zip(layers, layer_scales(recorded_scales(), len(layers)), strict=True):
        tensors = _tensors(found, device, dtype)
        layer.fill_kv_cache = functools.partial(_fill, layer.fill_kv_cache, tensors)
        layer.paged_attention_fwd = functools.partial(_attend, layer.paged_attention_fwd, tensors)


def _tensors(found: LayerScales, device: Any, dtype: torch.dtype) -> _Tensors:
    key, value = (torch.tensor(one, dtype=dtype, device=device).split(1) for one in found)
    both = torch.tensor(found, dtype=dtype, device=device).t().contiguous()
    return _Tensors(list(key), list(value), both[0], both[1])


def _fill(original: Any, tensors: _Tensors, *args: Any, **kwargs: Any) -> Any:
    return original(*args, **{**kwargs, "k_scales_zeros": tensors.key, "v_scales_zeros": tensors.value})


def _attend(original: Any, tensors: _Tensors, *args: Any, **kwargs: Any) -> Any:
    return original(*args, **{**kwargs, "kv_scales": tensors.scales, "kv_zeros": tensors.zeros})


# ---- the file of scales; the variable and the format are fixed by LMDeploy ----

VARIABLE = "ASCEND_QUANT_RECORD_FILE"
_INSTEAD = "Or use quant_policy=0, which needs none"
_PAIR = re.compile(r"scale:\s*([^\s,}]+)[\s,]*offset:\s*([^\s,}]+)")


class CacheScaleError(ValueError):
    """The scales of 8-bit caches cannot be had: what was wrong, what was expected, what to do."""


class Scale(NamedTuple):
    """A number x is kept as round(x / scale + offset), from -128 to 127."""

    scale: float
    offset: int


class LayerScales(NamedTuple):
    """Those of one layer's keys and values."""

    key: Scale
    value: Scale


def recorded_scales(environment: Mapping[str, str] = os.environ) -> list[Scale]:
    """All scales of the file, in its order."""
    name = environment.get(VARIABLE, "")
    if not name:
        raise CacheScaleError(
            f"quant_policy=8 needs scales for keys and values, and {VARIABLE} is not set. "
            f"Set it to the absolute path of a record file: docs/lmdeploy.md says what is in it. {_INSTEAD}."
        )
    path = Path(name)
    if not path.is_absolute():
        raise CacheScaleError(f"{VARIABLE}={name!r} is relative, expected an absolute path. {_INSTEAD}.")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CacheScaleError(
            f"{VARIABLE}={name!r} cannot be read: {error}. Set it to a record file. {_INSTEAD}."
        ) from error
    found = [_scale(name, *pair) for pair in _PAIR.findall(text)]
    if not found:
        raise CacheScaleError(
            f"{name} has no 'scale: NUMBER offset: NUMBER', expected one for each layer. {_INSTEAD}."
        )
    return found


def _scale(name: str, scale: str, offset: str) -> Scale:
    try:
        step, zero = float(scale), float(offset)
    except ValueError:
        step = zero = math.nan
    if not (0 < step < math.inf and -128 <= zero <= 127 and zero.is_integer()):
        raise CacheScaleError(
            f"{name} has 'scale: {scale} offset: {offset}', expected a scale above 0 and a whole offset from -128 to 127."
        )
    return Scale(step, int(zero))


def layer_scales(scales: list[Scale], layers: int) -> list[LayerScales]:
    """The scales of each layer: one for keys and values, or one for keys and then one for values."""
    if len(scales) == layers:
        return [LayerScales(scale, scale) for scale in scales]
    if len(scales) == 2 * layers:
        return [LayerScales(*pair) for pair in zip(scales[::2], scales[1::2], strict=True)]
    raise CacheScaleError(
        f"{os.environ.get(VARIABLE, VARIABLE)} has {len(scales)} scales, and the model has {layers} layers of attention. "
        f"Expected {layers} scales, or {2 * layers} with those of keys and values in turn. {_INSTEAD}."
    )
