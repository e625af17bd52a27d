"""The worker of one test file: starts ditorch, imports the file, then runs its cases one by one."""

from __future__ import annotations

import traceback
import warnings
from pathlib import Path

from _ditorch.torch_tests.model import State
from _ditorch.torch_tests.places import answers, place_of
from _ditorch.torch_tests.source import case as cases
from _ditorch.torch_tests.source.forked import can_fork, run_forked
from _ditorch.torch_tests.source.model import CaseOutcome, FileFacts, Setup
from dicore.workers import Retire, Service, one_line

__all__ = ["start"]


def start(file: str, setup: Setup) -> Service:
    """Ready with what importing the file showed; answers the names of file and case with the outcome."""
    place_of(setup.device).load()
    try:
        module = cases.load(Path(setup.root), file)
        facts = cases.survey(module, setup.every_class)
        facts.forks = can_fork(setup.device)
    except BaseException as error:  # also sys.exit of a file that does not want to run here, and SkipTest
        facts = FileFacts(error=f"{one_line(error)}\n{traceback.format_exc()}")

    def run(task: tuple[str, str]) -> CaseOutcome | Retire:
        case = task[1]
        if facts.forks:
            return run_forked(lambda: cases.run(module, case), setup.seconds)
        with warnings.catch_warnings():
            outcome = cases.run(module, case)
        failed = outcome.state in (State.ERROR, State.FAILED)
        return Retire(outcome) if failed and not answers(setup.device) else outcome

    return Service(run, facts)
