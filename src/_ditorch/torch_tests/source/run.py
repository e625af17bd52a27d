"""Run torch's test files: one process imports a file, its cases follow one by one, every result is written at once."""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from _ditorch.torch_tests.device_file import DeviceFile
from _ditorch.torch_tests.device_under_test import DeviceUnderTest
from _ditorch.torch_tests.expectations import Expectations, covers_case
from _ditorch.torch_tests.outcomes import CaseOutcome, FileFacts, Problem, SourceSetup, State, state_of
from _ditorch.torch_tests.results import Journal, Row
from dicore.workers import Done, Lost, Ready, WorkerPool

__all__ = ["BadTree", "SourceRun", "Tree", "dtype_in", "open_tree", "operator_in", "run_files"]

INTERRUPTED = 130
COLLECTION = "(import)"  # the case that stands for a file that cannot be imported
_GRACE = 30.0  # a worker that forks ends its cases itself; this is for the worker
_TASKS_PER_WORKER = 25  # importing a test file takes as long as many of its cases


class BadTree(ValueError):
    """The folder holds no tests of torch, or none of the wanted."""


@dataclass(frozen=True)
class Tree:
    """A source tree of torch."""

    root: Path  # the folder of the tests
    version: str


@dataclass
class SourceRun:
    """What is run, and what was found."""

    under_test: DeviceUnderTest
    torch_version: str
    tree: Tree
    files: list[str]
    cases: str | None
    expectations: Expectations
    seconds_each: float
    jobs: int
    mapping: bool = True
    every_class: bool = False
    rows: list[Row] = field(default_factory=list)
    facts: dict[str, FileFacts] = field(default_factory=dict)
    deselected: int = 0
    resumed: int = 0
    seconds: float = 0.0
    stopped: int = 0

    @property
    def unexpected(self) -> list[Row]:
        return [row for row in self.rows if row.result.unexpected]

    def counts(self) -> dict[str, Counter[State]]:
        table: dict[str, Counter[State]] = {}
        for row in self.rows:
            table.setdefault(row.file, Counter())[row.result] += 1
        return dict(sorted(table.items()))


def open_tree(path: Path) -> Tree:
    """A PyTorch source tree, or its ``test`` folder itself."""
    if not path.is_dir():
        raise BadTree(f"{path} is no folder. Give the folder of PyTorch's sources, the one with test/ in it.")
    root = path / "test" if (path / "test").is_dir() else path
    if not any(root.rglob("test_*.py")):
        raise BadTree(
            f"{path} holds no test files: expected {root}/test_*.py. Give the folder of PyTorch's sources."
        )
    found = [folder / "version.txt" for folder in (path, root.parent) if (folder / "version.txt").is_file()]
    return Tree(root.resolve(), found[0].read_text().strip() if found else "")


def chosen_files(tree: Tree, patterns: list[str] | None) -> list[str]:
    """Files below the root by full-match pattern or plain name; without one, every test file of the root itself."""
    if patterns is None:
        return sorted(path.name for path in tree.root.glob("test_*.py"))
    below = sorted(path.relative_to(tree.root).as_posix() for path in tree.root.rglob("test_*.py"))
    found: list[str] = []
    for pattern in patterns:
        mine = [name for name in below if name == pattern or re.fullmatch(pattern, name)]
        if not mine:
            raise BadTree(f"no test file of {tree.root} is called {pattern!r}.")
        found += [name for name in mine if name not in found]
    return found


def run_files(
    run: SourceRun, file: DeviceFile, journal: Journal, done: list[Row], show: Callable[[str, int, int], None]
) -> None:
    """Fill `run`. `done` is what an earlier run has left in the journal."""
    start = time.perf_counter()
    run.rows, run.resumed = list(done), len(done)
    with tempfile.TemporaryDirectory(prefix="torch-tests-cwd-") as folder:
        try:
            with _pool(run, file, folder) as pool:
                _drive(pool, run, file, journal, {row.key for row in done}, show)
        except KeyboardInterrupt:
            run.stopped = INTERRUPTED
    run.seconds = time.perf_counter() - start


def _pool(run: SourceRun, file: DeviceFile, folder: str) -> WorkerPool:
    """Nothing is preloaded: torch's helpers look for devices when they are imported, and the device must be there."""
    only = "privateuse1" if run.under_test.is_privateuse1 else run.under_test.type
    environment = {
        **run.under_test.environment(mapping=run.mapping),
        "PYTORCH_TESTING_DEVICE_ONLY_FOR": only,
        "CI": None,  # torch's helpers behave differently on torch's own CI
        **file.source.environment,
    }
    return WorkerPool(
        "_ditorch.torch_tests.source.worker:start",
        SourceSetup(run.under_test.device, str(run.tree.root), run.seconds_each, run.every_class),
        workers=run.jobs,
        timeout=lambda task, _: run.seconds_each + (_GRACE if run.facts[task[0]].forks else 0.0),
        environment=environment,
        folder=folder,  # some tests leave files where they are run
        tasks_per_worker=_TASKS_PER_WORKER,
    )


