"""Whether a device's result is right. A leaf of the house: it needs torch and what recomputes a call, nothing else.

`judge_all` is the way in; `judge_random` is for operators that draw random numbers. The rule itself is in `bounds`, the
noise it leans on in `noise`, and the models of lower-precision arithmetic in `arithmetic`.
"""

from __future__ import annotations

from op_tools.reference.base import Reference
from op_tools.verdict.distribution import judge_random
from op_tools.verdict.judgement import judge, judge_all, within_tolerance
from op_tools.verdict.noise import NoiseCache
from op_tools.verdict.outcome import WORST_FIRST, Verdict, is_label
from op_tools.verdict.tolerance import Tolerance, tolerance_for

__all__ = [
    "WORST_FIRST",
    "NoiseCache",
    "Reference",
    "Tolerance",
    "Verdict",
    "is_label",
    "judge",
    "judge_all",
    "judge_random",
    "tolerance_for",
    "within_tolerance",
]
