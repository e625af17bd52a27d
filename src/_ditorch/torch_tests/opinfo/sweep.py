"""Run the operator database: list the pairs in a worker, hand out the pairs, collect what is found."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from _ditorch.torch_tests.device_file import DeviceFile
from _ditorch.torch_tests.device_under_test import DeviceUnderTest
from _ditorch.torch_tests.expectations import Expectations, covers_pair
from _ditorch.torch_tests.outcomes import (
    OpInfoCheck,
    OpInfoOptions,
    Pair,
    PairOutcome,
    PairSelection,
    Problem,
    StartError,
    State,
    ToleranceRule,
    WorkerFacts,
    state_of,
)
from dicore.workers import Done, Lost, Ready, WorkerPool

__all__ = ["DatabaseRun", "RunLimits", "options_for", "sweep"]

INTERRUPTED, INTERNAL = 130, 3
_TASKS_PER_WORKER = 25  # reading the database takes as long as many pairs


@dataclass(frozen=True)
class RunLimits:
    """How many processes, and how long a pair may take."""

    jobs: int
    seconds: float


@dataclass
class DatabaseRun:
    """Everything one run knows."""

    options: OpInfoOptions
    expectations: Expectations
    limits: RunLimits
    whole: bool  # all samples of the whole database were asked for
    facts: WorkerFacts | None = None
    planned: list[Pair] = field(default_factory=list)
    outcomes: list[PairOutcome] = field(default_factory=list)
    seconds: float = 0.0
    stopped: int = 0  # exit code, if the run ended before all pairs were run
    trouble: str = ""

    @property
    def complete(self) -> bool:
        """Only then can an entry of the list be called out of date."""
        return self.whole and not self.stopped

    @property
    def unexpected(self) -> list[PairOutcome]:
        return [outcome for outcome in self.outcomes if outcome.state.unexpected]

    @property
    def not_run(self) -> list[Pair]:
        return sorted(set(self.planned) - {outcome.pair for outcome in self.outcomes})

    def counts(self) -> dict[OpInfoCheck, Counter[State]]:
        table: dict[OpInfoCheck, Counter[State]] = {check: Counter() for check in OpInfoCheck}
        for outcome in self.outcomes:
            table[outcome.pair.check][outcome.state] += 1
        return {check: counter for check, counter in table.items() if counter}


def options_for(device: str, file: DeviceFile, **settings: object) -> OpInfoOptions:
    """The part of the device's file that a worker needs."""
    part = file.opinfo
    rules = tuple(
        ToleranceRule(
            entry.op,
            tuple(entry.dtypes) if entry.dtypes is not None else None,
            tuple(entry.checks) if entry.checks is not None else None,
            entry.rtol,
            entry.atol,
        )
        for entry in part.tolerance
    )
    return OpInfoOptions(
        device,
        undefined_values=frozenset(part.undefined_values),
        host_arguments=frozenset(part.host_arguments),
        tolerances=rules,
        dtypes_of=part.dtypes_of or "cpu",
        device_dtypes=frozenset(part.dtypes) if part.dtypes is not None else None,
        torch_skips=bool(part.torch_skips),
        **settings,  # type: ignore[arg-type]
    )


def sweep(
    under_test: DeviceUnderTest,
    file: DeviceFile,
    findings: DatabaseRun,
    selection: PairSelection,
    show: Callable[[str, int, int], None],
) -> None:
    """Fill `findings`. `show` is told what was done, how many are, and of how many."""
    start = time.perf_counter()
    database = [findings.options.op_db.partition(":")[0], "torch.testing._internal.opinfo.core"]
    pool = WorkerPool(
        "_ditorch.torch_tests.opinfo.worker:start",
        findings.options,
        workers=findings.limits.jobs,
        timeout=findings.limits.seconds,
        environment=under_test.environment(mapping=False),
        preload=database if under_test.can_preload else (),
        tasks_per_worker=_TASKS_PER_WORKER,
    )
    with pool:
        try:
            _drive(pool, file, findings, selection, show)
        except KeyboardInterrupt:
            findings.stopped = INTERRUPTED
        except StartError as error:
            if findings.facts is None:
                raise
            # A replacement for a crashed worker: what was found so far still counts.
            findings.stopped, findings.trouble = INTERNAL, f"no further worker could be started: {error}"
    findings.seconds = time.perf_counter() - start


def _drive(
    pool: WorkerPool,
    file: DeviceFile,
    findings: DatabaseRun,
    selection: PairSelection,
    show: Callable[[str, int, int], None],
) -> None:
    pool.open("")
    for event in pool.run():
        match event:
            case Ready(facts=facts) if findings.facts is None:
                findings.facts = facts
                findings.expectations.drop_for(facts.vendor.get("features", ()))
                pool.add("", [selection])
            case Done(task=PairSelection(), value=planned):
                findings.planned = planned
                pool.add("", [pair for pair in planned if not _skipped(pair, file, findings)])
            case Done(task=Pair(), value=outcome):
                _keep(outcome, findings, show)
            case Lost(task=Pair() as pair):
                problem = Problem(state_of(event), event.message, event.log)
                _keep(PairOutcome(pair, 0, event.seconds, [problem]), findings, show)
            case Lost():
                raise StartError(f"{event.message}\n{event.log}")


def _keep(outcome: PairOutcome, findings: DatabaseRun, show: Callable[[str, int, int], None]) -> None:
    findings.outcomes.append(findings.expectations.classify(outcome))
    label = f"{outcome.pair.check} {outcome.pair.op[:28]:28}"
    show(label, len(findings.outcomes), len(findings.planned))


def _skipped(pair: Pair, file: DeviceFile, findings: DatabaseRun) -> bool:
    """Pairs that the device's file says not to run are reported, not forgotten."""
    entry = next((entry for entry in file.opinfo.skip if covers_pair(entry, pair)), None)
    if entry is not None:
        findings.outcomes.append(PairOutcome(pair, listed_as=State.SKIPPED, reason=entry.reason))
    return entry is not None
