"""A run of the suite over a vendor's kernels."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Iterable
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
    command: tuple[str, ...] = field(default=("dlinfer", "conformance"))


def run(request: Request, shown: Shown | None = None) -> Report:
    """Runs in this process. SelectionError: a case or a device that does not exist."""
    _check_device(request.device)
    with using(request.vendor):
        return _run(request, shown)


def _run(request: Request, shown: Shown | None) -> Report:
    vendor = installed()[request.vendor].vendor
    report = Report(
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
    begin = time.perf_counter()
    groups = _groups(request)
    try:
        for done, (operator, numbers) in enumerate(groups.items()):
            for number in numbers:
                if (
                    request.dtypes is not None
                    and SAMPLES[operator].described(number)[0] not in request.dtypes
                ):
                    continue
                result = check(make(operator, number, request.seed), request.vendor, request.device)
                report.results.append(result)
                if shown is not None:
                    shown(result, done, len(groups))
                if request.fail_fast and result.status == "fail":
                    raise _StopRunError
    except KeyboardInterrupt:
        report.interrupted = True
    except _StopRunError:
        pass
    report.seconds = time.perf_counter() - begin
    return report


class _StopRunError(Exception):
    """The first failure ends the run."""


def _check_device(device: str) -> None:
    try:
        if torch.device(device).type == "dipu" and "torch_dipu._C" not in sys.modules:
            # Registers the device, where `import torch` was told not to; the package may be installed without it.
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
