"""What each operator tool costs: ratio to the same work without it, on one device, one thread.

A training step is a 4-layer transformer, batch 8, sequence 128, AdamW without foreach; d = 256 unless said otherwise. Each arm
alternates with bare rounds, and its figure is the median of the rounds' ratios; of tools that look at a call now and then
it is the ratio of the sums, since a median would not see the steps in which they do. A tool stays open over the whole arm and
is only switched on and off, so that its first use is not what is timed; capture is timed over a run of steps and with the
wait for its writer, and its disk use is counted.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import op_tools
from op_tools.engine import ENGINE
from report import Case, Options, Report

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from gpt import GPT, GPTConfig

Work = Callable[[], object]
# What neither a small add nor the transformer calls.
OTHERS = {
    "api": "torch.sort,torch.nn.functional.conv2d",
    "aten": r"aten.sort.default,aten.convolution_backward.default",
}
ALL_BUT_ADDITIONS = {"list": ".*", "disable_list": r"torch\.(Tensor\.)?_*i?add_*"}
OBSERVING = {
    "autocompare": op_tools.OpAutoCompare,
    "capture": op_tools.OpCapture,
    "time measure": op_tools.OpTimeMeasure,
    "observe": op_tools.OpObserve,
    "overflow check": op_tools.OpOverflowCheck,
}


@dataclass(frozen=True)
class Arm:
    """One tool in one setting; the target is the largest acceptable ratio."""

    name: str
    make: Callable[[], Any]
    target: float | None
    published: str = ""  # the same figure for the published tools, where it is known
    work: str = "train 256"
    rounds: int = 20
    warm_up: int = 3
    numerics: str = "plain"
    now_and_then: bool = False
    extra_targets: dict[str, float] = field(default_factory=dict)


def arms() -> Iterator[Arm]:
    observe, compare = op_tools.OpObserve, op_tools.OpAutoCompare
    for name, tool in OBSERVING.items():
        for level in ("api", "aten"):
            if (name, level) == ("autocompare", "aten"):
                continue  # it looks at both
            arguments = (
                {"list": OTHERS[level]} if name == "autocompare" else {"list": OTHERS[level], "level": level}
            )
            idle = partial(tool, **arguments)
            yield Arm(f"idle, {name}, {level}, x + y", idle, 1.15, "15-18", "x + y", rounds=100)
            yield Arm(f"idle, {name}, {level}, train step", idle, 1.01, "1.08-1.18", rounds=40)
    yield Arm("idle, layers, x + y", op_tools.OpLayers, 1.15, "", "x + y", rounds=100)
    yield Arm(
        "nothing to do, API level, x + y",
        lambda: observe(**ALL_BUT_ADDITIONS),
        2.2,
        "15-18",
        "x + y",
        rounds=100,
    )
    yield Arm("time measure", op_tools.OpTimeMeasure, 1.08, "3.3")
    yield Arm("observe", observe, 1.15, "2.5")
    yield Arm("dtype cast, nothing to cast", op_tools.OpDtypeCast, 1.2, "1.6")
    yield Arm("overflow check", op_tools.OpOverflowCheck, 1.25, "15")
    yield Arm(
        "autocompare, every call", compare, 4.5, "25 (memory 2.7)", rounds=5, extra_targets={"memory": 1.5}
    )
    yield Arm("autocompare, every call, reordered", compare, 12, rounds=4, warm_up=1, numerics="reordered")
    sampled = partial(compare, mode="sampled")
    for width, target in ((256, 1.03), (64, 1.10)):
        work = f"train {width}"
        yield Arm(f"autocompare, sampled, d={width}", sampled, target, "", work, 80, 12, now_and_then=True)
        yield Arm(f"sentinel, d={width}", op_tools.OpSentinel, 1.03, "", work, 80, 60, now_and_then=True)


def train_step(device: torch.device, width: int) -> Work:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=1024, context=128, layers=4, heads=4, width=width)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    tokens = torch.randint(1024, (8, 129), generator=torch.Generator("cpu").manual_seed(0), device="cpu").to(
        device
    )
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step() -> None:
        optimizer.zero_grad()
        model.loss(inputs, targets).backward()
        optimizer.step()

    return step


def add(device: torch.device) -> Work:
    a = torch.randn(8, device="cpu").to(device)
    b = torch.randn(8, device="cpu").to(device)

    def many() -> None:
        for _ in range(2000):
            a + b

    return many


def seconds(work: Work) -> float:
    torch.accelerator.synchronize()
    started = time.perf_counter()
    work()
    torch.accelerator.synchronize()
    return time.perf_counter() - started


@contextlib.contextmanager
def switched_on(tool: Any) -> Iterator[None]:
    """The tool at work, without opening and closing its results."""
    ENGINE.start(tool)
    try:
        yield
    finally:
        ENGINE.stop(tool)


class PeakMemory:
    """The largest resident set of the process while the block runs, above what it was before."""

    def __enter__(self) -> PeakMemory:
        gc.collect()
        self.peak = 0
        self._going = True
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while self._going:
            self.peak = max(self.peak, int(Path("/proc/self/statm").read_text().split()[1]) * page)
            time.sleep(0.002)

    def __exit__(self, *_: object) -> None:
        self._going = False
        self._thread.join()


def peak_of(work: Work) -> int:
    with PeakMemory() as memory:
        work()
        torch.accelerator.synchronize()
    return memory.peak


def alternate(arm: Arm, work: Work, rounds: int) -> tuple[list[float], list[float], float | None]:
    """Bare and watched rounds in turn, and the ratio of the peaks of memory where a target asks for it."""
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        os.environ["OP_TOOLS_RESULTS"] = folder
        bare, watched = [], []
        memory = None
        tool = arm.make()
        bare_peak = peak_of(work) if arm.extra_targets else 0
        tool.start()
        ENGINE.stop(tool)
        for _ in range(arm.warm_up):
            with switched_on(tool):
                work()
        for index in range(rounds):
            for side in ("bare", "watched") if index % 2 == 0 else ("watched", "bare"):
                if side == "bare":
                    bare.append(seconds(work))
                else:
                    with switched_on(tool):
                        watched.append(seconds(work))
        if arm.extra_targets:
            with switched_on(tool):
                memory = peak_of(work) / bare_peak
        tool.stop()
        del os.environ["OP_TOOLS_RESULTS"]
    return bare, watched, memory


def measured(arm: Arm, options: Options) -> Iterator[Case]:
    device = torch.device(options.device)
    torch.get_device_module(device).configure(numerics=arm.numerics)
    try:
        kind, _, width = arm.work.partition(" ")
        work = train_step(device, int(width)) if kind == "train" else add(device)
        for _ in range(3):
            work()
        rounds = max(2, arm.rounds // 10) if options.quick else arm.rounds
        bare, watched, memory = alternate(arm, work, rounds)
    finally:
        torch.get_device_module(device).configure(numerics="plain")
    ratios = [w / b for b, w in zip(bare, watched, strict=True)]
    ratio = sum(watched) / sum(bare) if arm.now_and_then else statistics.median(ratios)
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    cells = [
        f"{statistics.median(bare) * 1e3:.1f} ms",
        f"{statistics.median(watched) * 1e3:.1f} ms",
        f"{ratio:.3f}",
        f"{low:.3f} - {high:.3f}",
        arm.published,
    ]
    yield Case(arm.name, ratio, cells, arm.target, {"bare_s": bare, "watched_s": watched})
    if memory is not None:
        target = arm.extra_targets["memory"]
        yield Case(f"{arm.name}, peak memory", memory, ["", "", f"{memory:.3f}", "", "2.7"], target)


def captured(store: str, target: float, most_bytes: float, options: Options) -> Iterator[Case]:
    """Steps with capture of all tensors at API level, the wait for the writer included."""
    device = torch.device(options.device)
    work = train_step(device, 256)
    for _ in range(3):
        work()
    steps = 3 if options.quick else 50
    bare = [seconds(work) for _ in range(5)]
    spent: list[float] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        tool = op_tools.OpCapture(store=store, results=folder)
        tool.start()
        captures = tool.store
        assert captures is not None
        deleting = 0.0
        started = time.perf_counter()
        for index in range(steps):
            spent.append(seconds(work))
            if store == "files" and index % 5 == 4:
                captures.flush()
                deleting += seconds(lambda: _forget(folder))
        captures.flush()
        whole = (time.perf_counter() - started - deleting) / steps
        written = captures.stats.written_bytes / steps
        complete = captures.stats.complete
        tool.stop()
    bare += [seconds(work) for _ in range(5)]
    ratio = whole / statistics.median(bare)
    cells = [f"{statistics.median(bare) * 1e3:.1f} ms", f"{whole * 1e3:.1f} ms", f"{ratio:.3f}", "", "10.8"]
    raw = {"bare_s": bare, "step_s": spent, "bytes_per_step": written, "steps": steps, "complete": complete}
    yield Case(f"capture, {store}, {steps} steps with the writer", ratio, cells, target, raw)
    cells = ["", f"{written / 1e6:.0f} MB", "", "", "1240"]
    yield Case(f"capture, {store}, MB a step", written / 1e6, cells, most_bytes / 1e6)


def _forget(folder: str) -> None:
    """Fifty steps of files would fill a disk: what is written is deleted as the run goes on, and not timed."""
    shutil.rmtree(Path(folder, "op_capture_results"), ignore_errors=True)


def measure(options: Options) -> Report:
    torch.set_num_threads(1)
    cases: list[Case] = []
    for arm in arms():
        options.say(f"measuring {arm.name} ...")
        cases += measured(arm, options)
    for store, target, most in (("blobs", 3.0, 450e6), ("files", 6.0, 1e9)):
        options.say(f"measuring capture, {store} ...")
        cases += captured(store, target, most, options)
    columns = ["bare", "with the tool", "ratio", "middle half", "published tools"]
    title = f"Cost of the operator tools on {options.device}, one thread"
    notes = {
        "device": options.device,
        "quick": options.quick,
        "published": "DeepLink op_tools, torch 2.13 CPU stand-in",
    }
    return Report(title, columns, cases, notes)


if __name__ == "__main__":
    import run

    run.main(["op_tools_overhead", *sys.argv[1:]])
