"""Quantised checkpoints of small models, and transformers with the same arithmetic in plain torch.

Weights on disk are quantised here. What LMDeploy answers is compared with transformers in float32 that computes with the restored
weights (AWQ), rounds what it multiplies (w8a8), or rounds what it keeps of keys and values (caches of 8 bits).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdeploy_models
import torch
from lmdeploy_models import SmallModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DynamicCache

GROUP = 32
_LAYERS = re.compile(r"(q|k|v|o|gate|up|down)_proj\.weight$|experts\.\d+\.w[123]\.weight$")
# Nibbles of an AWQ checkpoint, from the low one.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def awq(folder: Path) -> SmallModel:
    """Weights of 4 bits with a scale and a zero for every 32 of an output; the rest in float16."""
    model = lmdeploy_models.qwen2(folder)  # with biases, which stay in float16
    tensors = {name: value.half() for name, value in _saved(folder).items()}
    restored = {name: value.float() for name, value in tensors.items()}
    for name in filter(_LAYERS.search, list(tensors)):
        number, scale, zero = _of_4_bits(tensors.pop(name).float())
        restored[name] = ((number - zero.repeat_interleave(GROUP, 0)) * scale.repeat_interleave(GROUP, 0)).t()
        stem = name.removesuffix("weight")
        tensors |= {
            f"{stem}qweight": _packed(number),
            f"{stem}qzeros": _packed(zero),
            f"{stem}scales": scale.half(),
        }
    model.reference.load_state_dict(restored, strict=False)  # both ends of the vocabulary are one matrix
    setting = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}
    _save(folder, tensors, setting)
    return model


def _of_4_bits(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers [in, out] from 0 to 15, scales and zeros [groups, out]."""
    groups = weight.t().reshape(weight.shape[1] // GROUP, GROUP, -1)
    low, high = groups.amin(1).clamp(max=0), groups.amax(1).clamp(min=0)
    scale = ((high - low) / 15).half().float()
    zero = (-low / scale).round().clamp(0, 15)
    number = (groups / scale[:, None] + zero[:, None]).round().clamp(0, 15)
    return number.flatten(0, 1), scale, zero


def _packed(number: Tensor) -> Tensor:
    """Eight neighbours of a row in an int32."""
    nibbles = number.to(torch.int64).unflatten(1, (-1, 8))[..., list(_AWQ_ORDER)]
    word = (nibbles << torch.arange(0, 32, 4)).sum(-1)
    return torch.where(word >= 1 << 31, word - (1 << 32), word).to(torch.int32)


def w8a8(folder: Path, model: SmallModel, dtype: torch.dtype = torch.int8) -> SmallModel:
    """Weights of 8 bits with a scale for each output, as `lmdeploy lite smooth_quant` writes them."""
    tensors = _saved(folder)
    for name in filter(_LAYERS.search, list(tensors)):
        tensors[name], scale = _of_8_bits(tensors[name], dtype)
        tensors[name.removesuffix("weight") + "scale"] = scale
    for name, module in model.reference.named_modules():
        if _LAYERS.search(f"{name}.weight"):
            weight = _of_8_bits(module.weight, dtype)
            module.forward = functools.partial(_linear, weight=weight, bias=module.bias)
        elif name.endswith(".experts"):
            module.forward = functools.partial(_experts, module)
    _save(folder, tensors, {"quant_method": "smooth_quant", "quant_dtype": str(dtype).removeprefix("torch.")})
    return model


def _of_8_bits(rows: Tensor, dtype: torch.dtype = torch.int8) -> tuple[Tensor, Tensor]:
    """Rows of 8 bits, as far below 0 as above it, and their scales [rows, 1]."""
    rows = rows.detach().float()
    largest = 127 if dtype is torch.int8 else torch.finfo(dtype).max
    scale = rows.abs().amax(-1, keepdim=True) / largest
    number = rows / scale
    return (number.round() if dtype is torch.int8 else number).to(dtype), scale


def _linear(hidden: Tensor, weight: tuple[Tensor, Tensor], bias: Tensor | None = None) -> Tensor:
    number, scale = weight
    rounded, row_scale = _of_8_bits(hidden, number.dtype)
    product = (rounded.double() @ number.double().t()) * row_scale * scale.t()
    return (product if bias is None else product + bias).to(hidden.dtype)


def _experts(module: Any, hidden: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
    """Every token by itself: slow, and easy to believe."""
    rows = []
    for token, experts, weights in zip(hidden, chosen, shares, strict=True):
        row = torch.zeros_like(token)
        for expert, share in zip(experts.tolist(), weights, strict=True):
            both = _linear(token[None], _of_8_bits(module.gate_up_proj[expert]))
            gate, up = both.chunk(2, -1)
            middle = torch.nn.functional.silu(gate) * up
            row += share * _linear(middle, _of_8_bits(module.down_proj[expert]))[0]
        rows.append(row)
    return torch.stack(rows)


class RoundedCache(DynamicCache):
    """Keys and values of 8 bits with a fixed scale and offset for each layer: what decoding reads."""

    def __init__(self, scales: Sequence[tuple[float, int, float, int]]) -> None:
        super().__init__()
        self.scales = scales

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> Any:
        """A prompt attends to itself as it is; all that comes later, to what was kept."""
        first = self.get_seq_length(layer_idx) == 0
        key_scale, key_zero, value_scale, value_zero = self.scales[layer_idx]
        kept = super().update(
            _kept(key_states, key_scale, key_zero), _kept(value_states, value_scale, value_zero), layer_idx
        )
        return (key_states, value_states) if first else kept


def _kept(states: Tensor, scale: float, zero: int) -> Tensor:
    return ((states / scale + zero).round().clamp(-128, 127) - zero) * scale


def record(scales: Sequence[tuple[float, int, float, int]]) -> str:
    """The file of ASCEND_QUANT_RECORD_FILE: scale and offset of keys, then of values, layer by layer."""
    text = 'record {{\n  key: "model.layers.{}.{}"\n  value {{\n    scale: {}\n    offset: {}\n  }}\n}}\n'
    lines = []
    for number, (key_scale, key_zero, value_scale, value_zero) in enumerate(scales):
        lines += [
            text.format(number, "k", key_scale, key_zero),
            text.format(number, "v", value_scale, value_zero),
        ]
    return "".join(lines)


def _saved(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def _save(folder: Path, tensors: dict[str, Tensor], setting: dict[str, Any]) -> None:
    whole = {name: value.contiguous() for name, value in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": setting}))
