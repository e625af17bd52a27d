"""Random legal calls of a vendor's kernels: each must be right, keep bad numbers where they are, and not depend on threads.

    python tests/dlinfer/dlinfer_fuzz.py --seconds 60                       # the vendor cpp
    python tests/dlinfer/dlinfer_fuzz.py --vendor triton --device cuda --only 'paged_*'
    python tests/dlinfer/dlinfer_fuzz.py --case random:linear:17            # one call again

Calls are judged as `dlinfer conformance` judges its cases. Then a NaN, an infinity or the largest number is put into one row or
one sequence: the results of all others must keep their bits. On the CPU, four threads must give the bits of one. Products of many
rows are a library's, whose bits depend on the processor: there the other rows must be right, as a verdict sees it, and threads
are not compared. Ends with 1 if something was found.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import Any

import torch
from dlinfer_calls import CALLS, random_case
from torch import Tensor

from dlinfer.conformance.calls import DeviceArguments, ReferenceRun, flat
from dlinfer.conformance.judging import check
from dlinfer.conformance.sampling import Case, Draw
from dlinfer.errors import VendorError
from dlinfer.interface import OPERATORS
from dlinfer.interface.registry import OVERLOADS
from dlinfer.vendors import using
from op_tools.verdict import judge_all, tolerance_for

# The argument whose rows are independent of each other, and how many of its dimensions are one row.
_ROWS = {
    **dict.fromkeys(("rms_norm", "add_rms_norm", "rms_norm_w8a8", "add_rms_norm_w8a8"), ("hidden_states", 1)),
    **dict.fromkeys(("fused_moe", "fused_moe_w8a8"), ("hidden_states", 1)),
    **dict.fromkeys(("linear", "dynamic_quant", "linear_w8a8_static"), ("x", 1)),
    **dict.fromkeys(("paged_decode_attention", "paged_prefill_attention", "prefill_attention"), ("query", 2)),
    "silu_and_mul": ("input_tensor", 1),
    "weight_quant_matmul": ("x1", 1),
    "moe_gating_topk_softmax": ("router_logits", 1),
    "apply_rotary_pos_emb": ("query", 2),
}
# Behind so many rows products are a library's. It may add up otherwise with other threads, or, on some processors, where one row
# holds a NaN. (docs/dlinfer.md)
_FEW_ROWS = 12
_PRODUCTS = ("linear", "weight_quant_matmul", "fused_moe")


def results_of(case: Case, device: str, arguments: dict[str, Any] | None = None) -> list[Tensor]:
    """What a call returns and writes, on the CPU."""
    given = DeviceArguments(case.arguments if arguments is None else arguments, device, case.host).arguments
    operator = OPERATORS[case.operator]
    returned = OVERLOADS[case.operator](*operator.bound((), given).values())
    return [value.cpu() for value in flat(operator, returned, given) if isinstance(value, Tensor)]


# ---- bad numbers ----


def _bad_row(case: Case, draw: Draw) -> tuple[dict[str, Any], Tensor] | None:
    """A bad number in one row, and which rows of the results may not change."""
    if case.operator not in _ROWS or case.arguments.get("quant_granularity") == "PER_TENSOR":
        return None
    name, behind = _ROWS[case.operator]
    given = case.arguments[name]
    if not given.numel() or case.arguments.get("dim", -1) not in (-1, given.dim() - 1):
        return None
    rows = given.shape[: given.dim() - behind].numel()
    spoiled, row = given.clone().reshape(rows, -1), draw.choice(range(rows))
    spoiled[row, draw.choice(range(spoiled.shape[1]))] = _bad(draw, given.dtype)
    return {**case.arguments, name: spoiled.view(given.shape)}, torch.arange(rows) != row


def _bad(draw: Draw, dtype: torch.dtype) -> float:
    return draw.choice((torch.nan, torch.inf, -torch.inf, torch.finfo(dtype).max))


def _bad_sequence(case: Case, draw: Draw) -> tuple[dict[str, Any], Tensor] | None:
    """Bad numbers in all keys and values of one sequence, and which rows of the output may not change."""
    given = dict(case.arguments)
    if "kv_lengths" not in given or given.get("quant_bits") or not len(given["query"]):
        return None
    keys, tokens = given["kv_lengths"].long(), len(given["query"])
    batch = len(keys)
    ends = given.get("cu_seqlens_q", torch.arange(batch + 1) * (tokens // batch))[1:]
    which = draw.choice(range(batch))
    others = torch.searchsorted(ends.long(), torch.arange(tokens), right=True) != which
    for name in ("key", "value"):
        if "block_table" in given:
            cache = given[f"{name}_cache"].clone()
            used = -(-int(keys[which]) // cache.shape[1])
            cache[given["block_table"][which, :used].long()] = _bad(draw, cache.dtype)
            given[f"{name}_cache"] = cache
        else:
            last = int(keys[: which + 1].sum())
            given[name] = given[name].clone()
            given[name][last - int(keys[which]) : last] = _bad(draw, given[name].dtype)
    return given, others


def contamination(case: Case, device: str, draw: Draw) -> str:
    """Whether a bad number changes what it has no part in."""
    for spoil in (_bad_row, _bad_sequence):
        found = spoil(case, draw)
        if found is None:
            continue
        arguments, kept = found
        clean, after = (
            [_rows(value, kept) for value in results_of(case, device, given)] for given in (None, arguments)
        )
        same = all(_same_bits(a, b) for a, b in zip(clean, after, strict=True))
        if not same and not (_by_a_library(case) and _right(case, kept, after)):
            return f"{spoil.__name__.removeprefix('_').replace('_', ' ')}: it changed results of others"
    return ""


def _rows(value: Any, kept: Tensor) -> Tensor:
    rows: Tensor = value.reshape(len(kept), -1)[kept]
    return rows


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one.nan_to_num(7), other.nan_to_num(7))


def _by_a_library(case: Case) -> bool:
    first = next(value for value in case.arguments.values() if isinstance(value, Tensor))
    return case.operator in _PRODUCTS and first.shape[:-1].numel() > _FEW_ROWS


class _OtherRows(ReferenceRun):
    """The reference's answers to a call without the bad number, those rows of them that may not change."""

    def __init__(self, case: Case, kept: Tensor) -> None:
        super().__init__(OPERATORS[case.operator], case)
        self._kept = kept

    def evaluate(self, args: Any, kwargs: Any, grad_outputs: Any, *, upcast: bool) -> list[Any]:
        found = super().evaluate(args, kwargs, grad_outputs, upcast=upcast)
        return [_rows(value, self._kept) for value in found]


