"""What conversions cost, operator by operator: one JSON line for each, so that several processes can write one file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from diopi.adaptor.rules import RulesError


@dataclass(frozen=True)
class Cost:
    """The costs of one operator so far (diopiAdaptorCost in csrc/adaptor/adaptor.h)."""

    name: str
    calls: int = 0
    composed: int = 0
    conversions: int = 0
    on_host: int = 0
    bytes: int = 0
    nanoseconds: int = 0
    call_nanoseconds: int = 0
    errors: int = 0

    @property
    def share(self) -> float:
        """Conversions' part of the time, from 0 to 1."""
        total = self.nanoseconds + self.call_nanoseconds
        return self.nanoseconds / total if total else 0.0


def merged(costs: Iterable[Cost]) -> list[Cost]:
    """Costs of the same operator added up, the most expensive first."""
    sums: dict[str, dict[str, int]] = {}
    for cost in costs:
        total = sums.setdefault(cost.name, {})
        for field in fields(Cost)[1:]:
            total[field.name] = total.get(field.name, 0) + getattr(cost, field.name)
    return sorted(
        (Cost(name, **total) for name, total in sums.items()), key=lambda c: (-c.nanoseconds, c.name)
    )


def append_costs(path: Path, costs: Iterable[Cost]) -> None:
    """Adds lines to a file."""
    text = "".join(json.dumps(asdict(cost)) + "\n" for cost in costs)
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def read_costs(path: Path) -> list[Cost]:
    """The lines of a file; RulesError if it is another one."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise RulesError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise RulesError(f"{path} is not a text file (UTF-8)") from None
    costs = []
    for number, line in enumerate(lines, 1):
        try:
            costs.append(Cost(**json.loads(line)))
        except (ValueError, TypeError):
            raise RulesError(
                f"{path}:{number}: this is no line of costs; expected what DIOPI_ADAPTOR_REPORT=FILE writes"
            ) from None
    return costs


def table(costs: Iterable[Cost]) -> str:
    """The costs as a table for the console."""
    titles = ("calls", "composed", "converted", "on host", "MB", "ms", "share", "errors")
    head = f"{'operator':36} " + " ".join(f"{title:>9}" for title in titles)
    rows = [
        f"{c.name:36} {c.calls:9} {c.composed:9} {c.conversions:9} {c.on_host:9} {c.bytes / 1e6:9.2f} {c.nanoseconds / 1e6:9.2f} "
        f"{c.share:9.0%} {c.errors:9}"
        for c in merged(costs)
    ]
    return "\n".join([head, *rows])
