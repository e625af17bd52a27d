"""The ranks of a run side by side: which of them lack data, which fail, and what is odd about one against the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from op_tools.report.summary import NO_RANK, OperatorStats, RunSummary, middle_of
from op_tools.runs import DERIVED_LOGS

__all__ = ["odd_ranks", "ranges", "ranks_of", "sentence_of", "sentences_of"]

MOST_ODD = 100
# One false "odd" in so many reports of equal ranks.
_SURE = math.log(1000)
_FEWEST_CALLS = 5
_FEWEST_RANKS = 4
# Smaller differences are of no use to a reader, whatever their certainty.
_FACTOR = math.log(1.3)
_DEVIATIONS = 6.0


def ranges(numbers: Iterable[int]) -> str:
    """`0-3, 7, 9-11`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def ranks_of(summary: RunSummary) -> dict[str, Any] | None:
    """What the report says of the ranks; None for a run of one."""
    logs = [log for log in summary.logs if log.tool not in DERIVED_LOGS]
    world_size = max((log.world_size for log in logs), default=1)
    found = sorted(
        {log.rank for log in logs if log.rank >= 0} | {rank for rank in summary.ranks if rank >= 0}
    )
    size = max([world_size, *(rank + 1 for rank in found[-1:])])
    if size < 2 or (world_size == 1 and len(found) < 2):
        return None
    rows = dict.fromkeys(found, 0)
    for log in logs:
        if log.rank in rows:
            rows[log.rank] += log.rows
    unreadable = {log.rank for log in logs if log.problem} - {NO_RANK}
    damaged = {log.rank for log in logs if log.damaged} - {NO_RANK}
    cut = {log.rank for log in logs if log.dropped > log.damaged} - {NO_RANK}
    odd = odd_ranks(summary)
    return {
        "size": size, "with_data": sum(map(bool, rows.values())),
        "missing": _missing(size, found), "empty": ranges(rank for rank, count in rows.items() if not count),
        "unreadable": ranges(unreadable), "damaged": ranges(damaged), "cut": ranges(cut),
        "odd": odd[:MOST_ODD], "more_odd": max(0, len(odd) - MOST_ODD),
        "lines": [
            _line(rank, summary, rows[rank], rank in unreadable or rank in damaged or rank in cut,
                  any(one["rank"] == rank for one in odd))
            for rank in found
        ],
    }  # fmt: skip


def _missing(size: int, found: Sequence[int]) -> str:
    """The gaps. A header may claim any number of ranks, so they are not counted through."""
    ends = zip([-1, *found], [*found, size], strict=True)
    gaps = [(before + 1, after - 1) for before, after in ends if after - before > 1]
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in gaps)


def _line(rank: int, summary: RunSummary, rows: int, incomplete: bool, odd: bool) -> dict[str, Any]:
    """One rank as the strip shows it."""
    stats = summary.ranks.get(rank)
    operators = list(stats.operators.values()) if stats is not None else []
    wrong, births = sum(one.wrong for one in operators), sum(one.births for one in operators)
    state = (
        "wrong" if wrong or births
        else "incomplete" if incomplete or not rows
        else "odd" if odd
        else "lower" if any(one.lower_precision or one.suspect for one in operators)
        else "right"
    )  # fmt: skip
    return {
        "rank": rank, "state": state, "rows": rows, "compared": sum(one.compared for one in operators),
        "wrong": wrong, "births": births, "last_step": stats.last_step if stats is not None else None,
        "ms": round(sum(one.forward_ns + one.backward_ns for one in operators) / 1e6, 3),
    }  # fmt: skip


# -- what is odd ------------------------------------------------------------------------------------------------


def odd_ranks(summary: RunSummary) -> list[dict[str, Any]]:
    """What differs on one rank from the same on the others, the clearest first: rates of verdicts, times, steps, memory."""
    ranks = {rank: stats for rank, stats in summary.ranks.items() if rank >= 0}
    if len(ranks) < 2:
        return []
    table: dict[str, dict[int, OperatorStats]] = {}
    for rank, stats in ranks.items():
        for name, one in stats.operators.items():
            table.setdefault(name, {})[rank] = one
    doubt = _SURE + math.log(max(1, sum(map(len, table.values()))))
    found: list[dict[str, Any]] = []
    for name, cells in table.items():
        for kind in ("wrong", "suspect", "lower_precision"):
            found += _odd_rates(name, kind, cells, doubt)
    overflowing = {log.rank for log in summary.logs if log.tool == "overflow_check" and log.rank >= 0}
    for name, cells in table.items():
        found += _odd_births(name, cells, overflowing, doubt)
    found += _odd_times(table, len(ranks))
    found += _odd_ends({rank: stats.last_step for rank, stats in ranks.items()})
    for kind in sorted({kind for stats in ranks.values() for kind in stats.peaks}):
        peaks = {rank: float(stats.peaks[kind]) for rank, stats in ranks.items() if stats.peaks.get(kind)}
        found += [_odd(kind, rank, "", value, usual, score) for rank, value, usual, score in _outliers(peaks)]
    order = ("wrong", "births", "suspect", "last_step", "lower_precision", "time")
    found.sort(
        key=lambda one: (
            order.index(one["kind"]) if one["kind"] in order else len(order), -one["score"], one["rank"], one["operator"],
        )
    )  # fmt: skip
    return found


