"""Random legal calls of dlinfer's operators, in sizes that the conformance suite does not have.

Heads that fill no vector, blocks of odd sizes, no sequences, sequences without keys, one row and many, dimensions of no elements.
Caches and attention are in `dlinfer_attention_calls`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from dlinfer_attention_calls import CALLS as ATTENTION
from dlinfer_attention_calls import HEAD_SIZES, maybe_spaced
from torch import Tensor

from dlinfer.conformance.sampling import FLOAT_DTYPES, Arguments, Case, Draw

_ROWS = (0, 1, 1, 2, 3, 5, 8, 9, 12, 13, 16, 17, 20, 21, 31, 48, 49, 65, 96, 97, 130)
# Among very many numbers some lie so near the middle of two integers that even the judge cannot say which of them is right.
_FEW_ROWS = _ROWS[:10]
_FEATURES = (1, 3, 8, 15, 16, 17, 40, 64, 100, 127, 128, 129, 257, 576, 1031)


def random_case(operator: str, number: int, seed: int = 0) -> Case:
    """Call number `number` of an operator: the same every time."""
    identity = f"random:{operator}:{number}"
    dtype = FLOAT_DTYPES[number % len(FLOAT_DTYPES)]
    return Case(identity, operator, dtype, "random", CALLS[operator](Draw(identity, seed, dtype)))


def _lead(draw: Draw, counts: tuple[int, ...] = _ROWS) -> tuple[int, ...]:
    rows = draw.choice(counts)
    return draw.choice(((rows,), (1, rows), (2, rows)) if rows < 40 else ((rows,),))


# ---- layers ----


def _norm(draw: Draw, counts: tuple[int, ...] = _ROWS) -> Arguments:
    hidden = draw.normal(*_lead(draw, counts), draw.choice(_FEATURES), scale=draw.choice((1.0, 1e-3, 50.0)))
    weight = draw.normal(hidden.shape[-1], dtype=draw.choice((None, torch.float32)))
    return {
        "hidden_states": maybe_spaced(draw, hidden),
        "weight": weight,
        "epsilon": draw.choice((1e-6, 1e-5)),
    }


def _add_norm(draw: Draw, counts: tuple[int, ...] = _ROWS) -> Arguments:
    given = _norm(draw, counts)
    residual = draw.normal(*given["hidden_states"].shape)
    return {"hidden_states": given["hidden_states"], "residual": maybe_spaced(draw, residual), **given}


def _silu(draw: Draw) -> Arguments:
    shape = [*_lead(draw), draw.choice(_FEATURES)]
    dim = draw.choice((-1, -1, -1, 0, len(shape) - 1))
    shape[dim] *= 2
    return {
        "input_tensor": maybe_spaced(draw, draw.normal(*shape, scale=draw.choice((1.0, 20.0)))),
        "dim": dim,
    }


def _tables(draw: Draw, tokens: int, rotary: int) -> tuple[Tensor, Tensor]:
    dtype = draw.choice((draw.dtype, torch.float32))
    return draw.normal(tokens, rotary, dtype=dtype), draw.normal(tokens, rotary, dtype=dtype)


def _rotary(draw: Draw) -> Arguments:
    lead, size = _lead(draw), 2 * draw.choice(HEAD_SIZES)
    heads, kv_heads = draw.choice((1, 2, 3, 9)), draw.choice((1, 2, 3))
    cos, sin = _tables(draw, torch.Size(lead).numel(), draw.choice((size, size, 2, 2 * (size // 4) or 2)))
    query, key = draw.normal(*lead, heads, size), draw.normal(*lead, kv_heads, size)
    return {"query": maybe_spaced(draw, query), "key": maybe_spaced(draw, key), "cos": cos, "sin": sin}


def _interleaved(draw: Draw) -> Arguments:
    tokens, size = draw.choice(_ROWS), 2 * draw.choice(HEAD_SIZES)
    cos, sin = _tables(draw, tokens, size)
    states = draw.normal(tokens, *draw.choice(((), (3,), (2, 1), (1, 5))), size)
    return {
        "states": maybe_spaced(draw, states),
        "cos": cos,
        "sin": sin,
        "native_layout": draw.choice((True, False)),
    }


# ---- products ----


def _linear(draw: Draw) -> Arguments:
    size, features = draw.choice(_FEATURES), draw.choice(_FEATURES)
    weight = draw.normal(features, size, scale=size**-0.5)
    weight = draw.choice((weight, weight.t().contiguous().t(), draw.spaced(weight)))
    bias = draw.normal(features) if draw.choice((True, False)) else None
    return {"x": maybe_spaced(draw, draw.normal(*_lead(draw), size)), "weight": weight, "bias": bias}


def _quant(draw: Draw) -> Arguments:
    x = draw.normal(*_lead(draw), draw.choice(_FEATURES), scale=draw.choice((1.0, 1e-3, 50.0)))
    whole = draw.choice((False, False, True)) and x.numel()
    return {
        "x": maybe_spaced(draw, x),
        "quant_dtype": torch.int8,
        "quant_granularity": "PER_TENSOR" if whole else "PER_TOKEN",
    }


def _w8a8(draw: Draw) -> Arguments:
    lead, size, features = _lead(draw), draw.choice(_FEATURES), draw.choice(_FEATURES)
    rows = torch.Size(lead).numel()
    return {
        "a": maybe_spaced(draw, draw.integers(-128, 128, *lead, size, dtype=torch.int8)),
        "b": maybe_spaced(draw, draw.integers(-128, 128, features, size, dtype=torch.int8)),
        "rms_scale": draw.uniform(draw.choice((1, rows)), low=0.001, high=0.02),
        "linear_scale": draw.uniform(draw.choice((1, features)), low=0.001, high=0.02),
        "out_dtype": draw.dtype,
        "quant_dtype": torch.int8,
        "bias": draw.normal(features) if draw.choice((True, False)) else None,
    }


def _static(draw: Draw) -> Arguments:
    size, features = draw.choice(_FEATURES), draw.choice(_FEATURES)
    bias = draw.integers(-5000, 5000, features, dtype=torch.int32)
    return {
        "x": maybe_spaced(draw, draw.normal(*_lead(draw, _FEW_ROWS), size, scale=draw.choice((1.0, 20.0)))),
        "weight": maybe_spaced(draw, draw.integers(-128, 128, features, size, dtype=torch.int8)),
        "input_scale": draw.uniform(1, low=0.01, high=0.05).to(draw.dtype),
        "input_offset": draw.integers(-20, 20, 1, dtype=torch.int8),
        "deq_scale": draw.uniform(features, low=1e-5, high=1e-3),
        "out_dtype": draw.dtype,
        "quant_dtype": torch.int8,
        "quant_bias": draw.choice((None, bias)),
    }


def _weight(draw: Draw) -> Arguments:
    group, packed = draw.choice((0, 1, 4, 20, 32, 64, 128)), draw.choice((True, False))
    offset = draw.choice(("none", "numbers", "packed")) if packed else draw.choice(("none", "numbers"))
    # Sums of a few weights that their offsets make 0 are 0 for a reference, but not for kernels that multiply before they add.
    groups = draw.choice((1, 2, 3)) * (16 if group < 20 else 1) if group else 1
    size = group * groups or draw.choice(_FEATURES if offset == "none" else _FEATURES[3:])
    features = draw.choice(_FEATURES) * (8 if packed else 1)
    words, numbers = (torch.int32, 2**31), (torch.int8, 128)
    dtype, end = words if packed else numbers
    x2 = draw.integers(-end, end, size, features // 8 if packed else features, dtype=dtype)
    offsets = {
        "none": None,
        "numbers": draw.integers(-8, 8, groups, features).to(draw.dtype),
        "packed": draw.integers(-(2**31), 2**31, groups, features // 8, dtype=torch.int32),
    }
    return {
        "x1": maybe_spaced(draw, draw.normal(*_lead(draw), size)),
        "x2": draw.choice((x2, x2.t().contiguous().t(), draw.spaced(x2))),
        "scale": draw.uniform(groups, features, low=0.001, high=0.02).to(draw.dtype),
        "offset": offsets[offset],
        "bias": draw.normal(features) if draw.choice((True, False)) else None,
        "group_size": group,
    }


# ---- experts ----


def _gate(draw: Draw) -> Arguments:
    groups = draw.choice((-1, -1, 1, 2, 4))
    experts = draw.choice((1, 2, 5, 8, 15, 16)) * abs(groups)
    topk = draw.choice(range(1, min(8, experts // abs(groups)) + 1)) * abs(groups)
    logits = draw.normal(*_lead(draw), experts, scale=draw.choice((1.0, 30.0)))
    return {
        "router_logits": maybe_spaced(draw, logits),
        "topk": topk,
        "n_groups": groups,
        "renormalize": draw.choice((True, False)),
    }


def _routes(draw: Draw, sizes: tuple[int, ...]) -> tuple[Arguments, int, int, int]:
    """What experts have in common, how many are here, and their sizes."""
    tokens, hidden, inner = draw.choice(_ROWS), draw.choice(sizes), draw.choice((1, 8, 33, 64))
    experts = draw.choice((1, 2, 3, 8, 65))
    here = draw.choice((experts, experts, (experts + 1) // 2))
    topk = draw.choice(range(1, min(8, experts) + 1))
    ids = draw.uniform(tokens, experts).argsort(-1)[:, :topk]
    given: Arguments = {
        "hidden_states": maybe_spaced(draw, draw.normal(tokens, hidden)),
        "topk_weights": draw.uniform(tokens, topk, low=0.05),
        "topk_ids": ids.to(draw.index_dtype()),
        "renormalize": draw.choice((True, False)),
        "first_expert": draw.choice((0, experts - here)),
        "num_experts": experts,
    }
    return given, here, hidden, inner


def _moe(draw: Draw) -> Arguments:
    given, here, hidden, inner = _routes(draw, (1, 17, 40, 64, 129))
    gate_up = draw.normal(here, 2 * inner, hidden, scale=hidden**-0.5)
    down = draw.normal(here, hidden, inner, scale=inner**-0.5)
    down = draw.choice((down, down.mT.contiguous().mT))
    return {**given, "gate_up_weights": gate_up, "down_weights": down}


def _moe_w8a8(draw: Draw) -> Arguments:
    # In rows of one element every rounding of the inner sums is a tie: whoever is right is drawn by lot.
    given, here, hidden, inner = _routes(draw, (17, 40, 64, 129))
    return {
        **given,
        "gate_up_weights": draw.integers(-128, 128, here, 2 * inner, hidden, dtype=torch.int8),
        "gate_up_scales": draw.uniform(here, 2 * inner, low=0.001, high=0.004),
        "down_weights": draw.integers(-128, 128, here, hidden, inner, dtype=torch.int8),
        "down_scales": draw.uniform(here, hidden, low=0.001, high=0.004),
    }


def _quantised(build: Callable[[Draw, tuple[int, ...]], Arguments]) -> Callable[[Draw], Any]:
    return lambda draw: {**build(draw, _FEW_ROWS), "quant_dtype": torch.int8}


CALLS: dict[str, Callable[[Draw], Arguments]] = {
    "rms_norm": _norm,
    "add_rms_norm": _add_norm,
    "rms_norm_w8a8": _quantised(_norm),
    "add_rms_norm_w8a8": _quantised(_add_norm),
    "silu_and_mul": _silu,
    "apply_rotary_pos_emb": _rotary,
    "apply_rotary_pos_emb_interleaved": _interleaved,
    **ATTENTION,
    "linear": _linear,
    "dynamic_quant": _quant,
    "linear_w8a8": _w8a8,
    "linear_w8a8_static": _static,
    "weight_quant_matmul": _weight,
    "moe_gating_topk_softmax": _gate,
    "fused_moe": _moe,
    "fused_moe_w8a8": _moe_w8a8,
}
