"""A run in another process: a kernel that crashes or hangs costs its case, and the report comes all the same."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections import Counter
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from diopi.conformance.endings import ending, last_words
from diopi.conformance.results import Result
from diopi.conformance.runner import Report
from dlinfer.conformance.case import SOURCE
from dlinfer.conformance.runner import Request, Shown, cases, check_device, new_report, results, taker, timed
from dlinfer.conformance.samples import SAMPLES
from dlinfer.vendors import using

__all__ = ["run_apart"]

# torch and all vendors are imported before the first case runs.
_STARTING = 240.0
# So many times an operator may end the process; each costs seconds, and after these it is known.
_MOST_DEATHS = 3


def run_apart(request: Request, shown: Shown | None = None) -> Report:
    """As `runner.run`, for vendors that are installed. SelectionError: a case or a device that does not exist."""
    report = new_report(request)
    taken = taker(request, report, shown)
    wanted = cases(request)
    deaths: Counter[str] = Counter()
    place = 0
    with timed(report), tempfile.TemporaryDirectory(prefix="dlinfer-conformance-") as folder:
        while place < len(wanted):
            with _Child(request, place, Path(folder) / "printed") as child:
                for operator, number in wanted[place:]:
                    found = child.result()
                    place += 1
                    if not taken(found or _failed(operator, number, child.why)):
                        return report
                    if found is None:
                        deaths[operator] += 1
                        break
            if found is None and deaths[operator] == _MOST_DEATHS:
                rest = [number for other, number in wanted[place:] if other == operator]
                why = f"not run, and {len(rest) - 1} more: {operator} ended {_MOST_DEATHS} processes"
                if rest and not taken(_failed(operator, rest[0], why)):
                    return report
                place += len(rest)
    return report


def _failed(operator: str, number: int, reason: str) -> Result:
    return Result(
        f"{SOURCE}:{operator}:{number}", operator, *SAMPLES[operator].described(number), "fail", reason
    )


class _Child:
    """A process that checks the cases from a place on. What it prints goes to a file."""

    def __init__(self, request: Request, begin: int, log: Path) -> None:
        context = multiprocessing.get_context("spawn")  # a process with CUDA cannot be forked
        self._ours, theirs = context.Pipe(duplex=False)
        self._log = log
        self._ready = False
        self._timeout = request.timeout
        self.why = ""
        self._process: BaseProcess = context.Process(
            target=_serve, args=(theirs, request, begin, str(log)), daemon=True
        )
        self._process.start()
        theirs.close()

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.join()
        self._ours.close()

    def _heard(self, seconds: float) -> Result | None:
        if not self._ours.poll(seconds):
            raise TimeoutError(f"no answer within {seconds:g} s")
        message = self._ours.recv()
        if isinstance(message, str):
            raise RuntimeError(f"the suite itself failed in its other process: {message}")
        assert message is None or isinstance(message, Result)
        return message

    def result(self) -> Result | None:
        """Of the next case. None: the process died or does not answer, `why` says how; no more will come."""
        try:
            if not self._ready:
                self._ready = self._heard(_STARTING) is None
            found = self._heard(self._timeout)
            assert isinstance(found, Result)
            return found
        except TimeoutError as error:
            self.why = str(error)
        except (EOFError, OSError):
            self._process.join()
            self.why = ending(self._process.exitcode)
        self.why += last_words(self._log)
        return None


def _serve(connection: Connection, request: Request, begin: int, log: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other process decides what Ctrl-C means
    printed = os.open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    try:
        check_device(request.device)  # registers it, too
        with using(request.vendor):
            connection.send(None)
            for _, result in results(request, begin):
                connection.send(result)
                os.ftruncate(printed, 0)
    except Exception as error:  # of the suite: what kernels raise is part of their results
        connection.send(f"{type(error).__name__}: {error}")