def _right(case: Case, kept: Tensor, results: list[Tensor]) -> bool:
    """Whether the rows beside a bad one are right answers to the call without it."""
    tolerance = tolerance_for(case.operator, results[0].dtype)
    reference = _OtherRows(case, kept)
    return all(v.ok for v in judge_all(results, reference, category="matmul", tolerance=tolerance))


# ---- threads ----


def uneven(case: Case, threads: int = 4) -> str:
    """Whether a number of threads changes bits."""
    if _by_a_library(case):
        return ""
    alone, before = results_of(case, "cpu"), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = results_of(case, "cpu")
    finally:
        torch.set_num_threads(before)
    same = all(_same_bits(a, b) for a, b in zip(alone, together, strict=True))
    return "" if same else f"{threads} threads gave other bits than one"


# ---- the run ----


def problem_of(case: Case, vendor: str, device: str) -> str:
    """What is wrong with the vendor's answers to a call, or nothing."""
    result = check(case, vendor, device)
    if result.status == "fail":
        return "\n    ".join([result.reason, *result.arguments])
    if result.status != "pass":
        return ""
    draw = Draw(case.id, 1, case.dtype)
    return contamination(case, device, draw) or (uneven(case) if device == "cpu" else "")


def cases(operators: list[str], seed: int, seconds: float, rounds: int | None = None) -> Iterator[Case]:
    """Calls of all these operators in turn, until the time is over or for some rounds."""
    end = time.monotonic() + seconds
    for number in itertools.count() if rounds is None else range(rounds):
        for operator in operators:
            if rounds is None and time.monotonic() > end:
                return
            yield random_case(operator, number, seed)


def _wanted(options: argparse.Namespace) -> Iterator[Case]:
    """ValueError: there is no such call."""
    if options.case:
        source, _, rest = options.case.partition(":")
        operator, _, number = rest.partition(":")
        if source != "random" or operator not in CALLS or not number.isdigit():
            raise ValueError(f"there is no call {options.case!r}; calls look like random:linear:17")
        return iter([random_case(operator, int(number), options.seed)])
    patterns = (options.only or "*").split(",")
    operators = [name for name in CALLS if any(fnmatch(name, pattern) for pattern in patterns)]
    if not operators:
        raise ValueError(f"no operator is called {options.only!r}; there are: {', '.join(CALLS)}")
    return cases(operators, options.seed, options.seconds, options.rounds)


def _run(wanted: Iterator[Case], options: argparse.Namespace) -> int:
    calls = findings = 0
    for case in wanted:
        calls += 1
        if problem := problem_of(case, options.vendor, options.device):
            findings += 1
            print(f"{case.id} ({case.dtype}, seed {options.seed}): {problem}", flush=True)
    print(f"{calls} calls of {options.vendor} on {options.device}: {findings} findings")
    return 1 if findings else 0


def main(arguments: list[str] | None = None) -> int:
    """0: nothing was found, 1: something was, 2: bad usage."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vendor", default="cpp")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, help="so many calls of every operator, however long they take")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="operators, separated by commas: linear,'paged_*'")
    parser.add_argument("--case", help="one call again, such as random:linear:17 (with the same seed)")
    options = parser.parse_args(arguments)
    try:
        wanted = _wanted(options)
    except ValueError as error:
        parser.error(str(error))
    try:
        with using(options.vendor):
            return _run(wanted, options)
    except VendorError as error:
        parser.error(str(error))


if __name__ == "__main__":
    raise SystemExit(main())
