"""The worker of one test file: starts ditorch, imports the file, then runs its cases one by one."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import time
import traceback
import unittest
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from _ditorch.torch_tests.device_under_test import answers, device_under_test
from _ditorch.torch_tests.outcomes import CaseOutcome, FileFacts, SourceSetup, State
from _ditorch.torch_tests.source.forked import can_fork, run_forked
from dicore.workers import Retire, Service, one_line

__all__ = ["start"]


def start(file: str, setup: SourceSetup) -> Service:
    """Ready with what importing the file showed; answers the names of file and case with the outcome."""
    device_under_test(setup.device).load()
    try:
        module = load_file(Path(setup.root), file)
        facts = survey(module, setup.every_class)
        facts.forks = can_fork(setup.device)
    except BaseException as error:  # also sys.exit of a file that does not want to run here, and SkipTest
        facts = FileFacts(error=f"{one_line(error)}\n{traceback.format_exc()}")

    def run(task: tuple[str, str]) -> CaseOutcome | Retire:
        case = task[1]
        if facts.forks:
            return run_forked(lambda: run_case(module, case), setup.seconds)
        with warnings.catch_warnings():
            outcome = run_case(module, case)
        failed = outcome.state in (State.ERROR, State.FAILED)
        return Retire(outcome) if failed and not answers(setup.device) else outcome

    return Service(run, facts)


# -- torch's own test classes ----------------------------------------------------------------------------------


def load_file(root: Path, file: str) -> ModuleType:
    """Import ``file`` as torch's runner would run it: its own folder and the root of the tests on the path."""
    path = root / file
    for folder in (str(root), str(path.parent)):
        if folder in sys.path:
            sys.path.remove(folder)
        sys.path.insert(0, folder)
    sys.argv[:] = [str(path)]  # torch's test helpers read the command line of their test file
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def survey(module: ModuleType, every_class: bool) -> FileFacts:
    """The cases of the device under test, and how many others there are."""
    facts = FileFacts()
    for cls in _classes(module):
        names = [f"{cls.__name__}.{name}" for name in unittest.TestLoader().getTestCaseNames(cls)]
        if every_class or _is_for_a_device(cls):
            facts.cases += names
        else:
            facts.others += len(names)
    return facts


def _classes(module: ModuleType) -> Iterator[type[unittest.TestCase]]:
    for name in sorted(vars(module)):
        found = getattr(module, name)
        if (
            isinstance(found, type)
            and issubclass(found, unittest.TestCase)
            and found.__module__ == module.__name__
        ):
            yield found


def _is_for_a_device(cls: type) -> bool:
    """Torch makes one class for each device out of a template; environment variables say for which."""
    from torch.testing._internal.common_device_type import DeviceTypeTestBase

    return issubclass(cls, DeviceTypeTestBase)


def run_case(module: ModuleType, case: str) -> CaseOutcome:
    """One case with the fixtures of its class."""
    class_name, _, method = case.partition(".")
    start = time.perf_counter()
    result = unittest.TestResult()
    try:
        unittest.TestSuite([getattr(module, class_name)(method)]).run(result)
    except BaseException as error:  # a test may call sys.exit
        return CaseOutcome(State.ERROR, time.perf_counter() - start, one_line(error), traceback.format_exc())
    outcome = CaseOutcome(*_read(result))
    outcome.seconds = time.perf_counter() - start
    return outcome


def _read(result: unittest.TestResult) -> tuple[State, float, str, str]:
    for state, found in ((State.ERROR, result.errors), (State.FAILED, result.failures)):
        if found:
            return state, 0.0, _last_line(found[0][1]), found[0][1]
    if result.unexpectedSuccesses:
        return State.FAILED, 0.0, "passed where torch expects a failure", ""
    if result.skipped:
        return State.SKIPPED, 0.0, result.skipped[0][1], ""
    if result.testsRun == 0:
        return State.ERROR, 0.0, "nothing was run", ""
    return State.PASSED, 0.0, "", ""


def _last_line(text: str) -> str:
    """Type and text of the exception: what follows the last frame of the traceback."""
    lines = text.splitlines()
    frames = [index for index, line in enumerate(lines) if line.startswith("  File ")]
    found = lines[frames[-1] + 1 :] if frames else lines
    found = list(itertools.dropwhile(lambda line: line.startswith(" ") or not line.strip(), found))
    said = " ".join(" ".join(found).split()).partition("To execute this test, run")[0].strip()
    return said or " ".join(lines[-1:])
