"""Sources as the published flags change them: other layouts, four-byte numbers, what a device does not support."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from dicore.conformance.cases import Case, CaseSource
from dicore.conformance.results import Status
from diopi.conformance.diopi_case import DiopiCase
from diopi.conformance.legacy_device_config import Rule
from diopi.table import load

_FOUR_BYTES = {torch.float64: torch.float32, torch.int64: torch.int32, torch.complex128: torch.complex64}


@dataclass(frozen=True, slots=True)
class ExcludedCase(DiopiCase):
    """A case that is not run here, and why: a device does not support it, or its stored reference differs from ours."""

    status: Status = "skipped"
    reason: str = ""

    @classmethod
    def of(cls, case: DiopiCase, status: Status, reason: str) -> ExcludedCase:
        return cls(case.id, case.function, case.dtype, case.label, case.arguments, status, reason)

    @property
    def outcome(self) -> tuple[Status, str] | None:
        return self.status, self.reason


@dataclass
class AdjustedSource:
    """The cases of another source, changed; what rules leave out is marked with the reason."""

    source: CaseSource
    rules: tuple[Rule, ...] = ()
    nhwc_min_dim: int | None = None
    four_bytes: bool = False
    unwanted_dtypes: frozenset[str] = frozenset()

    name: str = field(init=False)
    """As the source is called, so that ids stay the same."""

    def __post_init__(self) -> None:
        self.name = self.source.name

    def groups(self, functions: frozenset[str] | None) -> list[str]:
        """Those of the source."""
        return self.source.groups(functions)

    def cases(self, group: str) -> Iterator[Case]:
        """The source's cases, changed, without those of dtypes that nobody wants."""
        for case in self.source.cases(group):
            changed = self._changed(case) if isinstance(case, DiopiCase) else case
            if changed.dtype in self.unwanted_dtypes:
                continue
            if isinstance(changed, DiopiCase) and (reason := self._reason_to_skip(changed)) is not None:
                changed = ExcludedCase.of(changed, "skipped", reason)
            yield changed

    def _reason_to_skip(self, case: DiopiCase) -> str | None:
        return next((reason for rule in self.rules if (reason := rule.reason(case)) is not None), None)

    def _changed(self, case: DiopiCase) -> DiopiCase:
        if self.nhwc_min_dim is None and not self.four_bytes:
            return case
        entry = load().entries.get(case.function)
        if entry is None:
            return case  # the verdict says so
        outputs = {a.name for a in entry.written() if entry.role(a) in ("out", "outs")}
        arguments = {n: self._value(v, output=n in outputs) for n, v in case.arguments.items()}
        dtype = case.dtype
        if self.four_bytes:
            dtype = {"float64": "float32", "int64": "int32", "complex128": "complex64"}.get(dtype, dtype)
        return replace(case, arguments=arguments, dtype=dtype)

    def _value(self, value: Any, *, output: bool) -> Any:
        if isinstance(value, list):
            return [self._value(item, output=output) for item in value]
        if not isinstance(value, torch.Tensor):
            return value
        # Positions that a function gives stay int64: the interface wants them so.
        if self.four_bytes and not (output and value.dtype == torch.int64):
            value = value.to(_FOUR_BYTES.get(value.dtype, value.dtype))
        least = self.nhwc_min_dim
        if least is not None and value.dim() >= max(3, least) and value.numel():
            order = (0, *range(2, value.dim()), 1)
            back = sorted(range(value.dim()), key=order.__getitem__)
            value = value.permute(order).contiguous().permute(back)
        return value
