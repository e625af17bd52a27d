"""The process of one test file: imports ditorch, then the file, then runs its cases one by one."""

from __future__ import annotations

import traceback
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType

from _ditorch.torch_tests.model import State
from _ditorch.torch_tests.places import answers, place_of
from _ditorch.torch_tests.processes import one_line, serve, speak_into
from _ditorch.torch_tests.source import case as cases
from _ditorch.torch_tests.source.forked import can_fork, run_forked
from _ditorch.torch_tests.source.model import CaseOutcome, FileFacts, Setup

__all__ = ["main"]


def main(connection: Connection, file: str, log: str, setup: Setup) -> None:
    """Prepare with what importing the file showed; answer the name of a case with its outcome."""
    speak_into(log)
    module: list[ModuleType] = []
    facts = FileFacts()

    def prepare() -> FileFacts:
        place_of(setup.device).load()
        nonlocal facts
        try:
            module.append(cases.load(Path(setup.root), file))
            facts = cases.survey(module[0], setup.every_class)
            facts.forks = can_fork(setup.device, Path(log))
        except BaseException as error:  # also sys.exit of a file that does not want to run here, and SkipTest
            facts = FileFacts(error=f"{one_line(error)}\n{traceback.format_exc()}")
        return facts

    def answer(task: tuple[str, str]) -> CaseOutcome:
        case = task[1]
        if facts.forks:
            return run_forked(lambda: cases.run(module[0], case), setup.seconds, Path(log))
        with warnings.catch_warnings():
            outcome = cases.run(module[0], case)
        outcome.spent = outcome.state in (State.ERROR, State.FAILED) and not answers(setup.device)
        return outcome

    serve(connection, prepare, answer)
