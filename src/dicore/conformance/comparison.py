"""What changed between two runs of the suite."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dicore.conformance.results import CaseResult, RunReport

__all__ = ["RunComparison", "compare", "comparison_text"]


@dataclass
class RunComparison:
    """Cases whose status changed, and cases of one run only. Each pair is (before, after)."""

    failing: list[tuple[CaseResult, CaseResult]] = field(default_factory=list)
    unsupported: list[tuple[CaseResult, CaseResult]] = field(default_factory=list)
    skipped: list[tuple[CaseResult, CaseResult]] = field(default_factory=list)
    passing: list[tuple[CaseResult, CaseResult]] = field(default_factory=list)
    missing: list[CaseResult] = field(default_factory=list)
    new: list[CaseResult] = field(default_factory=list)
    same: int = 0

    @property
    def worse(self) -> bool:
        """Something fails, is unsupported, is left out or is gone that was not before; a new case fails."""
        lost = any(before.status == "pass" for before, _ in (*self.unsupported, *self.skipped))
        gone = any(result.status == "pass" for result in self.missing)
        return bool(self.failing) or lost or gone or any(result.status == "fail" for result in self.new)


def compare(a: RunReport, b: RunReport) -> RunComparison:
    """From run A to run B, by the ids of the cases."""
    before = {result.id: result for result in a.results}
    after = {result.id: result for result in b.results}
    found = RunComparison()
    kinds = {
        "fail": found.failing,
        "unsupported": found.unsupported,
        "skipped": found.skipped,
        "pass": found.passing,
    }
    for identity, result in after.items():
        earlier = before.get(identity)
        if earlier is None:
            found.new.append(result)
        elif earlier.status == result.status:
            found.same += 1
        else:
            kinds[result.status].append((earlier, result))
    found.missing = [result for identity, result in before.items() if identity not in after]
    return found


def comparison_text(comparison: RunComparison, limit: int = 20) -> str:
    """The comparison as text, the summary first; at most `limit` cases of each kind (0: all)."""
    changed = (
        ("newly failing", comparison.failing),
        ("newly unsupported", comparison.unsupported),
        ("newly skipped", comparison.skipped),
        ("newly passing", comparison.passing),
    )
    counts = ", ".join(f"{len(pairs)} {title}" for title, pairs in changed)
    by_status = Counter(result.status for result in comparison.new)
    of_new = f" ({', '.join(f'{n} {s}' for s, n in sorted(by_status.items()))})" if by_status else ""
    total = f"{counts}, {len(comparison.missing)} missing, {len(comparison.new)} new{of_new}, {comparison.same} as before"
    lines = ["worse" if comparison.worse else "nothing got worse", total]
    for title, pairs in changed:
        lines += _section(title, [f"{b.title}  was {a.status}{_reason(b)}" for a, b in pairs], limit)
    lines += _section("missing", [f"{r.title}  was {r.status}" for r in comparison.missing], limit)
    new = [f"{r.title}  is {r.status}{_reason(r)}" for r in comparison.new]
    lines += _section("new", new, limit)
    return "\n".join(lines)


def _section(title: str, rows: list[str], limit: int) -> list[str]:
    if not rows:
        return []
    shown = rows if limit == 0 else rows[:limit]
    more = (
        [f"  ... and {len(rows) - len(shown)} more (--limit 0 shows all)"] if len(shown) < len(rows) else []
    )
    return ["", f"{title} ({len(rows)})", *(f"  {row}" for row in shown), *more]


def _reason(result: CaseResult) -> str:
    return f": {result.reason}" if result.reason and result.status != "pass" else ""
