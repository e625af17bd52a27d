"""The search for the smallest list of operators: culprits are found one at a time by halving.

It assumes that more operators on the CPU never make the result worse, and knows nothing of torch or of programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from op_tools.bisect.running import FAILED, LABELLED, Suspicion

__all__ = ["Search", "ranked"]


class Search:
    """Looks for the smallest list of candidates that restores the result.

    `restores` runs the script with these candidates on the CPU. The candidates come in order of suspicion; the first
    `suspects` of them are tried together before anything is halved. With `whole_restores` it is known that all
    candidates together restore the result; otherwise that is tried when nothing less does.
    """

    def __init__(
        self,
        candidates: Sequence[str],
        restores: Callable[[Sequence[str]], bool],
        *,
        suspects: int = 0,
        whole_restores: bool = True,
    ) -> None:
        self.candidates = tuple(candidates)
        self.suspects = suspects
        # What is known so far: operators that any list needs, and the shortest list that did restore the result.
        self.culprits: list[str] = []
        self.restoring: tuple[str, ...] | None = self.candidates if whole_restores else None
        self._restores = restores

    def run(self) -> tuple[str, ...] | None:
        """The smallest list, in the order of the candidates; None if not even all of them restore the result.

        The list given back has been run. Each of its members is needed: the run in which the member was the first
        left out did not restore the result, and that run had all other members of the list on the CPU.
        """
        rest = self.candidates
        while rest:
            if self.culprits and self._try(()):
                break
            length = self._shortest_restoring(rest)
            if length is None:
                return None
            self.culprits.append(rest[length - 1])
            rest = rest[: length - 1]
        return self._in_order(self.culprits) if self.culprits else None

    def _shortest_restoring(self, rest: tuple[str, ...]) -> int | None:
        """The length of the shortest beginning of `rest` that restores the result together with the culprits."""
        low, high = 0, len(rest)
        if 0 < self.suspects < high:
            low, high = (low, self.suspects) if self._try(rest[: self.suspects]) else (self.suspects, high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._try(rest[:middle]) else (middle, high)
        if self.restoring is None and not self._try(rest):  # nothing shorter did, so high is still the end
            return None
        return high

    def _try(self, more: Sequence[str]) -> bool:
        operators = self._in_order([*self.culprits, *more])
        restored = self._restores(operators)
        if restored:
            self.restoring = operators
        return restored

    def _in_order(self, operators: Sequence[str]) -> tuple[str, ...]:
        wanted = set(operators)
        return tuple(name for name in self.candidates if name in wanted)


def ranked(seen: Sequence[str], found: Mapping[str, Suspicion]) -> tuple[list[str], int]:
    """The operators, most suspicious first, and how many of them were judged wrong (or else: less precise)."""

    def weight(name: str) -> tuple[int, float]:
        return found[name].weight if name in found else (0, 0.0)

    order = sorted(seen, key=weight, reverse=True)  # those of the same weight stay in the order of first use
    for level in (FAILED, LABELLED):
        count = sum(weight(name)[0] >= level for name in order)
        if count:
            return order, count
    return order, 0
