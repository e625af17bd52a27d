"""A run of the suite over a vendor's kernels."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from diopi.conformance.results import Result
from diopi.conformance.runner import Report, environment
from diopi.conformance.selection import SelectionError
from dlinfer.conformance.case import SOURCE
from dlinfer.conformance.judging import check
from dlinfer.conformance.samples import SAMPLES, count_of, make
from dlinfer.vendors import installed, using

QUICK_CASES = 8
Shown = Callable[[Result | None, int, int], None]


@dataclass(frozen=True)
class Request:
    """What to run."""

    vendor: str
    device: str = "cpu"
    operators: frozenset[str] | None = None
    dtypes: frozenset[str] | None = None
    case: str | None = None
    quick: bool = False
    fail_fast: bool = False
    seed: int = 0
    timeout: float = 300.0
    """Seconds that a case may take, where it runs in another process; kernels may be compiled then."""
    command: tuple[str, ...] = field(default=("dlinfer", "conformance"))


def run(request: Request, shown: Shown | None = None) -> Report:
    """Runs in this process. SelectionError: a case or a device that does not exist."""
    report = new_report(request)
    taken = taker(request, report, shown)
    with using(request.vendor), timed(report):
        for _, result in results(request):
            if not taken(result):
                break
    return report


def taker(request: Request, report: Report, shown: Shown | None) -> Callable[[Result], bool]:
    """Puts results into the report, shows them, and says whether to go on."""
    operators = list(_groups(request))

    def take(result: Result) -> bool:
        report.results.append(result)
        if shown is not None:
            shown(result, operators.index(result.function), len(operators))
        return not (request.fail_fast and result.status == "fail")

    return take


def new_report(request: Request) -> Report:
    """A report without results. SelectionError: a case or a device that does not exist."""
    check_device(request.device)
    cases(request)
    with using(request.vendor):
        vendor = installed()[request.vendor].vendor
    return Report(
        f"dlinfer on {request.device}",
        vendor=request.vendor,
        version=vendor.version if vendor is not None else "",
        started=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seed=request.seed,
        whole=not (request.operators or request.dtypes or request.case or request.fail_fast),
        environment=environment(),
        command=list(request.command),
        suite="dlinfer",
    )


@contextmanager
def timed(report: Report) -> Iterator[None]:
    """Around a run: how long it took, and whether somebody ended it."""
    begin = time.perf_counter()
    try:
        yield
    except KeyboardInterrupt:
        report.interrupted = True
    finally:
        report.seconds = time.perf_counter() - begin


def cases(request: Request) -> list[tuple[str, int]]:
    """Operators and numbers of the cases that are asked for, in the order in which they run."""
    return [
        (operator, number)
        for operator, numbers in _groups(request).items()
        for number in numbers
        if request.dtypes is None or SAMPLES[operator].described(number)[0] in request.dtypes
    ]


def results(request: Request, begin: int = 0) -> Iterator[tuple[int, Result]]:
    """Checks the cases from a place on, with the vendor that is in use."""
    for place, (operator, number) in enumerate(cases(request)[begin:], begin):
        yield place, check(make(operator, number, request.seed), request.vendor, request.device)


def check_device(device: str) -> None:
    try:
        if device.partition(":")[0] == "dipu" and "torch_dipu._C" not in sys.modules:
            # Registers the device, where `import torch` did not (so in a process that one with torch started).
            import torch_dipu  # noqa: F401
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, ImportError) as error:
        text = str(error).strip().partition("\n")[0]
        raise SelectionError(f"the device {device!r} cannot be used: {text}") from None


def _groups(request: Request) -> dict[str, Iterable[int]]:
    if request.case is not None:
        operator, number = _parted(request.case)
        return {operator: [number]}
    wanted = [name for name in SAMPLES if request.operators is None or name in request.operators]
    if not request.quick:
        return {name: range(count_of(name)) for name in wanted}
    return {name: spread(count_of(name), QUICK_CASES) for name in wanted}


def spread(count: int, wanted: int) -> list[int]:
    """So many numbers below `count`, evenly, the last included."""
    if count <= wanted:
        return list(range(count))
    return sorted({round(place * (count - 1) / (wanted - 1)) for place in range(wanted)})


def _parted(case: str) -> tuple[str, int]:
    source, _, rest = case.partition(":")
    operator, _, number = rest.partition(":")
    if source != SOURCE or operator not in SAMPLES or not number.isdigit():
        raise SelectionError(f"there is no case {case!r}; cases look like {SOURCE}:rms_norm:12")
    if int(number) >= count_of(operator):
        raise SelectionError(
            f"there is no case {case}: {operator} has numbers from 0 to {count_of(operator) - 1}"
        )
    return operator, int(number)
