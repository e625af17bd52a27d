"""One case against one library: is it right, and if not, what is wrong with it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dicore.conformance.results import CaseResult
from diopi.conformance.diopi_case import DiopiCase
from diopi.conformance.execution import POISONS, UNSUPPORTED, Ran, run_once
from diopi.conformance.reference_run import NoReferenceError, ReferenceRun, Slot
from diopi.library import Library
from diopi.table import Entry, OperatorTable
from op_tools.categories import Category
from op_tools.conformance import describe_value, record_verdict
from op_tools.verdict import Tolerance, judge_all, judge_random, tolerance_for

# What a tolerance of the table means to the verdict.
_CATEGORIES: dict[str, Category] = {"exact": "movement", "index": "index", "ulp": "elementwise"}
_SUMS: dict[str, Category] = {"matrix": "matmul", "attention": "matmul", "reduction": "reduction"}
_OTHER_SEED = 1_000_003
_OTHER_SEEDS = 20


def category_for(entry: Entry, arguments: Mapping[str, Any]) -> Category:
    """The kind of operator that the verdict is told. Positions of a stable sort are determined, also where values tie."""
    if entry.tolerance == "index" and (arguments.get("pStable") or arguments.get("stable")):
        return "movement"
    return _CATEGORIES.get(entry.tolerance) or _SUMS.get(entry.category, "other")


def check(library: Library, table: OperatorTable, case: DiopiCase) -> CaseResult:
    """Runs and judges a case; never raises for what the library does."""
    begin = time.perf_counter()
    result = CaseResult(case.id, case.function, case.dtype, case.label, "pass")
    entry = table.entries.get(case.function)
    if entry is None:
        result.set("fail", f"{case.function} has no entry in the operator table")
    elif not library.has(case.function):
        result.set("unsupported", UNSUPPORTED[13])
    else:
        _Check(library, entry, case, result).run()
    result.seconds = time.perf_counter() - begin
    return result


class _Check:
    def __init__(self, library: Library, entry: Entry, case: DiopiCase, result: CaseResult) -> None:
        self._library = library
        self._entry = entry
        self._case = case
        self._result = result
        self._reference = ReferenceRun(entry, case.arguments, case.dtype)
        self._reasons: list[str] = []

    def run(self) -> None:
        try:
            self._reference.own()
        except NoReferenceError as error:
            self._result.set("skipped" if error.expected else "fail", str(error))
            return self._explain()
        first = self._run(POISONS[0])
        if not first.ok:
            self._refused(first)
        else:
            self._reasons += first.faults
            self._judge(first)
            self._repeat(first)
        if self._reasons:
            self._result.set("fail", "; ".join(self._reasons))
        self._explain()

    def _run(self, poison: int, seed_shift: int = 0) -> Ran:
        values = self._reference.values
        return run_once(
            self._library, self._entry, self._case.arguments, values, poison=poison, seed_shift=seed_shift
        )

    def _explain(self) -> None:
        if self._result.status == "fail":
            given = ((a.name, self._case.arguments.get(a.name)) for a in self._entry.function.arguments)
            self._result.arguments = [
                f"{name} = {describe_value(value)}" for name, value in given if value is not None
            ]

    def _refused(self, ran: Ran) -> None:
        text = f": {ran.error}" if ran.error else ""
        if ran.code in UNSUPPORTED:
            self._result.set("unsupported", UNSUPPORTED[ran.code] + text)
            self._reasons += ran.faults
        else:
            self._reasons = [
                ran.error if ran.code < 0 or ran.thrown else f"returned error code {ran.code}{text}",
                *ran.faults,
            ]

    # ---- values ----

    def _judge(self, ran: Ran) -> None:
        if self._entry.tolerance == "none":
            return
        self._judge_draws(ran)
        slots, own = self._reference.slots, self._reference.own()
        if not slots:
            return
        got = [_at(ran.values, slot) for slot in slots]
        missing = [slot.title for slot, value in zip(slots, got, strict=True) if value is None]
        if missing:
            self._reasons.append(f"gave no {', '.join(missing)}")
            return
        verdicts = judge_all(
            got,
            self._reference,
            category=category_for(self._entry, self._case.arguments),
            tolerance=self._tolerance(own),
        )
        for slot, value, mine, verdict in zip(slots, got, own, verdicts, strict=True):
            if reason := record_verdict(self._result, slot.title, value, mine, verdict):
                self._reasons.append(reason)
            if verdict.ok and self._entry.category == "movement" and self._entry.tolerance == "exact":
                self._judge_zeros(slot.title, value, mine)

    def _judge_zeros(self, title: str, got: Any, own: Any) -> None:
        """What is only moved keeps all its bits; to arithmetic, and to the verdict, zero has no sign."""
        if not isinstance(own, torch.Tensor) or not own.is_floating_point():
            return
        other = int(((own == 0) & (got.signbit() != own.signbit())).sum())
        if other:
            self._reasons.append(f"{title}: {other} of {own.numel()} elements are zeros of another sign")

    def _tolerance(self, own: Sequence[Any]) -> Tolerance:
        first = next((value for value in own if isinstance(value, torch.Tensor)), None)
        return tolerance_for(self._case.function, None if first is None else first.dtype)

    def _judge_draws(self, ran: Ran) -> None:
        """All results of one draw are judged together: a mask belongs to its values."""
        drawn = self._reference.drawn
        if not drawn:
            return
        name, draw = next(iter(drawn.items()))
        got = [ran.values.get(title) for title in drawn]
        if any(value is None for value in got):
            self._reasons.append(f"gave no {', '.join(drawn)}")
            return
        for verdict in judge_random(draw.name, draw.args, draw.kwargs, got)[:1]:
            if not verdict.ok:
                self._reasons.append(f"{name}: {verdict.reason}")

    # ---- again ----

    def _repeat(self, first: Ran) -> None:
        """The same call on fresh memory that held other bytes must give the same bits."""
        second = self._run(POISONS[1])
        if not second.ok:
            self._reasons.append(f"a second run returned error code {second.code}: {second.error}")
            return
        for fault in second.faults:
            if fault not in self._reasons:
                self._reasons.append(fault)
        judged = {slot.argument for slot in self._reference.slots} | set(self._reference.drawn)
        for name in judged:
            one, other = first.values.get(name), second.values.get(name)
            left, total = _unwritten(one, other)
            if left:
                self._reasons.insert(0, f"left {left} of {total} elements of {name} unwritten")
            elif difference := _difference(one, other):
                self._reasons.append(f"two runs with the same inputs disagree: {name}{difference}")
        varying = [name for name, drawn in self._reference.drawn.items() if drawn.varies]
        if varying and self._has_generator():
            same = self._same_for_all_seeds(first, varying)
            if same:
                self._reasons.append(f"{_OTHER_SEEDS} other seeds draw the same {', '.join(same)}")

    def _same_for_all_seeds(self, first: Ran, names: list[str]) -> list[str]:
        """Where there are few outcomes, two seeds may well draw the same; many do not."""
        for shift in range(_OTHER_SEEDS):
            other = self._run(POISONS[0], _OTHER_SEED + shift)
            names = [n for n in names if other.ok and not _difference(first.values[n], other.values.get(n))]
            if not names:
                break
        return names

    def _has_generator(self) -> bool:
        return any(
            "GeneratorHandle" in a.ctype and self._case.arguments.get(a.name) is not None
            for a in self._entry.function.arguments
        )


def _at(values: dict[str, Any], slot: Slot) -> Any:
    value = values.get(slot.argument)
    if slot.position is None or value is None:
        return value
    return value[slot.position] if slot.position < len(value) else None


def _unwritten(first: Any, second: Any) -> tuple[int, int]:
    """How many elements, of how many, still hold what the memory was filled with before each of two runs."""
    if isinstance(first, list) and isinstance(second, list):
        pairs = [_unwritten(one, other) for one, other in zip(first, second, strict=True)]
        return sum(left for left, _ in pairs), sum(total for _, total in pairs)
    comparable = isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)
    if not comparable or first.shape != second.shape or first.dtype in (torch.bool, torch.uint8, torch.int8):
        return 0, 0  # in one byte the fillings may be what was meant
    one, other = (_bytes(value) for value in (first, second))
    left = (one == POISONS[0]).all(1) & (other == POISONS[1]).all(1)
    return int(left.sum()), first.numel()


def _bytes(value: torch.Tensor) -> torch.Tensor:
    """One row for each element."""
    return value.reshape(-1).view(torch.uint8).reshape(value.numel(), value.element_size())


def _difference(first: Any, second: Any) -> str:
    """Where two runs differ, bit for bit; empty if nowhere."""
    if isinstance(first, list) and isinstance(second, list):
        for position, (one, other) in enumerate(zip(first, second, strict=True)):
            found = _difference(one, other)
            if found:
                return f"[{position}]{found}"
        return ""
    if not isinstance(first, torch.Tensor) or not isinstance(second, torch.Tensor):
        same = first is None or first == second or str(first) == str(second)  # NaN is not equal to itself
        return "" if same else f" ({first} and {second})"
    if first.shape != second.shape or first.dtype != second.dtype:
        return f" (shapes {tuple(first.shape)} and {tuple(second.shape)})"
    if not first.numel():
        return ""
    one, other = (_bytes(value) for value in (first, second))
    if torch.equal(one, other):
        return ""
    where = (one != other).any(1).nonzero().flatten()
    index = int(where[0])
    pair = f"{first.reshape(-1)[index].item()} and {second.reshape(-1)[index].item()}"
    return f" ({where.numel()} of {first.numel()} elements, such as number {index}: {pair})"
