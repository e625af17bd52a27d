"""What the mapping of cuda's names costs on the device: operators, a train step, calls that name a device, the import.

One process and one set of tensors: the mapping is switched on and off between short slices, so both sides run the same
code on the same memory. The import is timed in processes of its own, as the seconds that `import ditorch` adds.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# Switched off from the start; the measurement switches it on itself.
os.environ.setdefault("DITORCH_DISABLE_MOCK", "1")

import torch

from device_overhead import Subject, Work, as_case, random, time_text, train_step, waiter
from interleaved import Clock, Side, compare
from report import Case, Options, Report

_IMPORT = """
import time
import torch
start, used = time.perf_counter(), time.process_time()
import ditorch
print(time.perf_counter() - start, time.process_time() - used)
"""
_IMPORT_TARGET = 0.3
# Each switch makes Python forget where it found the methods of a tensor; in a long slice that no longer counts.
_SLICE_SECONDS = 0.03


@dataclass(frozen=True)
class Switched(Side):
    """A side that puts the mapping into its state before the clock starts."""

    switch: Callable[[], None] = lambda: None

    def seconds(self, calls: int, clock: Clock) -> float:
        self.switch()
        return super().seconds(calls, clock)


def add(device: torch.device) -> Work:
    x, y = random(8, device=device), random(8, device=device)
    return lambda: x + y


def zeros(device: torch.device) -> Work:
    return lambda: torch.zeros(8, device=device)


def to(device: torch.device) -> Work:
    x = random(8, device=device)
    return lambda: x.to(device)


def is_cuda(device: torch.device) -> Work:
    x = random(8, device=device)
    return lambda: x.is_cuda


def device_type(device: torch.device) -> Work:
    x = random(8, device=device)
    return lambda: x.device.type


SUBJECTS = (
    Subject("x + y, 8 elements", add, rounds=300, target=1.02),
    Subject("train step d=64", train_step(64), rounds=60, target=1.01),
    Subject("train step d=256", train_step(256), rounds=40, target=1.01),
    Subject("torch.zeros(8, device=...)", zeros, rounds=40),
    Subject("x.to(device)", to, rounds=40),
    Subject("x.is_cuda", is_cuda, rounds=40),
    Subject("x.device.type", device_type, rounds=40),
)


def cases(options: Options) -> Iterator[Case]:
    import ditorch

    device = torch.device(options.device)
    for subject in SUBJECTS:
        options.say(f"measuring {subject.name} ...")
        work = subject.build(device)
        off = Switched(work, waiter(device), ditorch.disable)
        on = Switched(work, waiter(device), ditorch.enable)
        rounds = max(6, subject.rounds // 20) if options.quick else subject.rounds
        yield as_case(subject, compare(off, on, rounds, _SLICE_SECONDS))
    ditorch.disable()


def import_case(options: Options) -> Case:
    """Seconds that `import ditorch` takes after `import torch`, with the mapping on."""
    processes = 3 if options.quick else 15
    environment = {name: value for name, value in os.environ.items() if name != "DITORCH_DISABLE_MOCK"}
    options.say("measuring the import ...")
    seconds: list[float] = []
    used: list[float] = []
    whole: list[float] = []
    for _ in range(processes):
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True, env=environment
        )
        whole.append(time.perf_counter() - started)
        elapsed, processor = done.stdout.splitlines()[-1].split()
        seconds.append(float(elapsed))
        used.append(float(processor))
    figure = statistics.median(seconds)
    cells = [
        time_text(statistics.median(whole) - figure),
        time_text(statistics.median(whole)),
        "",
        f"{figure:.3f} s",
        f"{min(seconds):.3f} - {max(seconds):.3f}",
    ]
    return Case(
        "import ditorch, seconds",
        figure,
        cells,
        _IMPORT_TARGET,
        {"seconds": seconds, "processor_s": used, "process_s": whole},
    )


def measure(options: Options) -> Report:
    torch.set_num_threads(1)
    columns = ["off", "on", "of medians", "of rounds", "middle half"]
    title = f"Cost of the mapping on {options.device}, one thread: on relative to off, median of rounds"
    notes = {"device": options.device, "quick": options.quick}
    return Report(title, columns, [*cases(options), import_case(options)], notes)


if __name__ == "__main__":
    import run

    run.main(["shim_overhead", *sys.argv[1:]])
