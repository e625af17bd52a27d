"""Checkpoints with quantised weights: AWQ of 4 bits and w8a8 are served, others are refused before anything is loaded.

LMDeploy 0.18 would start with some that it cannot serve here, and give wrong answers or fail far from the cause.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from dlinfer import ops
from dlinfer.framework.lmdeploy_ext.device_types import serves

__all__ = ["install", "weight_problem"]

_SERVED = "dlinfer serves LMDeploy with awq (4 bits) and smooth_quant (int8 or float8_e4m3fn) weights"
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


@functools.cache
def install() -> None:
    """Once in a process."""
    _refuse_other_weights()
    _multiply_any_shape()


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

    original = ModelChecker.check_dtype

    @functools.wraps(original)
    def check_dtype(self: Any, config: Any) -> None:
        problem = weight_problem(config) if serves(self.device_type) else ""
        if problem:
            self.log_and_exit(mod_name="dlinfer", message=problem)
        original(self, config)

    ModelChecker.check_dtype = check_dtype


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
