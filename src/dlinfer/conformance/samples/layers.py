"""Samples: norms, activations, rotary embedding, layouts."""

from __future__ import annotations

import torch
from torch import Tensor

from dlinfer.conformance.sampling import Arguments, Draw, Samples

_SHAPES = (
    (1, 8),
    (3, 64),
    (2, 5, 32),
    (7, 100),
    (1, 4, 576),
    (33, 48),
    (5, 1),
    (0, 16),
    (2, 3, 4, 24),
    (128,),
)
_NORMS = ("plain", "large", "small", "a row of zeros", "strided", "float32 weight", "large epsilon")


def _hidden(draw: Draw, label: str) -> Tensor:
    shape = draw.choice(_SHAPES)
    value = draw.normal(*shape, scale={"large": 100.0, "small": 1e-3}.get(label, 1.0))
    if label == "a row of zeros" and value.numel():
        value.view(-1, shape[-1])[0] = 0
    return draw.spaced(value) if label == "strided" else value


def _norm(draw: Draw, label: str) -> Arguments:
    hidden = _hidden(draw, label)
    weight = draw.normal(hidden.shape[-1], dtype=torch.float32 if label == "float32 weight" else None)
    epsilon = 0.1 if label == "large epsilon" else draw.choice((1e-6, 1e-5))
    return {"hidden_states": hidden, "weight": weight, "epsilon": epsilon}


def _add_norm(draw: Draw, label: str) -> Arguments:
    given = _norm(draw, label)
    residual = draw.normal(*given["hidden_states"].shape, scale=2.0)
    return {"hidden_states": given["hidden_states"], "residual": residual, **given}


def _norm_w8a8(draw: Draw, label: str) -> Arguments:
    return {**_norm(draw, label), "quant_dtype": _quant_dtype(draw)}


def _add_norm_w8a8(draw: Draw, label: str) -> Arguments:
    return {**_add_norm(draw, label), "quant_dtype": _quant_dtype(draw)}


def _quant_dtype(draw: Draw) -> torch.dtype:
    return draw.choice((torch.int8, torch.int8, torch.int8, torch.float8_e4m3fn))


def _silu(draw: Draw, label: str) -> Arguments:
    dim = {"first dimension": 0, "middle dimension": 1}.get(label, -1)
    shape = list(draw.choice(((4, 6), (1, 128), (2, 4, 10), (8, 8, 8), (6, 2, 1152), (2, 0, 4))))
    if dim == 1 and len(shape) < 3:
        shape = [2, 6, 5]
    shape[dim] += shape[dim] % 2
    value = draw.normal(*shape, scale={"large": 30.0, "small": 1e-3}.get(label, 1.0))
    return {"input_tensor": draw.spaced(value) if label == "strided" else value, "dim": dim}


def _tables(draw: Draw, tokens: int, rotary: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    positions = draw.integers(0, 4096, tokens).to(torch.float64).unsqueeze(1)
    frequencies = 10000.0 ** (-torch.arange(0, rotary, 2, dtype=torch.float64) / rotary)
    angles = torch.cat([positions * frequencies] * 2, -1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotary(draw: Draw, label: str) -> Arguments:
    lead = draw.choice(((6,), (1,), (1, 5), (2, 3), (1, 17)))
    heads, kv_heads = draw.choice(((4, 4), (8, 2), (9, 3), (5, 1)))
    size = draw.choice((8, 16, 64, 128))
    rotary = size // 2 if label == "part of the head" else size
    tokens = torch.Size(lead).numel()
    dtype = torch.float32 if label == "float32 tables" else draw.dtype
    cos, sin = _tables(draw, tokens, rotary, dtype)
    if label == "tables of four dimensions":
        cos, sin = cos.view(*lead, 1, rotary), sin.view(*lead, 1, rotary)
    query, key = draw.normal(*lead, heads, size), draw.normal(*lead, kv_heads, size)
    if label == "strided":
        query, key = draw.spaced(query), draw.spaced(key)
    return {"query": query, "key": key, "cos": cos, "sin": sin}


def _interleaved(draw: Draw, label: str) -> Arguments:
    tokens, heads, size = draw.choice((1, 4, 9)), draw.choice((1, 3, 8)), draw.choice((2, 16, 64))
    states = draw.normal(tokens, heads, 1, size)
    cos, sin = _tables(draw, tokens, size, torch.float32 if label == "float32 tables" else draw.dtype)
    shape = (tokens, 1, 1, size)
    if label == "strided":
        states = draw.spaced(states)
    return {
        "states": states,
        "cos": cos.view(shape),
        "sin": sin.view(shape),
        "native_layout": label != "pairs stay",
    }


def _transdata(draw: Draw, label: str) -> Arguments:
    value = draw.normal(*draw.choice(_SHAPES))
    return {
        "hidden_states": draw.spaced(value) if label == "strided" else value,
        "transdata_type": draw.choice((0, 1, 2)),
    }


SAMPLES = {
    "rms_norm": Samples(105, _NORMS, _norm),
    "add_rms_norm": Samples(105, _NORMS, _add_norm),
    "rms_norm_w8a8": Samples(84, _NORMS, _norm_w8a8),
    "add_rms_norm_w8a8": Samples(84, _NORMS, _add_norm_w8a8),
    "silu_and_mul": Samples(
        90, ("plain", "large", "small", "strided", "first dimension", "middle dimension"), _silu
    ),
    "apply_rotary_pos_emb": Samples(
        105, ("plain", "float32 tables", "part of the head", "tables of four dimensions", "strided"), _rotary
    ),
    "apply_rotary_pos_emb_interleaved": Samples(
        96, ("plain", "float32 tables", "pairs stay", "strided"), _interleaved
    ),
    "transdata": Samples(18, ("plain", "strided"), _transdata),
}