def _drive(
    pool: WorkerPool,
    run: SourceRun,
    file: DeviceFile,
    journal: Journal,
    done: set[tuple[str, str]],
    show: Callable[[str, int, int], None],
) -> None:
    planned = len(done)
    for name in run.files:
        pool.open(name)
    for event in pool.run():
        facts = None
        match event:
            case Ready(facts=found):
                facts = found
            case Lost(task=None):
                facts = FileFacts(error=f"{event.message}, while the file was imported\n{event.log}")
            case Done(task=(file_name, case), value=outcome):
                _add(run, journal, file_name, case, outcome)
            case Lost(task=(file_name, case)):
                outcome = CaseOutcome(state_of(event), event.seconds, event.message, event.log)
                _add(run, journal, file_name, case, outcome)
        name = event.group
        if facts is not None and name not in run.facts:
            run.facts[name] = facts
            todo = _todo(run, file, journal, name, done)
            pool.add(name, [(name, case) for case in todo])
            planned += len(todo)
        show(name, len(run.rows), planned)


def _todo(
    run: SourceRun, file: DeviceFile, journal: Journal, name: str, done: set[tuple[str, str]]
) -> list[str]:
    """The cases to run; those that the device's file skips, and a file that cannot be imported, are rows at once."""
    facts = run.facts[name]
    if facts.error:
        first, _, rest = facts.error.partition("\n")
        state = State.SKIPPED if first.startswith("SkipTest") else State.ERROR
        if (name, COLLECTION) not in done:
            _add(run, journal, name, COLLECTION, CaseOutcome(state, 0.0, first, rest))
        return []
    patterns = [re.compile(pattern) for pattern in (run.cases, file.source.cases) if pattern]
    wanted = [case for case in facts.cases if all(pattern.search(case) for pattern in patterns)]
    run.deselected += len(facts.cases) - len(wanted)
    todo = []
    for case in wanted:
        entry = next((entry for entry in file.source.skip if covers_case(entry, name, case)), None)
        if (name, case) in done:
            continue
        if entry is None:
            todo.append(case)
        else:
            _add(run, journal, name, case, CaseOutcome(State.SKIPPED, 0.0), reason=entry.reason)
    return todo


def _add(
    run: SourceRun, journal: Journal, file: str, case: str, found: CaseOutcome, reason: str = ""
) -> None:
    state = found.state
    problems = [Problem(state, found.message, found.detail)] if state.unexpected else []
    if state.unexpected or state is State.PASSED:
        entry, _ = run.expectations.kind_of((file, case), f"{file}::{case}", problems)
        if entry is not None:
            state, reason = entry.kind, entry.entry.reason
    row = Row(
        run.under_test.device,
        run.torch_version,
        file,
        case,
        operator_in(case),
        dtype_in(case),
        state,
        round(found.seconds, 3),
        message=found.message,
        reason=reason,
        detail=found.detail,
    )
    journal.add(row)
    run.rows.append(row)


# -- which operator a case is about, as far as its name says ---------------------------------------------------

_DTYPES = re.compile(r"_(u?int\d+|b?float\d+(?:_e\w+)?|complex\d+|bool)(?=_|$)")
# Names of functions that are ordinary words of tests: kinds of numbers, devices, and the like.
_WORDS = frozenset((
    "all", "any", "bfloat16", "bool", "byte", "cdouble", "cfloat", "chalf", "char", "cpu", "cuda", "device", "double",
    "dtype", "float", "half", "int", "is_tensor", "long", "short", "size", "storage", "to", "type", "xpu",
))  # fmt: skip


@cache
def _names() -> dict[str, str]:
    """Names as they stand in test names -> names as people write them: nn_functional_relu -> nn.functional.relu."""
    found: dict[str, str] = {}
    namespaces = {
        "": torch,
        "Tensor.": torch.Tensor,
        "linalg.": torch.linalg,
        "fft.": torch.fft,
        "special.": torch.special,
        "nn.functional.": torch.nn.functional,
    }
    for prefix, namespace in reversed(namespaces.items()):
        for name in dir(namespace):
            if name.islower() and not name.startswith("_") and callable(getattr(namespace, name, None)):
                label = name if prefix == "Tensor." else prefix + name
                found[label.replace(".", "_")] = label
                found[name] = label
    not_meant = _WORDS | {torch._C._get_privateuse1_backend_name()}
    return {short: label for short, label in found.items() if short not in not_meant}


def operator_in(case: str) -> str:
    """The longest name of an operator in ``Class.test_some_name_device_dtype``; empty if there is none."""
    words = case.rpartition(".")[2].removeprefix("test_").split("_")
    names = _names()
    for length in range(len(words), 0, -1):
        for start in range(len(words) - length + 1):
            label = names.get("_".join(words[start : start + length]))
            if label is not None:
                return label
    return ""


def dtype_in(case: str) -> str:
    """The last dtype in the name; empty if there is none."""
    found = _DTYPES.findall(case)
    return found[-1] if found else ""
