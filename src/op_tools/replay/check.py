"""Compares what a call gave on the device with the reference and with what was captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from op_tools.categories import Category, category_of, is_random
from op_tools.describe import leaves, numbered
from op_tools.reference.recompute import Recomputation, RecomputeError
from op_tools.replay.closeness import against, equal, failed, identical, skipped
from op_tools.replay.execute import Execution
from op_tools.replay.items import Captured
from op_tools.replay.model import ItemStatus, Row
from op_tools.replay.placing import keeps_statistics, place
from op_tools.trees import flat_results, flat_tensors
from op_tools.verdict import NoiseCache, Verdict, judge
from op_tools.verdict.distribution import judge_random
from op_tools.verdict.tolerance import Tolerance, tolerance_for

__all__ = ["Checker", "Comparison", "overall"]

_WORST_FIRST: tuple[ItemStatus, ...] = ("fail", "lower_precision", "pass", "same")


@dataclass
class Comparison:
    """Rows of one run, and what the reference made of it (for the printed tables)."""

    forward: list[Row] = field(default_factory=list)
    backward: list[Row] = field(default_factory=list)
    reference_args: tuple[Any, ...] = ()
    reference_kwargs: dict[str, Any] = field(default_factory=dict)
    recomputed: Recomputation | None = None
    recomputed_grads: Recomputation | None = None
    notes: list[str] = field(default_factory=list)


def overall(rows: Sequence[Row]) -> ItemStatus:
    """The worst verdict; rows that judge nothing (skipped, unchanged inputs) do not count as compared."""
    found = {row["verdict"] for row in rows if row["counts"]}
    return next((status for status in _WORST_FIRST if status in found), "not compared")


class Checker:
    """Judges the runs of one call."""

    def __init__(
        self,
        func: Callable[..., Any],
        captured: Captured,
        reference: str,
        autocast: tuple[bool, torch.dtype] | None,
    ) -> None:
        self.func = func
        self.captured = captured
        self.name = captured.name
        self.reference = torch.device(reference)
        self.autocast = autocast
        self.category = category_of(func, captured.name)
        self.random = is_random(func, captured.name, captured.args, captured.kwargs)
        self.noise = NoiseCache()

    def compare(self, execution: Execution, forward_id: int) -> Comparison:
        found = Comparison()
        where = str(self.captured.header.get("device") or "")
        found.reference_args, found.reference_kwargs = place(
            (self.captured.args, self.captured.kwargs), self.reference, captured_on=where, grads=False
        )
        results = [self.near(item) for item in flat_results(execution.result)]
        if self.random:
            self._random(results, found)
        else:
            self._forward(execution, results, found)
            if execution.wants_grad:
                self._backward(execution, found)
        for row in (*found.forward, *found.backward):
            row["forward_id"] = forward_id
        return found

    # --- forward ----------------------------------------------------------------------------------------

    def _forward(self, execution: Execution, results: list[Any], found: Comparison) -> None:
        reference = self._recomputation(found)
        try:
            expected: list[Any] | None = reference.own()
            written = list(reference.written)
        except (RecomputeError, NotImplementedError) as error:
            found.notes.append(f"not compared with {self.reference}: {error}")
            expected, written = None, []
        if expected is not None:
            found.recomputed = reference
        inputs = flat_tensors(execution.args, execution.kwargs)
        after = [self.near(inputs[index]) for index in written]
        verdicts = self._judged([*results, *after], reference if expected is not None else None, "outputs")
        found.forward += self._input_rows(execution, written, verdicts[len(results) :])
        names = numbered(self.name, "output", len(results))
        found.forward += [_row(name, verdict) for name, verdict in zip(names, verdicts, strict=False)]
        self._captured(results, verdicts, self.captured.outputs, "output", found.forward, reference, expected)

    def _recomputation(self, found: Comparison, **gradients: Any) -> Recomputation:
        return Recomputation(
            self.func,
            found.reference_args,
            found.reference_kwargs,
            reference=str(self.reference),
            autocast=self.autocast,
            **gradients,
        )

    def _judged(self, results: Sequence[Any], reference: Recomputation | None, part: str) -> list[Verdict]:
        if reference is None:
            return [skipped("no reference") for _ in results]
        expected = reference.own()
        if len(expected) != len(results):
            text = f"{len(results)} results where the reference has {len(expected)}"
            return [failed(text, self._tolerance(result)) for result in results]
        return [self._judged_one(result, reference, index, part) for index, result in enumerate(results)]

    def _judged_one(self, result: Any, reference: Recomputation, index: int, part: str) -> Verdict:
        expected = reference.own()[index]
        if result is None or expected is None:
            same = result is None and expected is None
            text = "a gradient on one side, none on the other"
            return equal(Tolerance(0.0, 0.0)) if same else failed(text, self._tolerance(result))
        return judge(
            result,
            reference,
            index,
            category=self.category if part == "outputs" else "other",
            tolerance=self._tolerance(result),
            noise=self.noise,
            key=(self.name, part),
        )

    def _input_rows(self, execution: Execution, written: list[int], verdicts: list[Verdict]) -> list[Row]:
        """Inputs after the call: what it may write is judged, the rest must be as it was."""
        inputs = leaves(execution.args)
        before = [self.near(value) for value in leaves(self.captured.args)]
        judged = dict(zip(written, verdicts, strict=True))
        rows: list[Row] = []
        position = -1
        for name, leaf, original in zip(
            numbered(self.name, "input", len(inputs)), inputs, before, strict=True
        ):
            if not isinstance(leaf, torch.Tensor):
                rows.append(_row(name, equal(self._tolerance(leaf)), counts=False))
                continue
            position += 1
            if position in judged:
                rows.append(_row(name, judged[position]))
            elif self._returned(leaf, execution.result):
                rows.append(_row(name, equal(self._tolerance(leaf)), counts=False))
            else:
                rows.append(self._untouched(name, leaf, original))
        rest = [verdict for index, verdict in judged.items() if index > position]  # written keyword arguments
        return rows + [
            _row(name, item)
            for name, item in zip(numbered(self.name, "keyword", len(rest)), rest, strict=True)
        ]

    def _returned(self, leaf: torch.Tensor, result: Any) -> bool:
        """Whether the call returned this very input, written to: then it is judged as an output."""
        return any(item is leaf for item in flat_results(result))

    def _untouched(self, name: str, leaf: torch.Tensor, original: Any) -> Row:
        now = self.near(leaf)
        if identical(now, original) or keeps_statistics(self.name):
            return _row(name, equal(self._tolerance(leaf)), counts=False)
        verdict = against(now, original, self._tolerance(leaf))
        return _row(
            name, replace(verdict, status="fail", reason="the call changed an input it must not change")
        )

    # --- backward ---------------------------------------------------------------------------------------

    def _backward(self, execution: Execution, found: Comparison) -> None:
        given = [None if grad is None else self.near(grad) for grad in execution.grad_outputs]
        reference = self._recomputation(found, grad_outputs=given, wants_grad=execution.wants_grad)
        grads = [self.near(grad) if grad is not None else None for grad in execution.grads]
        try:
            expected: list[Any] | None = reference.own()
        except (RecomputeError, NotImplementedError) as error:
            found.notes.append(f"gradients not compared with {self.reference}: {error}")
            expected = None
        if expected is not None:
            found.recomputed_grads = reference
        verdicts = self._judged(grads, reference if expected is not None else None, "gradients")
        names = numbered(self.name, "grad", len(grads))
        found.backward += [_row(name, verdict) for name, verdict in zip(names, verdicts, strict=True)]
        if execution.as_captured:
            saved = self._captured_grads(execution)
            self._captured(grads, verdicts, saved, "grad", found.backward, reference, expected)

    def _captured_grads(self, execution: Execution) -> tuple[Any, ...] | None:
        """One per input that has a gradient. Our own captures save one place per tensor, the published ones do not."""
        saved = self.captured.grad_inputs
        if saved is None or len(saved) != len(flat_tensors(execution.args, execution.kwargs)):
            return saved
        return tuple(saved[index] for index in execution.wants_grad)

    # --- what was captured ------------------------------------------------------------------------------

    def _captured(
        self,
        results: list[Any],
        verdicts: list[Verdict],
        saved: tuple[Any, ...] | None,
        what: str,
        rows: list[Row],
        reference: Recomputation,
        expected: list[Any] | None,
    ) -> None:
        """Is this what the device gave when it was captured? Rounding may differ between two devices."""
        if saved is None or self.category == "uninitialised":
            return
        pairs = _paired(results, saved)
        if pairs is None:
            if what == "output":
                text = f"{len(flat_results(saved))} values were captured, the call now gives {len(results)}"
                rows.append(_row(f"{self.name} captured {what}", failed(text, Tolerance(0.0, 0.0))))
            return
        for name, (index, value) in zip(
            numbered(self.name, f"captured {what}", len(pairs)), pairs, strict=True
        ):
            judged = reference if expected is not None and verdicts[index].ok else None
            category: Category = self.category if what == "output" else "other"
            rows.append(
                _row(name, self._like_captured(results[index], self.near(value), index, judged, category))
            )

    def _like_captured(
        self, result: Any, value: Any, index: int, reference: Recomputation | None, category: Category
    ) -> Verdict:
        tolerance = self._tolerance(result)
        if identical(result, value):
            return equal(tolerance)
        verdict = against(result, value, tolerance)
        if reference is None:
            return verdict
        # The result is right. Two right answers may differ by rounding; a captured one that is wrong is news.
        then = judge(value, reference, index, category=category, tolerance=tolerance, noise=self.noise)
        reason = "" if then.ok else f"the captured value is wrong and not reproduced here: {then.reason}"
        return replace(verdict, status="pass" if then.ok else "fail", reason=reason)

    # --- random -----------------------------------------------------------------------------------------

    def _random(self, results: list[Any], found: Comparison) -> None:
        verdicts = judge_random(self.name, found.reference_args, found.reference_kwargs, results)
        names = numbered(self.name, "output", len(results))
        found.forward += [_row(name, verdict) for name, verdict in zip(names, verdicts, strict=True)]

    # --- both -------------------------------------------------------------------------------------------

    def near(self, value: Any) -> Any:
        """A value where the reference is."""
        return value.detach().to(self.reference) if isinstance(value, torch.Tensor) else value

    def _tolerance(self, value: Any) -> Tolerance:
        return tolerance_for(self.name, value.dtype if isinstance(value, torch.Tensor) else type(value))


def _row(name: str, verdict: Verdict, *, counts: bool = True) -> Row:
    return {
        "name": name,
        "allclose": verdict.allclose,
        "cosine_similarity": verdict.cosine_similarity,
        "max_abs_diff": verdict.max_abs_diff,
        "max_relative_diff": verdict.max_relative_diff,
        "atol": verdict.atol,
        "rtol": verdict.rtol,
        "error_info": verdict.error_info or (verdict.reason if verdict.status == "fail" else ""),
        "verdict": verdict.status,
        "reason": verdict.reason,
        "counts": counts and verdict.status != "skipped",
    }


def _paired(results: list[Any], saved: tuple[Any, ...]) -> list[tuple[int, Any]] | None:
    """Captured values with the index of their result; None if they do not belong together."""
    if len(saved) == len(results) and not any(isinstance(value, list | tuple | dict) for value in saved):
        pairs = list(enumerate(saved))  # gradients: a place for each, also for those that are None
    else:
        values = flat_results(saved)
        present = [index for index, result in enumerate(results) if result is not None]
        if len(present) != len(values):
            return None
        pairs = list(zip(present, values, strict=True))
    return [(index, value) for index, value in pairs if value is not None and results[index] is not None]
