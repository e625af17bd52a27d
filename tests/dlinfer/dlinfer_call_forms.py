"""Every way to call an operator of dlinfer with the arguments of one conformance case.

The first form is `torch.ops.dlinfer.<name>`; the others are those of `dlinfer.ops`, for both generations of LMDeploy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dlinfer import ops
from dlinfer.interface import OPERATORS
from dlinfer.interface.registry import OVERLOADS

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Form:
    """A function, and arguments for it that are right."""

    operator: str
    name: str
    call: Callable[..., Any]
    arguments: Arguments
    writes: tuple[str, ...] = ()
    """The arguments that it may write to."""
    unused: frozenset[str] = field(default=frozenset())
    """Arguments that frameworks pass and nothing looks at."""


# What an error about an argument may name: what the interface calls it, or what its numbers disagree with.
_ENDS, _KEYS = (
    ("cu_seqlens_q", "max_q_len", "kv_lengths"),
    ("kv_lengths", "max_kv_len", "block_table", "sparse_indices"),
)
ALIASES: dict[str, tuple[str, ...]] = {
    "cu_seqlens_q": _ENDS,
    "q_start_loc": _ENDS,
    "q_seq_len": (*_ENDS, "query"),
    "q_seqlens": _ENDS,
    "actual_seq_lengths_cpu": (*_ENDS, "q_seqlens"),
    "actual_q_seqlens_cpu": _ENDS,
    "actual_seq_lengths_query": _ENDS,
    "kv_lengths": _KEYS,
    "kv_seq_len": _KEYS,
    "kv_seqlens": _KEYS,
    "kv_seqlens_cpu": _KEYS,
    "actual_seq_lengths_key": _KEYS,
    "key_cache": ("block_table", "kv_indices"),
    "key": ("block_table",),
    "max_q_seq_len": ("max_q_len",),
    "max_kv_seq_len": ("max_kv_len",),
    "attn_mask": ("mask",),
    "logit_softcapping": ("soft_cap",),
    "window_size": ("window_left", "window_right"),
    "k_scales_zeros": ("key_scale", "key_zero"),
    "v_scales_zeros": ("value_scale", "value_zero"),
    "query_states": ("query",),
    "key_states": ("key",),
    "value_states": ("value",),
    "return_native_layout": ("native_layout",),
    "num_experts": ("topk_ids",),
    "head_size_v": ("value_cache",),
    "moe_metadata": ("n_groups", "first_expert", "num_experts"),
}


def forms(operator: str, given: Arguments) -> list[Form]:
    """The call in every form that can say it."""
    declared = OPERATORS[operator]
    bound = declared.bound((), given)
    overload = OVERLOADS[operator]
    found = [Form(operator, "torch.ops", lambda **kw: overload(*kw.values()), bound, declared.writes)]
    return found + _FORMS.get(operator, _same)(operator, dict(bound))


def _same(operator: str, given: Arguments) -> list[Form]:
    return [Form(operator, "dlinfer.ops", getattr(ops, operator), given)]


def _renamed(changes: dict[str, str]) -> Callable[[str, Arguments], list[Form]]:
    def made(operator: str, given: Arguments) -> list[Form]:
        arguments = {changes.get(name, name): value for name, value in given.items()}
        return [Form(operator, "dlinfer.ops", getattr(ops, operator), arguments)]

    return made


def _template(given: Arguments) -> list[Tensor]:
    return [torch.triu(torch.ones(64, 64, dtype=torch.int8), 1)] if given["causal"] else []


def _tail(given: Arguments) -> Arguments:
    """What all call forms of attention call the same."""
    window = (given["window_left"], given.get("window_right", -1))
    return {
        "softmax_scale": given["softmax_scale"],
        "alibi_slopes": given["alibi_slopes"],
        "attn_output": given["attn_output"],
        "window_size": window,
        "logit_softcapping": given["soft_cap"],
    }


def _old_lengths(given: Arguments) -> Arguments:
    starts = given["cu_seqlens_q"][:-1]
    return {
        "q_start_loc": starts,
        "q_seq_len": given["cu_seqlens_q"].diff(),
        "kv_seq_len": given["kv_lengths"],
    }


def _prefill(operator: str, given: Arguments) -> list[Form]:
    states = {name: given[name] for name in ("query", "key", "value")} | {
        "key_cache": None,
        "value_cache": None,
    }
    heads = {"num_q_heads": given["query"].shape[1], "num_kv_heads": given["key"].shape[1]}
    longest, causal = {"max_q_seq_len": given["max_q_len"]}, {"causal": given["causal"]}
    masks = [] if given["mask"] is None else [given["mask"]]
    old = {**states, **_old_lengths(given), **longest, **heads, "attn_mask": masks, **_tail(given), **causal}
    ends = given["cu_seqlens_q"][1:]
    lengths = {"q_seqlens": given["cu_seqlens_q"].diff(), "kv_seqlens": given["kv_lengths"]}
    new = {
        **states, **lengths, **longest, **heads, "attn_mask": _template(given), "actual_seq_lengths_cpu": ends,
        **_tail(given), **causal,
    }  # fmt: skip
    unused = frozenset(("key_cache", "value_cache"))
    found = [Form(operator, "0.16", ops.prefill_attention, old, ("attn_output",), unused)]
    if not masks:
        found.append(Form(operator, "0.18", ops.prefill_attention, new, ("attn_output",), unused))
        found.append(_positional(operator, "0.16 by position", _PREFILL_0_16, found[0]))
    return found


# The order in which LMDeploy passes arguments.
_STATES = "query key value key_cache value_cache"
_OLD_LENGTHS = "q_start_loc q_seq_len kv_seq_len"
_HEADS = "num_q_heads num_kv_heads attn_mask"
_REST = "softmax_scale alibi_slopes attn_output"
_QUANTISED = "kv_scales kv_zeros quant_bits"
_PREFILL_0_16 = f"{_STATES} {_OLD_LENGTHS} max_q_seq_len {_HEADS} {_REST}"
_PAGED_0_16 = (
    f"{_STATES} block_table block_size {_OLD_LENGTHS} cu_seq_lens_kv max_q_seq_len max_kv_seq_len {_HEADS} head_size_v"
    f" {_REST} {_QUANTISED}"
)
_PAGED_0_18 = (
    f"{_STATES} block_table block_size actual_q_seqlens_cpu kv_seqlens_cpu max_q_seq_len max_kv_seq_len {_HEADS}"
    f" head_size_v {_REST} {_QUANTISED}"
)


def _positional(operator: str, name: str, order: str, form: Form) -> Form:
    """The same call with the arguments by position, as LMDeploy makes it."""

    def call(**kw: Any) -> Any:
        given = [kw.pop(argument, None) for argument in order.split()]
        return form.call(*given, **kw)

    # A tensor there is what tells 0.16 from 0.18.
    return Form(operator, name, call, form.arguments, form.writes, form.unused | {"max_q_seq_len"})


def _paged(operator: str, given: Arguments) -> list[Form]:
    caches = {
        "query": given["query"], "key": None, "value": None, "key_cache": given["key_cache"],
        "value_cache": given["value_cache"], "block_table": given["block_table"],
        "block_size": given["key_cache"].shape[1],
    }  # fmt: skip
    rest = {
        "max_q_seq_len": given["max_q_len"], "max_kv_seq_len": given["max_kv_len"],
        "num_q_heads": given["query"].shape[1], "num_kv_heads": given["key_cache"].shape[2],
        "head_size_v": given["attn_output"].shape[-1], **_tail(given), **_quantised(given), "causal": given["causal"],
    }  # fmt: skip
    masks = [] if given["mask"] is None else [given["mask"]]
    cumulative = {"cu_seq_lens_kv": torch.nn.functional.pad(given["kv_lengths"].cumsum(0), (1, 0))}
    old = {**caches, **_old_lengths(given), **cumulative, **rest, "attn_mask": masks}
    new = {
        **caches, "actual_q_seqlens_cpu": given["cu_seqlens_q"][1:], "kv_seqlens_cpu": given["kv_lengths"], **rest,
        "attn_mask": _template(given),
    }  # fmt: skip
    unused = frozenset(("key", "value"))
    found = [Form(operator, "0.16", ops.paged_prefill_attention, old, ("attn_output",), unused)]
    if not masks:
        found.append(Form(operator, "0.18", ops.paged_prefill_attention, new, ("attn_output",), unused))
        found.append(_positional(operator, "0.16 by position", _PAGED_0_16, found[0]))
        found.append(_positional(operator, "0.18 by position", _PAGED_0_18, found[1]))
    return found


def _quantised(given: Arguments) -> Arguments:
    return {name: given[name] for name in ("kv_scales", "kv_zeros", "quant_bits")}


def _decode(operator: str, given: Arguments) -> list[Form]:
    batch = given["kv_lengths"].shape[0]
    each = given["query"].shape[0] // max(batch, 1)
    lengths = torch.full((batch,), each, dtype=torch.int32)
    arguments = {
        "query": given["query"], "key_cache": given["key_cache"], "value_cache": given["value_cache"],
        "block_table": given["block_table"], "block_size": given["key_cache"].shape[1], "q_seq_len": lengths,
        "kv_seq_len": given["kv_lengths"], "max_kv_seq_len": given["max_kv_len"],
        "num_q_heads": given["query"].shape[1], "num_kv_heads": given["key_cache"].shape[2],
        "head_size_v": given["attn_output"].shape[-1], **_tail(given), **_quantised(given),
    }  # fmt: skip
    ends = {**arguments, "q_seq_len": lengths.cumsum(0)}
    call = ops.paged_decode_attention
    return [
        Form(operator, "0.16", call, arguments, ("attn_output",)),
        Form(operator, "0.18", call, ends, ("attn_output",)),
    ]


def _fill(operator: str, given: Arguments) -> list[Form]:
    if given["value"] is None:
        return []
    arguments = {name: given[name] for name in ("key", "value", "key_cache", "value_cache", "kv_indices")}
    arguments["k_scales_zeros"] = [given["key_scale"], given["key_zero"]]
    arguments["v_scales_zeros"] = [given["value_scale"], given["value_zero"]]
    arguments["quant_bits"] = given["quant_bits"]
    return [Form(operator, "dlinfer.ops", ops.fill_kv_cache, arguments, ("key_cache", "value_cache"))]


def _rotary(operator: str, given: Arguments) -> list[Form]:
    def long(**kw: Any) -> Any:
        return ops.apply_rotary_pos_emb(*kw.values())

    targets = {"q_embed": torch.zeros(given["query"].shape), "k_embed": torch.zeros(given["key"].shape)}
    targets = {name: value.to(given["query"].dtype) for name, value in targets.items()}
    return [
        *_same(operator, given),
        Form(operator, "with targets", long, {**given, **targets}, ("q_embed", "k_embed")),
    ]


def _fused(operator: str, given: Arguments) -> list[Form]:
    arguments = {f"{name}_states": given[name] for name in ("query", "key", "value")}
    mask = [] if given["mask"] is None else [given["mask"]]
    return [Form(operator, "dlinfer.ops", ops.fused_attention, {**arguments, "mask": mask})]


def _gate(operator: str, given: Arguments) -> list[Form]:
    from dlinfer.utils.type_annotation import MoeMetadata

    groups = given.pop("n_groups")
    given["moe_metadata"] = MoeMetadata(router_n_groups=groups)
    return _same(operator, given)


def _experts(operator: str, given: Arguments) -> list[Form]:
    if given.pop("num_experts"):
        return []  # expert parallelism needs a process group
    given.pop("first_expert")
    return _same(operator, {**given, "topk": given["topk_ids"].shape[-1], "moe_metadata": None})


def _weight(operator: str, given: Arguments) -> list[Form]:
    return _same(operator, {**given, "all_reduce": False})


def _linear(operator: str, given: Arguments) -> list[Form]:
    return _same(operator, {**given, "all_reduce": False, "group": ""})


def _sparse(kv_lengths: str) -> Callable[[str, Arguments], list[Form]]:
    """Cumulative query lengths without the 0 in front."""
    renamed = _renamed({"cu_seqlens_q": "actual_seq_lengths_query", "kv_lengths": kv_lengths})
    return lambda operator, given: renamed(operator, {**given, "cu_seqlens_q": given["cu_seqlens_q"][1:]})


_FORMS: dict[str, Callable[[str, Arguments], list[Form]]] = {
    "prefill_attention": _prefill,
    "paged_prefill_attention": _paged,
    "paged_decode_attention": _decode,
    "fill_kv_cache": _fill,
    "apply_rotary_pos_emb": _rotary,
    "apply_rotary_pos_emb_interleaved": _renamed({"native_layout": "return_native_layout"}),
    "fused_attention": _fused,
    "moe_gating_topk_softmax": _gate,
    "fused_moe": _experts,
    "fused_moe_w8a8": _experts,
    "weight_quant_matmul": _weight,
    "linear": _linear,
    "lightning_indexer": _sparse("actual_seq_lengths_key"),
    "sparse_flash_attention": _sparse("kv_seqlens"),
}