def _odd(
    kind: str, rank: int, operator: str, value: Any, others: Any, score: float, **more: Any
) -> dict[str, Any]:
    return {
        "kind": kind, "rank": rank, "operator": operator, "value": value, "others": others, "score": round(score, 3),
        **more,
    }  # fmt: skip


def _odd_rates(
    name: str, kind: str, cells: Mapping[int, OperatorStats], doubt: float
) -> Iterator[dict[str, Any]]:
    """Ranks whose share of a verdict cannot be that of the others: Chernoff's bound on the binomial tail."""
    counts = {rank: (getattr(one, kind), one.compared) for rank, one in cells.items() if one.compared}
    hits, total = sum(hit for hit, _ in counts.values()), sum(number for _, number in counts.values())
    if not hits or len(counts) < 2:
        return
    for rank, (hit, number) in counts.items():
        rest = total - number
        usual = (hits - hit) / rest
        share = hit / number
        floor = min(max(usual, 0.5 / rest), 1 - 0.5 / rest)
        score = number * _divergence(share, floor)
        if score > doubt and (share >= 2 * usual or share <= usual / 2):
            yield _odd(kind, rank, name, hit, hits - hit, score, of=number, others_of=rest)


def _divergence(share: float, usual: float) -> float:
    """Of one coin from another, in nats."""
    heads = share * math.log(share / usual) if share else 0.0
    tails = (1 - share) * math.log((1 - share) / (1 - usual)) if share < 1 else 0.0
    return heads + tails


def _odd_births(
    name: str, cells: Mapping[int, OperatorStats], ranks: set[int], doubt: float
) -> Iterator[dict[str, Any]]:
    """Ranks with too many or too few calls that made a NaN or Inf: the same for Poisson's distribution."""
    counts = {rank: cells[rank].births if rank in cells else 0 for rank in ranks}
    total = sum(counts.values())
    if not total or len(counts) < 2:
        return
    for rank, births in counts.items():
        usual = (total - births) / (len(counts) - 1)
        floor = max(usual, 0.5 / (len(counts) - 1))
        score = (births * math.log(births / floor) if births else 0.0) - births + floor
        if score > doubt and (births >= 2 * usual or births <= usual / 2):
            yield _odd("births", rank, name, births, round(usual, 3), score)


def _odd_times(table: Mapping[str, Mapping[int, OperatorStats]], ranks: int) -> Iterator[dict[str, Any]]:
    """Ranks on which a call of an operator takes longer or shorter; once for a rank that is so in most operators."""
    found: dict[int, list[dict[str, Any]]] = {}
    timed: dict[int, int] = {}
    for name, cells in table.items():
        enough = {rank: one for rank, one in cells.items() if one.calls >= _FEWEST_CALLS}
        middles = {rank: middle for rank, one in enough.items() if (middle := middle_of(one.durations)) > 0}
        for rank in middles:
            timed[rank] = timed.get(rank, 0) + 1
        for rank, value, usual, score in _outliers(middles):
            calls = enough[rank].calls
            one = _odd(
                "time", rank, name, round(value / 1e6, 6), round(usual / 1e6, 6), score, calls=calls,
                total=round(value * calls / 1e6, 3), others_total=round(usual * calls / 1e6, 3),
            )  # fmt: skip
            found.setdefault(rank, []).append(one)
    for rank, lines in found.items():
        slow = [one for one in lines if one["value"] > one["others"]]
        same_way = slow if 2 * len(slow) >= len(lines) else [one for one in lines if one not in slow]
        if len(same_way) > 3 and 2 * len(same_way) > timed[rank]:
            whole, usual = (sum(one[key] for one in same_way) for key in ("total", "others_total"))
            score = max(one["score"] for one in same_way)
            yield _odd("time", rank, "", round(whole, 3), round(usual, 3), score, operators=len(same_way))
        else:
            yield from lines


