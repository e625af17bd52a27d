"""Judges results that are not plain arithmetic: quantised numbers, and chosen positions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dlinfer.conformance.reference_run import ReferenceRun
from dlinfer.reference.sparse import index_scores

# Where an exact value is a tie within rounding, half of such runs come out on either side of it.
RUNS = 20
# Scores of picks that tie: relative to the largest, a few roundings of float32 sums.
TIE = 1e-5


def quantised_problem(reference: ReferenceRun, place: int, got: Tensor) -> str:
    """Each element must be one that the reference gives too, in float64 or from inputs moved by about one rounding."""
    own = reference.own()[place]
    if torch.equal(_numbers(got), _numbers(own)):
        return ""
    low = high = _numbers(own)
    truth = reference.truth()
    runs = [truth] if truth is not None else []
    for seed in range(RUNS):
        moved = reference.perturbed(seed)
        runs += [moved] if moved is not None else []
    for run in runs:
        low, high = torch.minimum(low, _numbers(run[place])), torch.maximum(high, _numbers(run[place]))
    wrong = (_numbers(got) < low) | (_numbers(got) > high) | (_numbers(got).isnan() != low.isnan())
    count = int(wrong.sum())
    return f"{count} of {got.numel()} quantised elements differ where no tie explains it" if count else ""


def _numbers(value: Tensor) -> Tensor:
    """As numbers; each half of a byte that holds two elements is a number of its own."""
    if value.dtype == torch.uint8:
        return torch.stack((value & 15, value >> 4), -1).to(torch.float64)
    return value.to(torch.float64)


def positions_problem(reference: ReferenceRun, got: Tensor) -> str:
    """Whether chosen positions are as good as the reference's."""
    arguments = {name: _raised(value) for name, value in reference.kwargs.items()}
    if reference.operator.name == "lightning_indexer":
        return _indexed(arguments, got)
    return _routed(arguments, got)


def _raised(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _indexed(arguments: dict[str, Any], got: Tensor) -> str:
    names = ("query", "key", "weights", "cu_seqlens_q", "kv_lengths", "block_table")
    start = 0
    for scores in index_scores(*(arguments[name] for name in names)):
        for row in scores:
            chosen = got[start, 0].to(torch.int64)
            chosen = chosen[chosen != -1]
            visible = int((row > -torch.inf).sum())
            wanted = min(visible, got.shape[-1])
            if len(chosen) != wanted:
                return f"token {start} has {len(chosen)} keys, expected {wanted}"
            if len(chosen.unique()) != wanted:
                return f"token {start} has a key twice"
            if wanted and (int(chosen.min()) < 0 or int(chosen.max()) >= row.numel()):
                return f"token {start} has a key outside of its sequence"
            best = row.topk(wanted).values
            if not _tie(row[chosen].sort(descending=True).values, best, row[row > -torch.inf]):
                return f"token {start} has keys of smaller scores than it could have"
            start += 1
    return ""


def _routed(arguments: dict[str, Any], got: Tensor) -> str:
    logits, groups = arguments["router_logits"], max(arguments["n_groups"], 1)
    weights = torch.softmax(logits, -1).flatten(0, -2)
    ids = got.flatten(0, -2)
    experts = weights.shape[-1]
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= experts):
        return "a number of an expert that does not exist"
    if ids.numel() and bool((ids.sort(-1).values.diff(dim=-1) == 0).any()):
        return "a token has an expert twice"
    size, each = experts // groups, ids.shape[-1] // groups
    for group in range(groups):
        mine = ids[:, group * each : (group + 1) * each]
        if bool((mine // size != group).any()):
            return f"group {group} has an expert of another group"
        best = weights[:, group * size : (group + 1) * size].topk(each).values
        if not _tie(weights.gather(1, mine), best, weights):
            return "an expert was chosen before one of larger weight"
    return ""


def _tie(got: Tensor, best: Tensor, among: Tensor) -> bool:
    if not got.numel():
        return True
    return bool(((got - best).abs() <= TIE * among.abs().max()).all())
