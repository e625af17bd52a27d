"""The worker of one test file: starts ditorch, imports the file, then runs its cases one by one."""

from __future__ import annotations

import importlib.util
import itertools
import os
import pickle
import select
import signal
import sys
import tempfile
import threading
import time
import traceback
import unittest
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import torch

from _ditorch.torch_tests.device_under_test import answers, device_under_test
from _ditorch.torch_tests.outcomes import CaseOutcome, FileFacts, SourceSetup, State
from dicore.workers import Retire, Service, describe_exit, die_with_parent, one_line, tail

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
    state, message, detail = _read(result)
    return CaseOutcome(state, time.perf_counter() - start, message, detail)


def _read(result: unittest.TestResult) -> tuple[State, str, str]:
    for state, found in ((State.ERROR, result.errors), (State.FAILED, result.failures)):
        if found:
            return state, _last_line(found[0][1]), found[0][1]
    if result.unexpectedSuccesses:
        return State.FAILED, "passed where torch expects a failure", ""
    if result.skipped:
        return State.SKIPPED, result.skipped[0][1], ""
    if result.testsRun == 0:
        return State.ERROR, "nothing was run", ""
    return State.PASSED, "", ""


def _last_line(text: str) -> str:
    """Type and text of the exception: what follows the last frame of the traceback."""
    lines = text.splitlines()
    frames = [index for index, line in enumerate(lines) if line.startswith("  File ")]
    found = lines[frames[-1] + 1 :] if frames else lines
    found = list(itertools.dropwhile(lambda line: line.startswith(" ") or not line.strip(), found))
    said = " ".join(" ".join(found).split()).partition("To execute this test, run")[0].strip()
    return said or " ".join(lines[-1:])


# -- a case in a process of its own, forked from this one, which has imported the file: no import is paid twice. Only where
# a forked child can use the device: the threads and handles of most do not come along.

_PROBE_SECONDS = 30.0


def can_fork(device: str) -> bool:
    """Tried, not assumed: can a forked child use the device after what importing the file has done here?"""
    if threading.active_count() > 1:
        return False

    def probe() -> CaseOutcome:
        numbers = torch.ones(4, device=device, requires_grad=True)
        (numbers * 3).sum().backward()
        right = numbers.grad is not None and numbers.grad.tolist() == [3.0] * 4
        return CaseOutcome(State.PASSED if right else State.FAILED, 0.0)

    return run_forked(probe, _PROBE_SECONDS).state is State.PASSED


def run_forked(run: Callable[[], CaseOutcome], seconds: float) -> CaseOutcome:
    """`run` in a child; a crash or a hang is the child's alone."""
    with tempfile.NamedTemporaryFile(prefix="torch-tests-", suffix=".log") as file:
        log, start = Path(file.name), time.monotonic()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _in_child(run, reading, writing, log)
        os.close(writing)
        try:
            data, in_time = _read_to_end(reading, start + seconds)
        finally:
            os.close(reading)
            status = _end(child)
        took = time.monotonic() - start
        if not in_time:
            return CaseOutcome(State.TIMEOUT, took, f"timed out after {seconds:g} s", tail(log))
        try:
            outcome: CaseOutcome = pickle.loads(data)
        except Exception:  # it died before it had said everything
            return CaseOutcome(State.CRASH, took, describe_exit(os.waitstatus_to_exitcode(status)), tail(log))
        return outcome


def _in_child(run: Callable[[], CaseOutcome], reading: int, writing: int, log: Path) -> None:
    """Never returns: what the parent was about to do is not the child's business."""
    code = 1
    try:
        os.setsid()  # whatever the test starts can be ended with it
        die_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.close(reading)
        output = os.open(log, os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)  # where the worker has told faulthandler to write
        data = pickle.dumps(run())
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(data)
        code = 0
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _read_to_end(descriptor: int, until: float) -> tuple[bytes, bool]:
    """Everything up to the end, and whether the end came in time."""
    data = b""
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return data, False
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return data, True
        data += piece


def _end(child: int, grace: float = 0.5) -> int:
    """End the child if it still runs, and what it may have started; its status."""
    status = None
    deadline = time.monotonic() + grace
    while status is None and time.monotonic() < deadline:
        found, code = os.waitpid(child, os.WNOHANG)
        status = code if found else None
        time.sleep(0 if found else 0.001)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] if status is None else status