def _odd_ends(last: Mapping[int, int | None]) -> Iterator[dict[str, Any]]:
    """Ranks whose rows end at an earlier step than those of the others: a hang, a kill."""
    steps = {rank: step for rank, step in last.items() if step is not None}
    if len(steps) < _FEWEST_RANKS:
        return
    usual = median(steps.values())
    spread = median(abs(step - usual) for step in steps.values())
    limit = max(2.0, 0.05 * usual, 10 * spread)
    for rank, step in steps.items():
        if usual - step > limit:
            yield _odd("last_step", rank, "", step, int(usual), (usual - step) / limit)


def _outliers(values: Mapping[int, float]) -> Iterator[tuple[int, float, float, float]]:
    """Ranks far from the median by factor: the value, the median and by how many deviations."""
    if len(values) < _FEWEST_RANKS:
        return
    logs = {rank: math.log(value) for rank, value in values.items() if value > 0}
    usual = median(logs.values())
    spread = max(1.4826 * median(abs(value - usual) for value in logs.values()), math.log(2) / 16)
    for rank, value in logs.items():
        distance = abs(value - usual)
        if distance > max(_FACTOR, _DEVIATIONS * spread):
            yield rank, values[rank], math.exp(usual), distance / spread


# -- as sentences -----------------------------------------------------------------------------------------------

_MOST_SENTENCES = 10
_LONGEST = 120
_LACKS = {
    "missing": "no log", "empty": "no rows", "unreadable": "logs that cannot be read",
    "damaged": "damaged logs, read but for the damage", "cut": "logs cut at the end, as by a kill",
}  # fmt: skip


def sentences_of(summary: Mapping[str, Any]) -> list[str]:
    """What a report's summary says of its ranks, in English: where operators fail, what lacks, what is odd."""
    found = summary["ranks"]
    if found is None:
        return []
    wrong = [
        f"{line['operator']}: {line['fail']:,} of {line['compared']:,} values wrong, on {line['failed_ranks']:,} of "
        f"{line['ranks']:,} ranks: {_short(line['failed_on'])}"
        for line in summary["operators"]
        if line["fail"]
    ]
    lacks = [f"{what}: rank {_short(found[name])}" for name, what in _LACKS.items() if found[name]]
    odd = [f"odd, {sentence_of(one)}" for one in found["odd"]]
    more = len(odd) + found["more_odd"] - _MOST_SENTENCES
    rest = [f"{more} more of this kind are in the page"] if more > 0 else []
    return [*wrong[:_MOST_SENTENCES], *lacks, *odd[:_MOST_SENTENCES], *rest]


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rpartition(',')[0]}, ..."


def sentence_of(odd: Mapping[str, Any]) -> str:
    """What is odd, in English."""
    return f"rank {odd['rank']}: {_SENTENCES.get(odd['kind'], _memory)(odd)}"


def _rate(odd: Mapping[str, Any]) -> str:
    word = {"wrong": "wrong", "suspect": "suspect", "lower_precision": "of lower precision"}[odd["kind"]]
    return (
        f"{odd['operator']} {odd['value']:,} of {odd['of']:,} values {word}, on the other ranks "
        f"{odd['others']:,} of {odd['others_of']:,}"
    )


def _births(odd: Mapping[str, Any]) -> str:
    return f"{odd['operator']} made a NaN or Inf {odd['value']:,} times, on the other ranks {odd['others']:g} times each"


def _time(odd: Mapping[str, Any]) -> str:
    if not odd["operator"]:
        return f"{odd['value']:g} ms in {odd['operators']} operators, {odd['others']:g} ms at the speed of the other ranks"
    return f"a call of {odd['operator']} takes {odd['value']:g} ms, on the other ranks {odd['others']:g} ms"


def _last_step(odd: Mapping[str, Any]) -> str:
    return f"its rows end at step {odd['value']:,}, those of the other ranks at step {odd['others']:,}"


def _memory(odd: Mapping[str, Any]) -> str:
    name = odd["kind"].removesuffix("_bytes").replace("_", " ")
    return f"{name} reached {odd['value'] / 1e9:.3g} GB, on the other ranks {odd['others'] / 1e9:.3g} GB"


_SENTENCES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "wrong": _rate, "suspect": _rate, "lower_precision": _rate, "births": _births, "time": _time, "last_step": _last_step,
}  # fmt: skip
