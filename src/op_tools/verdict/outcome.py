"""What a judgement comes to: the verdict on one tensor or number, with the columns that tables and files have of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from op_tools.verdict.tolerance import NO_TOLERANCE, Tolerance

Status = Literal["same", "pass", "lower_precision", "fail", "skipped"]
# Of what was judged: the worst verdict stands for a call of several values.
WORST_FIRST: Final = ("fail", "lower_precision", "pass", "same")
_RIGHT_OR_NOT_JUDGED = frozenset({"", "same", "pass", "skipped"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one tensor or number."""

    status: Status
    reason: str
    allclose: bool
    cosine_similarity: float
    max_abs_diff: float
    max_relative_diff: float
    atol: float
    rtol: float
    error_info: str = ""
    error_over_bound: float = float("nan")
    rms_ratio: float = float("nan")
    raw_alarm: bool = False  # the first estimate called it wrong; `status` says what confirmation made of it
    reruns: int = 0  # how many noise reruns were paid

    @property
    def ok(self) -> bool:
        """Everything but a failure: lower precision is a label, not a failure."""
        return self.status != "fail"

    def as_row(self) -> dict[str, Any]:
        """The columns of a comparison, as tables, logs and CSV files have them."""
        return {
            "allclose": self.allclose,
            "cosine_similarity": self.cosine_similarity,
            "max_abs_diff": self.max_abs_diff,
            "max_relative_diff": self.max_relative_diff,
            "atol": self.atol,
            "rtol": self.rtol,
            "error_info": self.error_info,
            "verdict": self.status,
            "reason": self.reason,
            "error_over_bound": self.error_over_bound,
        }

    @staticmethod
    def plain(status: Status, reason: str = "", tolerance: Tolerance = NO_TOLERANCE) -> Verdict:
        """A verdict that no values were needed for: identical, not comparable at all, or not compared."""
        good = status != "fail"
        difference = 0.0 if good else float("inf")
        return Verdict(
            status,
            reason,
            allclose=good,
            cosine_similarity=1.0 if good else 0.0,
            max_abs_diff=difference,
            max_relative_diff=difference,
            atol=tolerance.atol,
            rtol=tolerance.rtol,
            error_info="" if good else reason,
        )


def is_label(status: str) -> bool:
    """Whether a verdict is neither right nor wrong: what it says of a value has a name of its own."""
    return status != "fail" and status not in _RIGHT_OR_NOT_JUDGED
