"""How much of a run went to the vendor's DIOPI functions, how much fell back, and what that cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any

from diopi.table import load
from torch_dipu import _C

__all__ = ["Coverage", "OperatorCoverage"]

_FIGURES = ("diopi", "alias", "copy", "diopi_ns", "alias_ns", "copy_ns", "copied_bytes")
_NANOSECONDS = 1e9
# What the table serves under the name that a device is asked for, and the fallback runs under the CPU's.
_ON_DEVICE = {
    "convolution": "convolution_overrideable",
    "convolution_backward": "convolution_backward_overrideable",
}


@dataclass(frozen=True)
class OperatorCoverage:
    """One ATen operator of a run: calls and seconds by the way they took."""

    name: str
    diopi_calls: int
    alias_calls: int
    copy_calls: int
    diopi_seconds: float
    fallback_seconds: float
    copied_bytes: int
    functions: tuple[str, ...]
    """The DIOPI functions that serve this operator, for the calls they take."""
    asked: dict[str, int] = field(default_factory=dict)
    """Calls that fell back because a setting asked for it, by the setting's variable."""

    @property
    def fallback_calls(self) -> int:
        return self.alias_calls + self.copy_calls

    @property
    def reason(self) -> str:
        """Why calls fell back."""
        if not self.fallback_calls:
            return ""
        if not self.functions:
            return "no DIOPI function"
        reasons = [f"{_asked_by(variable)} ({_calls(calls)})" for variable, calls in self.asked.items()]
        if sum(self.asked.values()) < self.fallback_calls:
            taken = "some calls are not taken (dtype, layout, condition)"
            reasons.append(
                taken if self.diopi_calls or reasons else f"not taken by {', '.join(self.functions)}"
            )
        return "; ".join(reasons)


class Coverage:
    """Counts what happens between `with` and its end; time is measured while it counts.

        with Coverage() as coverage:
            train_step()
        print(f"{coverage.share:.1%} of the calls went to DIOPI")

    Counting is for the whole process. Time is what the calls took on their threads: where a vendor works
    asynchronously, what was queued is not in it.
    """

    def __init__(self) -> None:
        self._before: dict[str, dict[str, Any]] = {}
        self.operators: list[OperatorCoverage] = []

    def __enter__(self) -> Coverage:
        self._before = _C.op_counts()
        _C.set_timing(True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _C.set_timing(False)
        served = load().by_overload()
        for name, now in _C.op_counts().items():
            before = self._before.get(name, {})
            spent = {figure: now[figure] - before.get(figure, 0) for figure in _FIGURES}
            if spent["diopi"] + spent["alias"] + spent["copy"] > 0:
                short = name.removeprefix("aten::")
                entries = served.get(_ON_DEVICE.get(short, short), [])
                functions = tuple(dict.fromkeys(e.name for e in entries))
                asked = _grown(now["asked"], before.get("asked", {}))
                self.operators.append(_operator(name, spent, functions, asked))
        self.operators.sort(key=lambda o: (-o.fallback_seconds, -o.fallback_calls, o.name))

    @property
    def calls(self) -> int:
        return sum(o.diopi_calls + o.fallback_calls for o in self.operators)

    @property
    def share(self) -> float:
        """The part of all operator calls that a DIOPI function served; 1.0 of none."""
        return sum(o.diopi_calls for o in self.operators) / self.calls if self.calls else 1.0

    @property
    def seconds(self) -> float:
        return sum(o.diopi_seconds + o.fallback_seconds for o in self.operators)

    @property
    def fallback_seconds(self) -> float:
        return sum(o.fallback_seconds for o in self.operators)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for files and other programs."""
        return {
            "calls": self.calls,
            "diopi_calls": sum(o.diopi_calls for o in self.operators),
            "alias_calls": sum(o.alias_calls for o in self.operators),
            "copy_calls": sum(o.copy_calls for o in self.operators),
            "diopi_share": self.share,
            "seconds": self.seconds,
            "fallback_seconds": self.fallback_seconds,
            "copied_bytes": sum(o.copied_bytes for o in self.operators),
            "operators": [{**asdict(o), "reason": o.reason} for o in self.operators],
        }


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count:,} calls"


def _asked_by(variable: str) -> str:
    return f"{variable}=DISABLE" if variable == "DIPU_WITH_DIOPI_LIBRARY" else f"{variable} names it"


def _grown(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {name: more for name, calls in now.items() if (more := calls - before.get(name, 0)) > 0}


def _operator(
    name: str, spent: dict[str, int], functions: tuple[str, ...], asked: dict[str, int]
) -> OperatorCoverage:
    return OperatorCoverage(
        name=name,
        diopi_calls=spent["diopi"],
        alias_calls=spent["alias"],
        copy_calls=spent["copy"],
        diopi_seconds=spent["diopi_ns"] / _NANOSECONDS,
        fallback_seconds=(spent["alias_ns"] + spent["copy_ns"]) / _NANOSECONDS,
        copied_bytes=spent["copied_bytes"],
        functions=functions,
        asked=asked,
    )
