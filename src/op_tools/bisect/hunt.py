"""The whole search: the bad run, the reference, the runs between them, and the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from op_tools.bisect.ranking import Suspicion, ranked
from op_tools.bisect.readings import Judge
from op_tools.bisect.running import Runner, ScriptRun
from op_tools.bisect.search import Search
from op_tools.runs import NOTHING, BadInput

__all__ = ["Hunt"]


@dataclass
class Hunt:
    """Finds the operators behind a wrong result. What is known at any time can be read from it."""

    runner: Runner
    report: Callable[[ScriptRun], None]  # called after each run
    expect: tuple[float, ...] | None = None
    tolerance: float | None = None
    prior: bool = True
    runs: list[ScriptRun] = field(default_factory=list)
    operators: tuple[str, ...] | None = None  # the answer
    judge: Judge | None = None
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
        self.judge = Judge.between(bad.result, reference, self.tolerance)
        if not self.judge.nothing_wrong:
            return
        where = (
            "is the one expected" if self.expect is not None else "is the same with every operator on the CPU"
        )
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
