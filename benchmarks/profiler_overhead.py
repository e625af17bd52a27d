"""What torch.profiler costs a training step on the device: while it records, and once it has stopped.

CPU time of the process, steps in turn with and without; the profiler's own start and stop are not part of it. `stopped` compares
two processes, one of which has taken a profile before.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from device_overhead import train_step
from report import Case, Options, Report

HERE = Path(__file__).resolve().parent
Step = Callable[[], object]
WIDTHS = (64, 256)
STEPS = 3


def seconds(step: Step, steps: int) -> float:
    """CPU time of one step."""
    started = time.process_time()
    for _ in range(steps):
        step()
    return (time.process_time() - started) / steps


def recorded_seconds(step: Step, steps: int, activities: list[ProfilerActivity]) -> float:
    with profile(activities=activities):
        step()  # the first call after the start fills buffers
        return seconds(step, steps)


def ratio_of(baseline: Callable[[], float], candidate: Callable[[], float], rounds: int) -> list[float]:
    """Round by round; who goes first alternates."""
    ratios = []
    for index in range(rounds):
        if index % 2:
            after, before = candidate(), baseline()
        else:
            before, after = baseline(), candidate()
        ratios.append(after / before)
    return ratios


def case(name: str, ratios: list[float], target: float | None) -> Case:
    figure = statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    cells = [f"{figure:.3f}", f"{low:.3f} - {high:.3f}"]
    return Case(name, figure, cells, target, {"ratios": ratios})


class StepProcess:
    """A process of its own that runs steps when it is asked to."""

    def __init__(self, device: str, width: int, profiled: bool) -> None:
        command = [sys.executable, __file__, "serve", device, str(width), str(int(profiled))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.seconds()

    def seconds(self) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate()


def serve(device: str, width: int, profiled: bool) -> None:
    torch.set_num_threads(1)
    step = train_step(width)(torch.device(device))
    step()
    if profiled:
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]):
            step()
    for _ in sys.stdin:
        print(seconds(step, STEPS), flush=True)


def stopped(options: Options, width: int, rounds: int) -> Case:
    never, once = (StepProcess(options.device, width, profiled) for profiled in (False, True))
    ratios = ratio_of(never.seconds, once.seconds, rounds)
    never.end()
    once.end()
    return case(f"train step d={width}, profiler stopped", ratios, 1.02)


def cases(options: Options) -> Iterator[Case]:
    rounds = 5 if options.quick else 30
    cpu, device = ProfilerActivity.CPU, ProfilerActivity.PrivateUse1
    for width in WIDTHS:
        options.say(f"measuring the train step d={width} ...")
        step = train_step(width)(torch.device(options.device))
        step()
        for name, activities, target in (
            ("profile of CPU and device", [cpu, device], 1.5),
            ("profile of the device alone", [device], None),
            ("profile of the CPU alone", [cpu], None),
        ):
            baseline = partial(seconds, step, STEPS)
            candidate = partial(recorded_seconds, step, STEPS, activities)
            ratios = ratio_of(baseline, candidate, rounds)
            yield case(f"train step d={width}, {name}", ratios, target)
        yield stopped(options, width, rounds)


def measure(options: Options) -> Report:
    torch.set_num_threads(1)
    title = f"CPU time of a training step on {options.device} with torch.profiler, relative to without"
    notes = {"device": options.device, "quick": options.quick}
    return Report(title, ["median of rounds", "middle half"], list(cases(options)), notes)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1")
    else:
        import run

        run.main(["profiler_overhead", *sys.argv[1:]])
