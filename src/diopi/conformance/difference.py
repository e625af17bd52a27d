"""What changed between two runs of the suite."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from diopi.conformance.results import Result
from diopi.conformance.runner import Report


@dataclass
class Difference:
    """Cases whose status changed, and cases of one run only. Each pair is (before, after)."""

    failing: list[tuple[Result, Result]] = field(default_factory=list)
    unsupported: list[tuple[Result, Result]] = field(default_factory=list)
    skipped: list[tuple[Result, Result]] = field(default_factory=list)
    passing: list[tuple[Result, Result]] = field(default_factory=list)
    missing: list[Result] = field(default_factory=list)
    new: list[Result] = field(default_factory=list)
    same: int = 0

    @property
    def worse(self) -> bool:
        """Something fails, is unsupported, is left out or is gone that was not before; a new case fails."""
        lost = any(before.status == "pass" for before, _ in (*self.unsupported, *self.skipped))
        gone = any(result.status == "pass" for result in self.missing)
        return bool(self.failing) or lost or gone or any(result.status == "fail" for result in self.new)


def compare(a: Report, b: Report) -> Difference:
    """From run A to run B, by the ids of the cases."""
    before = {result.id: result for result in a.results}
    after = {result.id: result for result in b.results}
    found = Difference()
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


def printed(difference: Difference, limit: int = 20) -> str:
    """The difference as text, the summary first; at most `limit` cases of each kind (0: all)."""
    changed = (
        ("newly failing", difference.failing),
        ("newly unsupported", difference.unsupported),
        ("newly skipped", difference.skipped),
        ("newly passing", difference.passing),
    )
    counts = ", ".join(f"{len(pairs)} {title}" for title, pairs in changed)
    by_status = Counter(result.status for result in difference.new)
    of_new = f" ({', '.join(f'{n} {s}' for s, n in sorted(by_status.items()))})" if by_status else ""
    total = f"{counts}, {len(difference.missing)} missing, {len(difference.new)} new{of_new}, {difference.same} as before"
    lines = ["worse" if difference.worse else "nothing got worse", total]
    for title, pairs in changed:
        lines += _section(title, [f"{_named(b)}  was {a.status}{_reason(b)}" for a, b in pairs], limit)
    lines += _section("missing", [f"{_named(r)}  was {r.status}" for r in difference.missing], limit)
    new = [f"{_named(r)}  is {r.status}{_reason(r)}" for r in difference.new]
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


def _named(result: Result) -> str:
    return " ".join(part for part in (result.id, result.dtype, result.label) if part)


def _reason(result: Result) -> str:
    return f": {result.reason}" if result.reason and result.status != "pass" else ""
