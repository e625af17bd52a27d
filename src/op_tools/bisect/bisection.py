"""The whole of a search: the bad run, the reference, the runs between them, the answer.

By loss: operators go to the CPU until the result is that of the reference again. By verdict: operators that OpAutoCompare judges
wrong go to the CPU until it judges none wrong. A fault that moves the loss by less than rounding does is found that way only, and
so is one in a random operator, which stays on the device and is judged by its distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from op_tools.bisect.readings import ResultJudge
from op_tools.bisect.running import Runner, ScriptRun, Suspicion
from op_tools.bisect.search import Search, ranked
from op_tools.runs import NOTHING, BadInput

__all__ = ["Bisection", "By"]

By = Literal["", "loss", "verdict"]

# Below this relative difference it is asked what rounding alone makes of the script's result.
DOUBTFUL = 1e-2
# Rounding that was drawn once may be so many times larger the next time.
NOISE_MARGIN = 4.0
# A first run of at most so many seconds is made again to judge every call, where nothing else shows what is wrong.
SHORT = 60.0
# Each operator that goes to the CPU may show the program the way to other wrong ones; there is an end to that.
MOST_ROUNDS = 5


class NoQuestion(BadInput):
    """The result of the program leaves nothing to search."""

    def __init__(self, message: str, short: str) -> None:
        super().__init__(message, NOTHING)
        self.short = short


@dataclass
class Bisection:
    """Finds the operators behind a wrong result. What is known at any time can be read from it."""

    runner: Runner
    report: Callable[[ScriptRun], None]  # called after each run
    expect: tuple[float, ...] | None = None
    tolerance: float | None = None
    prior: bool = True
    by: By = ""  # empty: by loss, and by verdict where the loss does not tell
    runs: list[ScriptRun] = field(default_factory=list)
    operators: tuple[str, ...] | None = None  # the answer
    stays: tuple[str, ...] = ()  # judged wrong too, but OpFallback cannot take them to the CPU
    found: dict[str, Suspicion] = field(default_factory=dict)  # what OpAutoCompare found, by operator
    without_loss: str = ""  # why the search went by verdict, if it was not asked to
    every: bool = False  # whether every call is judged, and not the first of each signature only
    judge: ResultJudge | None = None
    noise: float | None = None  # the relative difference that rounding alone makes, where it was asked
    search: Search | None = None

    def run(self) -> tuple[str, ...] | None:
        """The smallest list that restores the result; None if there is none. Raises BadInput if there is no question."""
        self.every = self.by == "verdict"
        bad = self._done(
            self.runner.run((), observe=True, compare=self.prior, every=self.every), keep_found=True
        )
        if self.by == "verdict":
            if not self.judged_wrong:
                raise BadInput(_NOTHING_WRONG, NOTHING)
            return self._by_verdict()
        try:
            self._ask(bad)
        except NoQuestion as problem:
            if self.by == "loss":
                raise
            self._judge_every_call(bad)
            if not self.judged_wrong:
                told = _NONE_WRONG if self.every else _ASK_FOR_EVERY
                raise NoQuestion(f"{problem} {told}", problem.short) from None
            self.without_loss = problem.short
            return self._by_verdict()
        return self._by_loss()

    def _judge_every_call(self, bad: ScriptRun) -> None:
        """Where the first call of each signature is right: faults come and go."""
        if self.prior and not self.judged_wrong and bad.ended_well and bad.seconds <= SHORT:
            self.every = True
            self._done(self.runner.run((), observe=True, compare=True, every=True), keep_found=True)

    @property
    def seen(self) -> int:
        """How many operators could be on the list."""
        return len(self._names_seen())

    @property
    def judged_wrong(self) -> list[str]:
        """Operators that failed, the worst first."""
        wrong = [name for name, found in self.found.items() if found.verdict == "fail"]
        return sorted(wrong, key=lambda name: self.found[name].weight, reverse=True)

    @property
    def left(self) -> float:
        """The share of the error that is left with the answer on the CPU; 0 if the error has no size."""
        answer = next((run for run in self.runs if run.restored and run.fallback == self.operators), None)
        if self.by_verdict or answer is None or self.judge is None or not math.isfinite(self.judge.gap):
            return 0.0
        return self.judge.distance(answer.result) / self.judge.gap

    @property
    def by_verdict(self) -> bool:
        return self.by == "verdict" or bool(self.without_loss)

    def _names_seen(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for run in self.runs for name in run.seen))

    def _done(self, run: ScriptRun, *, keep_found: bool = False) -> ScriptRun:
        if keep_found:
            for name, suspicion in run.found.items():
                if name not in self.found or suspicion.weight > self.found[name].weight:
                    self.found[name] = suspicion
        self.runs.append(run)
        self.report(run)
        return run

    # -- is there a question -------------------------------------------------------------------------------------

    def _ask(self, bad: ScriptRun) -> None:
        """Find out what the result should be. Raises NoQuestion where the result does not show that something is wrong."""
        if self.runner.reading.exit_code and bad.ended_well:
            raise NoQuestion(
                "the script ends with exit code 0 as it is, so --exit-code finds nothing wrong with it. If its result is "
                "wrong all the same, leave out --exit-code or give --result.",
                "the script ends with exit code 0",
            )
        self._check_has_result(bad)
        reference = self.expect if self.expect is not None else self._reference(bad)
        if self.expect is not None and bad.ended_well and len(bad.result) != len(reference):
            raise BadInput(
                f"the script's result has {len(bad.result)} numbers and the expected one {len(reference)}. Give as many "
                "as the script, or choose its numbers with --result REGEX."
            )
        self.judge = ResultJudge.between(bad.result, reference, self.tolerance)
        if self.judge.nothing_wrong:
            raise self._same()
        if not self._names_seen():
            raise BadInput(
                "no operator ran on a device that OpFallback could take to the CPU, so there is nothing to search. "
                "Does the script use the device? OP_TOOLS_DEVICE names the device types to watch.",
                NOTHING,
            )
        self._check_noise()

    def _check_has_result(self, run: ScriptRun) -> None:
        if not run.ended_well or run.result:
            return
        reading, message = self.runner.reading, f"run {run.number} of {self.runner.script} gave no result"
        if reading.pattern is None and reading.file is None and self.judged_wrong:
            raise NoQuestion(f"{message}: {reading.advice()}", "the script prints no loss")
        raise BadInput(f"{message}: {reading.advice()}")

    def _reference(self, bad: ScriptRun) -> tuple[float, ...]:
        run = self._done(self.runner.run(None, observe=True))
        self._check_has_result(run)
        if not run.ended_well:
            also = "too" if not bad.ended_well else "though not without it"
            raise NoQuestion(
                f"with every operator on the CPU the script fails {also}: {run.problem}. Hence no list of operators "
                "helps: the fault is not in an operator, or in one that OpFallback leaves on the device. Run the script "
                "by itself first; --keep DIR keeps what the runs printed.",
                f"with every operator on the CPU the script fails {also}",
            )
        if any(math.isnan(value) for value in run.result):
            raise NoQuestion(
                "with every operator on the CPU the result is NaN too, so it is not an operator of the device that "
                "makes it. `ditorch run --tool overflow SCRIPT` finds the call in which the first NaN is born.",
                "with every operator on the CPU the result is NaN too",
            )
        return run.result

    def _same(self) -> NoQuestion:
        assert self.judge is not None
        same = "is the same with every operator on the CPU"
        where = "is the one expected" if self.expect is not None else same
        stayed = ", ".join(self.runs[-1].stayed)
        short = f"the result {where} (relative difference {self.judge.gap:.1e})"
        return NoQuestion(
            f"nothing to search: {short}. If it is wrong all the same, look at data, seeds and settings, and at what stays on "
            "the device: copies, and operators that take no tensor such as arange. Results printed with few digits hide small "
            "differences; --expect gives the right result from elsewhere."
            + (f" The CPU could not run {stayed}." if stayed else ""),
            short,
        )

    def _check_noise(self) -> None:
        """Raises NoQuestion where the difference is no larger than rounding makes it.

        Not asked where operators that are judged wrong restore the result: then it is no rounding.
        """
        assert self.judge is not None
        measured = self.by == "" and self.expect is None and self.tolerance is None
        if not measured or self.judge.gap >= DOUBTFUL:
            return
        suspects = [name for name in self.judged_wrong if name in self._names_seen()]
        if suspects and self._restores(suspects):
            return
        run = self._done(self.runner.run(None, perturb=True))
        self.noise = self.judge.distance(run.result) if run.ended_well else 0.0
        if self.judge.gap <= NOISE_MARGIN * self.noise:
            raise NoQuestion(
                f"nothing to search: the result differs by {self.judge.gap:.1e} from that of the CPU, and one rounding in each "
                f"operator makes it differ by {self.noise:.1e}; --by loss searches all the same.",
                f"the result differs by {self.judge.gap:.1e}, and rounding alone makes it differ by {self.noise:.1e}",
            )

    # -- the two searches ----------------------------------------------------------------------------------------

    def _by_loss(self) -> tuple[str, ...] | None:
        order, suspects = ranked(self._names_seen(), self.found)
        self.search = Search(order, self._restores, suspects=suspects, whole_restores=self.expect is None)
        self.operators = self.search.run()
        return self.operators

    def _restores(self, operators: Sequence[str]) -> bool:
        assert self.judge is not None
        wanted = frozenset(operators)
        for run in self.runs:
            if run.restored is not None and run.fallback is not None and frozenset(run.fallback) == wanted:
                return run.restored
        run = self.runner.run(operators)
        run.restored = run.ended_well and self.judge.restored(run.result)
        self._done(run)
        return run.restored

    def _by_verdict(self) -> tuple[str, ...] | None:
        """Every operator is judged on its own inputs, so all that fail are at fault: there is nothing to halve."""
        for _ in range(MOST_ROUNDS):
            known = self.judged_wrong
            movable = set(self._names_seen())
            self.operators = tuple(name for name in known if name in movable)
            self.stays = tuple(name for name in known if name not in movable)
            if not self.operators:
                break
            run = self.runner.run(self.operators, observe=True, compare=True, every=self.every)
            new = [name for name, found in run.found.items() if found.verdict == "fail" and name not in known]
            run.restored = run.ended_well and not new
            self._done(run, keep_found=True)
            if not new:
                break
        return self.operators


_NONE_WRONG = "OpAutoCompare judged every call on the device as well, random ones by their distribution, and found none wrong."
_ASK_FOR_EVERY = (
    "No operator is known to be wrong; --by verdict judges every call, random ones by their distribution."
)
_NOTHING_WRONG = (
    "nothing to search: OpAutoCompare judged every call on the device, random ones by their distribution, and found none "
    "wrong. If the result is wrong all the same, look at data, seeds and settings; `ditorch run --tool overflow SCRIPT` finds "
    "where a NaN is born."
)
