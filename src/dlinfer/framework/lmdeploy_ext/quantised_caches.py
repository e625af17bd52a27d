"""`quant_policy=8`: caches of 8 bits, with fixed scales from a record file. Other kinds of small caches are refused.

LMDeploy 0.18 makes such caches of numbers without a sign, which loses every negative key of a file with offsets of 0. It keeps
the scales in one place for all engines of a process, and only without graphs. Here caches have a sign, as the files expect, and
every layer of attention has its own scales, in graphs too.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dlinfer.framework.lmdeploy_ext.device_types import serves
from dlinfer.vendor.ascend.cache_scales import LayerScales, layer_scales, recorded_scales

__all__ = ["install", "policy_problem"]


@functools.cache
def install() -> None:
    """Once in a process."""
    _keep_signs()
    _give_scales_to_layers()


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

    dtype_of, scales_of = schema._resolve_kv_cache_dtype, schema.build_quant_cache_descs

    @functools.wraps(dtype_of)
    def resolve(model_config: Any, quant_policy: Any) -> torch.dtype:
        if quant_policy == QuantPolicy.INT8 and serves(get_backend().get_name()):
            return torch.int8
        found: torch.dtype = dtype_of(model_config, quant_policy)
        return found

    @functools.wraps(scales_of)
    def build(*args: Any, **kwargs: Any) -> list[Any]:
        found: list[Any] = [] if serves(get_backend().get_name()) else scales_of(*args, **kwargs)
        return found

    schema._resolve_kv_cache_dtype, schema.build_quant_cache_descs = resolve, build


def _give_scales_to_layers() -> None:
    """When the model is there, before its first step."""
    from lmdeploy.messages import QuantPolicy
    from lmdeploy.pytorch.backends.dlinfer.ascend import AscendOpsBackend
    from lmdeploy.pytorch.backends.dlinfer.ascend.op_backend import AscendKVQuantMeta

    original = AscendOpsBackend.build_graph_runner

    @functools.wraps(original)
    def build(model: Any, model_config: Any, cache_config: Any, backend_config: Any, device: Any) -> Any:
        if cache_config.quant_policy == QuantPolicy.INT8:
            _give_scales(model, device, model_config.dtype)
        return original(model, model_config, cache_config, backend_config, device)

    AscendOpsBackend.build_graph_runner = staticmethod(build)
    # Would fill the place that all engines share, which no layer may read any more.
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
