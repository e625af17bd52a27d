"""The search for the operators behind a wrong result: the bad run, the reference, the runs between them, the answer.

`Search` finds culprits one at a time by halving. It assumes that more operators on the CPU never make the result worse, and
knows nothing of torch or of programs. `Bisection` gives it candidates, most suspicious first, and runs the program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from op_tools.bisect.readings import ResultJudge
from op_tools.bisect.running import WEIGHT, Runner, ScriptRun, Suspicion
from op_tools.runs import NOTHING, BadInput

__all__ = ["Bisection", "Search", "ranked"]


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
    for level in sorted(WEIGHT.values(), reverse=True):
        count = sum(weight(name)[0] >= level for name in order)
        if count:
            return order, count
    return order, 0


@dataclass
class Bisection:
    """Finds the operators behind a wrong result. What is known at any time can be read from it."""

    runner: Runner
    report: Callable[[ScriptRun], None]  # called after each run
    expect: tuple[float, ...] | None = None
    tolerance: float | None = None
    prior: bool = True
    runs: list[ScriptRun] = field(default_factory=list)
    operators: tuple[str, ...] | None = None  # the answer
    judge: ResultJudge | None = None
    search: Search | None = None

    def run(self) -> tuple[str, ...] | None:
        """The smallest list that restores the result; None if there is none. Raises BadInput if there is no question."""
        bad = self._first()
        reference = self.expect if self.expect is not None else self._reference(bad)
        self._check_question(bad, reference)
        seen = tuple(dict.fromkeys(name for run in self.runs for name in run.seen))
        if not seen:
            raise BadInput(
                "no operator ran on a device that OpFallback could take to the CPU, so there is nothing to search. "
                "Does the script use the device? OP_TOOLS_DEVICE names the device types to watch.",
                NOTHING,
            )
        order, suspects = ranked(seen, self.found)
        self.search = Search(order, self._restores, suspects=suspects, whole_restores=self.expect is None)
        self.operators = self.search.run()
        return self.operators

    @property
    def seen(self) -> int:
        """How many operators could be on the list."""
        return len(self.search.candidates) if self.search is not None else 0

    @property
    def found(self) -> dict[str, Suspicion]:
        """What OpAutoCompare found in the first run, by operator."""
        return self.runs[0].found if self.runs else {}

    @property
    def left(self) -> float:
        """The share of the error that is left with the answer on the CPU; 0 if the error has no size."""
        answer = next((run for run in self.runs if run.restored and run.fallback == self.operators), None)
        if answer is None or self.judge is None or not math.isfinite(self.judge.gap):
            return 0.0
        return self.judge.distance(answer.result) / self.judge.gap

    def _done(self, run: ScriptRun) -> ScriptRun:
        self.runs.append(run)
        self.report(run)
        return run

    def _first(self) -> ScriptRun:
        run = self._done(self.runner.run((), observe=True, compare=self.prior))
        if self.runner.reading.exit_code and run.ended_well:
            raise BadInput(
                "the script ends with exit code 0 as it is, so --exit-code finds nothing wrong with it. If its result is "
                "wrong all the same, leave out --exit-code or give --result.",
                NOTHING,
            )
        self._check_has_result(run)
        return run

    def _check_has_result(self, run: ScriptRun) -> None:
        if run.ended_well and not run.result:
            raise BadInput(
                f"run {run.number} of {self.runner.script} gave no result: {self.runner.reading.advice()}"
            )

    def _reference(self, bad: ScriptRun) -> tuple[float, ...]:
        run = self._done(self.runner.run(None, observe=True))
        self._check_has_result(run)
        if not run.ended_well:
            also = "too" if not bad.ended_well else "though not without it"
            raise BadInput(
                f"with every operator on the CPU the script fails {also}: {run.problem}. Hence no list of operators "
                "helps: the fault is not in an operator, or in one that OpFallback leaves on the device. Run the script "
                "by itself first; --keep DIR keeps what the runs printed.",
                NOTHING,
            )
        if any(math.isnan(value) for value in run.result):
            raise BadInput(
                "with every operator on the CPU the result is NaN too, so it is not an operator of the device that "
                "makes it. `ditorch run --tool overflow SCRIPT` finds the call in which the first NaN is born.",
                NOTHING,
            )
        return run.result

    def _check_question(self, bad: ScriptRun, reference: Sequence[float]) -> None:
        if self.expect is not None and bad.ended_well and len(bad.result) != len(reference):
            raise BadInput(
                f"the script's result has {len(bad.result)} numbers and the expected one {len(reference)}. Give as many "
                "as the script, or choose its numbers with --result REGEX."
            )
        self.judge = ResultJudge.between(bad.result, reference, self.tolerance)
        if not self.judge.nothing_wrong:
            return
        same = "is the same with every operator on the CPU"
        where = "is the one expected" if self.expect is not None else same
        stayed = ", ".join(self.runs[-1].stayed)
        raise BadInput(
            f"nothing to search: the result {where} (relative difference {self.judge.gap:.1e}). If it is wrong all the "
            "same, look at data, seeds and settings, and at what stays on the device: random operators, copies, and "
            "operators that take no tensor such as arange. Results printed with few digits hide small differences; "
            "--expect gives the right result from elsewhere."
            + (f" The CPU could not run {stayed}." if stayed else ""),
            NOTHING,
        )

    def _restores(self, operators: Sequence[str]) -> bool:
        assert self.judge is not None
        run = self.runner.run(operators)
        run.restored = run.ended_well and self.judge.restored(run.result)
        self._done(run)
        return run.restored
