"""Whether a device's result is right, judged by what correct arithmetic could give; nothing is tuned per operator.

Paid in stages. A result that is bit-equal to the reference's is right and costs one comparison. Otherwise the
float64 result is asked for, and bounds that need no more; then noise, from the cache or from two reruns. Before
a failure is reported it is confirmed with more reruns and more samples of the reference's own errors, and
compared with models of lower-precision arithmetic, which are a label of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import torch

from op_tools.categories import Category
from op_tools.reference.base import Reference
from op_tools.reference.perturbation import ROUNDING
from op_tools.verdict.arithmetic import Evidence, explanation
from op_tools.verdict.bounds import (
    BASE,
    DOUBLE_ROUNDING,
    BoundCheck,
    Errors,
    ReferenceNeeds,
    columns_of,
    errors_of_variants,
    measured_noise,
    with_reference_errors,
)
from op_tools.verdict.closeness import compared, equal, identical, nan, other_zeros
from op_tools.verdict.lengths import is_copy, is_scan, kind_of, shortest_input, summed_terms, sums_evenly
from op_tools.verdict.noise import NoiseCache, Reruns, product_variance
from op_tools.verdict.outcome import Status, Verdict
from op_tools.verdict.rounding import Format, format_of, real_parts
from op_tools.verdict.ties import pairs_differ, ties, unordered
from op_tools.verdict.tolerance import Tolerance
from op_tools.verdict.transforms import transform_variance

# Reruns paid for the first estimate of noise, and altogether before a failure is reported.
RERUNS, RERUNS_TO_CONFIRM = 2, 8
# More samples of the reference's own errors, on inputs of other last bits, before a failure is reported.
VARIANTS = 4
# A failure is reported when twice the noise does not explain it: noise is an estimate, and its tails are heavy.
CONFIRMING_STRICTNESS = 0.5
# Two reruns estimate the noise of single elements poorly: what is off by no more than this many bounds is held against
# the noise of its row before more reruns are paid.
POOLED_AT_MOST = 4.0
# A cached noise level lets pass only what stays clearly below the bound.
CACHED_STRICTNESS = 1.25
# Without a float64 result: the units in the last place that correct implementations differ by.
UNITS_WITHOUT_TRUTH = 4.0
# Of a result that Winograd's transforms made the errors are of the size of their noise: by the median, this part at least.
TRANSFORMS_SHOWN = 0.2
_EXACT = ("movement", "view", "index")


def judge(
    result: Any,
    reference: Reference,
    index: int,
    *,
    category: Category,
    tolerance: Tolerance,
    noise: NoiseCache | None = None,
    key: object = None,
) -> Verdict:
    """Judge the flat result number `index`."""
    call = _Call(reference, category, tolerance, noise, key)
    return call.judged(result, reference.own()[index], index)


def judge_all(
    results: Sequence[Any],
    reference: Reference,
    *,
    category: Category,
    tolerance: Tolerance,
    noise: NoiseCache | None = None,
    key: object = None,
) -> list[Verdict]:
    """Judge all flat results of a call; truth and reruns are shared between them."""
    own = reference.own()
    call = _Call(reference, category, tolerance, noise, key)
    if len(own) != len(results):
        reason = f"{len(results)} results where the reference has {len(own)}"
        return [Verdict.plain("fail", reason, tolerance) for _ in results or own[:1]]
    verdicts = [call.judged(result, own[index], index) for index, result in enumerate(results)]
    wrong = pairs_differ(reference.func, reference.args, reference.kwargs, results)
    if wrong and len(verdicts) == 2 and all(verdict.ok for verdict in verdicts):
        verdicts[1] = Verdict.plain("fail", wrong, tolerance)
    return verdicts


@lru_cache(maxsize=256)
def _same(tolerance: Tolerance) -> Verdict:
    return Verdict.plain("same", "", tolerance)


def within_tolerance(result: Any, expected: Any, tolerance: Tolerance) -> Verdict:
    """The fixed tolerance alone, where nothing can be computed again: what another device gave once."""
    if not isinstance(result, torch.Tensor) or not isinstance(expected, torch.Tensor):
        if identical(result, expected):
            return _same(tolerance)
        return Verdict.plain("fail", f"{result} where {expected} is expected", tolerance)
    if result.shape != expected.shape:
        text = f"Inconsistent shapes: {tuple(result.shape)} {tuple(expected.shape)}"
        return Verdict.plain("fail", text, tolerance)
    info = "" if result.dtype == expected.dtype else f"Inconsistent dtypes: {result.dtype} {expected.dtype}"
    a, b = (value.to_dense() if value.layout is not torch.strided else value for value in (result, expected))
    columns = compared(a, b, tolerance.atol, tolerance.rtol)
    status: Status = "pass" if columns[0] else "fail"
    reason = "" if columns[0] else "differs by more than atol and rtol"
    return Verdict(status, reason, *columns, tolerance.atol, tolerance.rtol, info)


def variants_of(reference: Reference) -> list[tuple[list[Any], list[Any]]]:
    """More samples of the reference's own errors: (own, truth) of inputs of other last bits."""
    found = [reference.variant(1000 + seed) for seed in range(VARIANTS)]
    return [pair for pair in found if pair is not None]


