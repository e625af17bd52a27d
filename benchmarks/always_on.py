"""A tool that is always on: what it costs the GPT of the demo, and how soon it sees a kernel that turns wrong.

The GPT of examples/train_gpt.py trains with OpSentinel in its defaults, in blocks of steps that alternate with blocks without
it. In the middle a kernel turns wrong, in both kinds of blocks; it is to be named within a hundred steps. Then the same is
asked of other kernels one after the other, forward, backward and optimizer. The cost is the ratio of all steps' wall time.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import op_tools
from op_tools.engine import ENGINE
from report import Case, Options, Report

sys.path += [str(Path(__file__).resolve().parent.parent / part) for part in ("examples", "tests/op_tools")]
from wrong_kernels import aten_name, install, off, one_element, tail  # type: ignore[import-not-found]

from gpt import CORPUS, GPT, CharacterText, GPTConfig
from train_gpt import BATCH, CONTEXT, Trainer

BLOCK = 20  # steps
WITHIN = 100
COST = 1.03
FIRST = ("gelu", off)
OTHERS = (
    ("mm", one_element),
    ("addmm", one_element),
    ("native_layer_norm", off),
    ("embedding", tail),
    ("_log_softmax", off),
    ("gelu_backward", one_element),
    ("native_layer_norm_backward", off),
    ("embedding_dense_backward", tail),
    ("_log_softmax_backward_data", one_element),
    ("_foreach_addcdiv_.ScalarList", off),
)


@dataclass
class Job:
    """The training, its tool, and how long the steps took with and without it."""

    trainer: Trainer
    text: CharacterText
    tool: Any
    seconds: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    watched: int = 0  # steps

    def steps(self, count: int, with_tool: bool) -> None:
        if with_tool:
            ENGINE.start(self.tool)
        started = time.perf_counter()
        for _ in range(count):
            self.trainer.step(*self.text.batch(BATCH, CONTEXT))
        self.seconds[with_tool].append((time.perf_counter() - started) / count)
        if with_tool:
            self.watched += count
            ENGINE.stop(self.tool)

    def until_named(self, kernel: str, limit: int) -> int | None:
        """Train on with the tool until a kernel is accused; the steps it took."""
        before = self.tool.failed_names.get(aten_name(kernel), 0)
        for step in range(1, limit + 1):
            self.steps(1, True)
            if self.tool.failed_names.get(aten_name(kernel), 0) > before:
                return step
        return None


def job(device: str, steps: int) -> Job:
    torch.manual_seed(0)
    text = CharacterText(CORPUS.read_text(), seed=0)
    model = GPT(GPTConfig(vocabulary=len(text.characters), context=CONTEXT))
    return Job(Trainer(model, torch.device(device), steps), text, op_tools.OpSentinel())


def measure(options: Options) -> Report:
    torch.set_num_threads(1)
    steps = 200 if options.quick else 2000
    cases: list[Case] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        os.environ["OP_TOOLS_RESULTS"] = folder
        work = job(options.device, 2 * steps)
        work.steps(5, False)
        work.seconds[False].clear()
        work.tool.start()
        ENGINE.stop(work.tool)
        named: dict[str, int | None] = {}
        library = None
        for block in range(steps // BLOCK):
            if block == steps // BLOCK // 2:
                library = install(*FIRST)
                turned = work.watched
            for with_tool in (True, False) if block % 2 == 0 else (False, True):
                work.steps(BLOCK, with_tool)
            kernel = FIRST[0]
            if library is not None and kernel not in named and aten_name(kernel) in work.tool.failed_names:
                named[kernel] = work.watched - turned
        alarms = {name for name in work.tool.failed_names if name != aten_name(FIRST[0])}
        assert library is not None
        library._destroy()
        seconds = {on: list(spent) for on, spent in work.seconds.items()}
        sampler, dropped = work.tool.native_sampler, work.tool._background.dropped
        taken, calls = sampler.taken, sampler.calls
        for kernel, mistake in OTHERS[:2] if options.quick else OTHERS:
            library = install(kernel, mistake)
            named[kernel] = work.until_named(kernel, WITHIN)
            library._destroy()
        work.tool.stop()
        del os.environ["OP_TOOLS_RESULTS"]
    ratio = sum(seconds[True]) / sum(seconds[False])
    bare, watched = (sum(seconds[on]) / len(seconds[on]) * 1e3 for on in (False, True))
    cells = [f"{bare:.1f} ms", f"{watched:.1f} ms", f"{ratio:.3f}"]
    raw = {
        "bare_s": seconds[False],
        "watched_s": seconds[True],
        "looked_at": taken,
        "calls": calls,
        "dropped": dropped,
    }
    cases.append(Case(f"{steps} steps", ratio, cells, COST, raw))
    cases.append(
        Case("right kernels accused", len(alarms), ["", "", str(len(alarms))], 0, {"names": sorted(alarms)})
    )
    for kernel, found in named.items():
        cells = ["", "", f"{found} steps" if found is not None else "not found"]
        cases.append(
            Case(f"steps until {kernel} is named", found if found is not None else 10**9, cells, WITHIN)
        )
    if FIRST[0] not in named:
        cases.append(Case(f"steps until {FIRST[0]} is named", 10**9, ["", "", "not found"], WITHIN))
    return Report(
        f"OpSentinel on the GPT of the demo, {options.device}, one thread",
        ["without", "with", "figure"],
        cases,
    )


if __name__ == "__main__":
    import run

    run.main(["always_on", *sys.argv[1:]])