@dataclass
class _Call:
    """One call under judgement; its noise is kept where a key is given."""

    _reference: Reference
    _category: Category
    _tolerance: Tolerance
    _cache: NoiseCache | None
    _key: object

    def __post_init__(self) -> None:
        self._cache = self._cache if self._key is not None else None
        self._reruns = Reruns(self._reference)

    def judged(self, result: Any, own: Any, index: int) -> Verdict:
        if not isinstance(result, torch.Tensor) or not isinstance(own, torch.Tensor):
            return self._number(result, own)
        reason = _incomparable(result) or _incomparable(own)
        if self._category in ("uninitialised", "communication"):
            reason = f"values of {self._category} results are not compared"
        if reason:
            return Verdict.plain("skipped", reason, self._tolerance)
        if result.shape != own.shape or result.dtype != own.dtype:
            return self._unlike(result, own)
        if result.device != own.device:
            result = result.to(own.device)
        if result.layout != torch.strided:
            result, own = result.to_dense(), own.to_dense()
        if equal(result, own):
            return self._equal(result, own)
        form = format_of(own.dtype)
        if form is None or (self._category in _EXACT and not self._reference.is_gradient):
            return self._exact(result, own)
        return self._arithmetic(result, own, index, form)

    def _equal(self, result: torch.Tensor, own: torch.Tensor) -> Verdict:
        """Right, unless a copy does not keep the sign of a zero."""
        if self._category == "movement" and not self._reference.is_gradient and is_copy(self._reference):
            count = other_zeros(result, own)
            if count:
                reason = f"{count} zeros of another sign where results must be bit-exact"
                return self._with_columns("fail", reason, result, own)
        return _same(self._tolerance)

    def _number(self, result: Any, own: Any) -> Verdict:
        if isinstance(result, torch.Tensor) or isinstance(own, torch.Tensor):
            kinds = f"{type(result).__name__} where the reference has {type(own).__name__}"
            return Verdict.plain("fail", kinds, self._tolerance)
        if result == own:
            return _same(self._tolerance)
        numbers = (bool, int, float, complex)
        if isinstance(result, numbers) and isinstance(own, numbers):
            got, expected = (torch.tensor([value], dtype=torch.complex128) for value in (result, own))
            if equal(got, expected):
                return _same(self._tolerance)
            if self._category in (*_EXACT, "uninitialised") or isinstance(own, (bool, int)):
                return self._with_columns("fail", f"{result} where the reference has {own}", got, expected)
            close = abs(result - own) <= self._tolerance.atol + self._tolerance.rtol * abs(own)
            return self._with_columns("pass" if close else "fail", f"{result} and {own}", got, expected)
        return Verdict.plain("fail", f"{result!r} where the reference has {own!r}", self._tolerance)

    def _unlike(self, result: torch.Tensor, own: torch.Tensor) -> Verdict:
        if result.shape != own.shape:
            info = f"Inconsistent shapes: {tuple(result.shape)} {tuple(own.shape)}"
            return Verdict.plain("fail", info, self._tolerance)
        info = f"Inconsistent dtypes: {result.dtype} {own.dtype}"
        return self._with_columns("fail", info, result, own, error_info=info)

    def _exact(self, result: torch.Tensor, own: torch.Tensor) -> Verdict:
        """Nothing may differ: a copy is a copy. Positions may, where the values tie."""
        call = self._reference
        if self._category == "index" and not own.is_floating_point():
            wrong = "positions differ"
            if call.func is not None:
                wrong = ties(call.func, call.args, call.kwargs, result, own)
            if not wrong:
                return self._with_columns("pass", "other positions of equal values", result, own)
            return self._with_columns("fail", wrong, result, own)
        dim = unordered(call.func, call.args, call.kwargs)
        if dim is not None and equal(result.sort(dim).values, own.sort(dim).values):
            return self._with_columns("pass", "the same values in another order", result, own)
        differs = (result != own) & ~(nan(result) & nan(own))
        count = int(differs.sum())
        reason = f"{count} of {own.numel()} elements differ where results must be bit-exact"
        return self._with_columns("fail", reason, result, own)

    def _arithmetic(self, result: torch.Tensor, own: torch.Tensor, index: int, form: Format) -> Verdict:
        truth = self._reference.truth()
        exact = truth[index] if truth is not None else None
        if not isinstance(exact, torch.Tensor) or exact.shape != own.shape:
            return self._without_truth(result, own, form)
        if exact.layout != torch.strided:
            exact = exact.to_dense()
        length = summed_terms(self._category, self._reference, exact)
        kind = kind_of(self._category, self._reference, exact, length, form)
        errors = Errors(real_parts(result), real_parts(own), real_parts(exact), form, kind)
        status, outcome, raw = self._staged(errors, exact, index, length)
        verdict = self._with_columns(status, outcome.reason, result, own)
        return replace(
            verdict,
            error_over_bound=outcome.over_bound,
            rms_ratio=outcome.rms,
            raw_alarm=raw,
            reruns=self._reruns.count,
        )

    def _staged(
        self, errors: Errors, exact: torch.Tensor, index: int, length: float
    ) -> tuple[Status, BoundCheck, bool]:
        """(status, what the last check found, whether the first full check was an alarm)."""
        if errors.worst <= BASE:  # correctly rounded
            return "pass", BoundCheck("", 1.0, 0.0), False
        columns = columns_of(exact)
        outcome = self._without_reruns(errors, index, columns)
        if not outcome.reason:
            return "pass", outcome, False
        of_products = self._noise_of_products(errors, index)
        if of_products is not None:
            outcome = errors.check(of_products, ReferenceNeeds(), brief=True)
            if not outcome.reason:
                return "pass", outcome, False
        self._reruns.extend(RERUNS)
        noise = self._measured(errors, index, columns, store=True)
        outcome = errors.check(noise, ReferenceNeeds())
        if not outcome.reason:
            return "pass", outcome, False
        if outcome.over_bound <= POOLED_AT_MOST:
            pooled = torch.maximum(noise, errors.by_rows(noise, columns))
            outcome = errors.check(pooled, ReferenceNeeds())
            if not outcome.reason:
                return "pass", outcome, False
        raw = bool(errors.check(noise, errors.needs(noise)).reason) and bool(
            errors.check(*with_reference_errors(errors, [errors], columns, noise)).reason
        )
        confirmed, noise = self._confirmed(errors, index, columns, raw)
        if not confirmed.reason:
            return "pass", confirmed, raw
        label = None if confirmed.biased else self._explained(errors, noise, length, index, columns)
        if label is not None:
            reason = f"lower precision than its dtype: {label}"
            return "lower_precision", replace(confirmed, reason=reason), True
        return "fail", confirmed, True

    def _confirmed(
        self, errors: Errors, index: int, columns: int, raw: bool
    ) -> tuple[BoundCheck, torch.Tensor]:
        """What is found with more reruns and more samples of the reference's errors, and the noise it is found with."""
        # What the first estimate did not call wrong costs no more than that, unless it would be reported.
        for reruns in (RERUNS_TO_CONFIRM,) if raw else (RERUNS, RERUNS_TO_CONFIRM):
            self._reruns.extend(reruns)
            noise = self._measured(errors, index, columns, alone=reruns > RERUNS)
            samples = errors.samples = [errors, *errors_of_variants(self._variants, errors, index)]
            noise_of_all, needs = with_reference_errors(errors, samples, columns, noise)
            confirmed = errors.check(noise_of_all, needs, strictness=CONFIRMING_STRICTNESS)
            if not confirmed.reason:
                return confirmed, noise
        transformed = None if confirmed.biased else self._noise_of_transforms(errors, index)
        if transformed is not None:
            noise_of_all = torch.maximum(noise_of_all, transformed)
            return errors.check(noise_of_all, needs, strictness=CONFIRMING_STRICTNESS), noise
        return confirmed, noise

    def _noise_of_transforms(self, errors: Errors, index: int) -> torch.Tensor | None:
        """The noise of Winograd's transforms, if the errors are of their size: not one element's alone, but all of them."""
        found = transform_variance(self._reference)
        noise = self._of_variance(found[index], errors) if found is not None else None
        if noise is None or float((errors.error.abs() / noise).median()) < TRANSFORMS_SHOWN:
            return None
        return errors.leveled(noise)

    @cached_property
    def _product_variance(self) -> list[torch.Tensor | None] | None:
        return product_variance(self._reference)

    def _noise_of_products(self, errors: Errors, index: int) -> torch.Tensor | None:
        """The noise of a sum of products, which needs no reruns; only ever used to let pass."""
        found = self._product_variance
        noise = self._of_variance(found[index], errors) if found is not None and index < len(found) else None
        return None if noise is None else errors.leveled(noise)

    @staticmethod
    def _of_variance(variance: torch.Tensor | None, errors: Errors) -> torch.Tensor | None:
        """From a variance in units of the squared rounding, noise in units of the result."""
        if variance is None or variance.numel() != errors.exact.numel():
            return None
        rounding = DOUBLE_ROUNDING if errors.form.dtype == torch.float64 else ROUNDING
        return variance.reshape(-1).sqrt().mul_(rounding).div_(errors.unit).float()

    def _without_reruns(self, errors: Errors, index: int, columns: int) -> BoundCheck:
        """Bounds from the value alone, from the reference's errors, then from the cache; all only ever let pass."""
        outcome = errors.check_without_noise()
        if outcome.reason:
            outcome = errors.check(errors.reference_noise(columns), ReferenceNeeds(), brief=True)
        level = self._cache.level(self._key, index) if outcome.reason and self._cache is not None else None
        if level is None:
            return outcome
        noise = errors.leveled(level.in_units(errors.exact, errors.unit))
        return errors.check(noise, ReferenceNeeds(), CACHED_STRICTNESS, brief=True)

    def _measured(
        self, errors: Errors, index: int, columns: int, *, store: bool = False, alone: bool = False
    ) -> torch.Tensor:
        # A few reruns may happen to move one element by next to nothing; each input by itself moves it as far as it does.
        least = self._moved_alone(index) if alone and errors.direct else None
        noise, level = measured_noise(self._reruns, errors, index, columns, least)
        if store and level is not None and self._cache is not None:
            self._cache.store(self._key, index, level)
        return noise

    def _moved_alone(self, index: int) -> torch.Tensor | None:
        """The variance of a function element by element, from what each of its arguments by itself does to it."""
        exact, total = self._reference.truth(), None
        for moved in self._reference.moved_alone():
            if exact is None or moved is None:
                return None
            change = (real_parts(moved[index]) - real_parts(exact[index])).nan_to_num_(0, 0, 0)
            total = change.square() if total is None else total.addcmul_(change, change)
        return total

    @cached_property
    def _variants(self) -> list[tuple[list[Any], list[Any]]]:
        return variants_of(self._reference)

    def _explained(
        self, errors: Errors, noise: torch.Tensor, length: float, index: int, columns: int
    ) -> str | None:
        def shortened(bits: int, nearest: bool) -> torch.Tensor | None:
            found = self._reference.shortened(bits, nearest=nearest)
            return None if found is None else real_parts(found[index])

        evidence = Evidence(
            errors.result,
            errors.exact,
            errors.error * errors.unit,
            (noise - errors.floor).clamp_(min=0) * errors.unit,
            errors.form,
            self._category,
            length,
            errors.own,
            shortest_input(self._reference),
            columns,
            is_scan(self._reference),
            sums_evenly(self._category, self._reference),
            errors,
            shortened,
            lambda: self._noise_inside(index),
        )
        return explanation(evidence)

    def _noise_inside(self, index: int) -> torch.Tensor | None:
        """How far roundings of sums inside of fused operators move the elements (RMS)."""
        reruns = Reruns(self._reference, inside=True)
        reruns.extend(RERUNS_TO_CONFIRM)
        variance = reruns.variance(index)
        return None if variance is None else variance.sqrt_()

    def _without_truth(self, result: torch.Tensor, own: torch.Tensor, form: Format) -> Verdict:
        parts, expected = real_parts(result), real_parts(own)
        errors = Errors(parts, expected, expected, form)
        allowed = expected.abs().mul_(self._tolerance.rtol).add_(self._tolerance.atol).div_(errors.unit)
        wrong = int((errors.error.abs() > allowed.nan_to_num_(0, 0, 0).add_(UNITS_WITHOUT_TRUTH)).sum())
        reason = "no float64 result to compare with; held against atol and rtol"
        if wrong:
            reason = f"{wrong} of {own.numel()} elements are off; {reason}"
        return self._with_columns("fail" if wrong else "pass", reason, result, own)

    def _with_columns(
        self, status: Status, reason: str, result: torch.Tensor, own: torch.Tensor, error_info: str = ""
    ) -> Verdict:
        """The promised columns, of the result beside the reference's own."""
        atol, rtol = self._tolerance.atol, self._tolerance.rtol
        columns = compared(result, own, atol, rtol)
        return Verdict(status, reason, *columns, atol, rtol, error_info)


def _incomparable(value: torch.Tensor) -> str:
    if value.device.type == "meta" or hasattr(value, "fake_mode"):
        return "has no values (meta or fake tensor)"
    if value.is_quantized:
        return "quantized tensors are not compared"
    if value.is_nested:
        return "nested tensors are not compared"
    return ""
