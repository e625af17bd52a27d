"""Do the same kernels run with a tool as without it? Every differentiable entry of torch's operator database, on the device.

Autograd asks what is active around it before it chooses a formula, and whether it owns a gradient alone before it adds in
place. A tool that changes the answer hides a wrong kernel: it no longer runs. Here each entry is run forward and backward
under torch.profiler, without a tool and with each observing tool, and the lists of operators (with what each calls inside)
must be equal. What a tool itself runs is left out.

`python benchmarks/kernel_lists.py --operators 'index.*' --tools autocompare,capture-aten`; exit code 1 where lists differ.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

import op_tools
from dicore.workers import Done, Service
from op_tools.engine.core import Engine
from opinfo_samples import DEVICE, database, in_workers, prepare_worker, samples
from report import Case, Options, Report, write_json

Kernels = tuple[str, ...]
OURS = "op_tools"
PHASES = ("forward", "backward")
TOOLS: dict[str, Callable[[], Any]] = {
    "autocompare": op_tools.OpAutoCompare,
    "autocompare-sampled": lambda: op_tools.OpAutoCompare(mode="sampled"),
    "capture": op_tools.OpCapture,
    "capture-aten": lambda: op_tools.OpCapture(level="aten"),
    "time": op_tools.OpTimeMeasure,
    "time-aten": lambda: op_tools.OpTimeMeasure(level="aten"),
    "observe": op_tools.OpObserve,
    "observe-aten": lambda: op_tools.OpObserve(level="aten"),
    "overflow": op_tools.OpOverflowCheck,
    "overflow-api": lambda: op_tools.OpOverflowCheck(level="api"),
    "layers": op_tools.OpLayers,
    "sentinel": op_tools.OpSentinel,
}


@dataclasses.dataclass(frozen=True)
class Difference:
    """Where the list with a tool leaves that without one."""

    tool: str
    phase: str
    without: str
    with_tool: str


@dataclasses.dataclass
class Outcome:
    name: str
    kernels: int = 0
    differences: list[Difference] = dataclasses.field(default_factory=list)
    unstable: bool = False  # two runs without a tool differ
    trouble: str = ""


# -- one run ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def own_work_marked() -> Iterator[None]:
    """While it lasts, the profiler shows what the tools themselves run under a name of its own."""
    original = Engine.guarded

    def guarded(self: Engine, *args: Any) -> Any:
        with torch._C._profiler._RecordFunctionFast(OURS):
            return original(self, *args)

    with mock.patch.object(Engine, "guarded", guarded):
        yield


def kernels_of(program: Callable[[Callable[[str], Any]], None]) -> dict[str, Kernels]:
    """The operators that run in each phase, in order, indented by how deep they are called.

    `program` is given a function that makes the context of a phase.
    """
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        program(torch._C._profiler._RecordFunctionFast)
    events = sorted(profiler.events(), key=lambda event: event.time_range.start)
    spans = {event.name: event.time_range for event in events if event.name in PHASES}
    found: dict[str, list[str]] = {phase: [] for phase in PHASES}
    for event in events:
        if not _is_operator(event.name):
            continue
        above = list(_above(event))
        if OURS in above or above[:1] == [event.name]:  # a tool's own, or the same call handed on
            continue
        for phase, span in spans.items():
            if span.start <= event.time_range.start <= span.end:
                found[phase].append("  " * len(list(itertools.groupby(above))) + event.name)
    return {phase: tuple(names) for phase, names in found.items()}


def _is_operator(name: str) -> bool:
    return "::" in name and not name.startswith(("autograd::", "profiler::", "torch::"))


def _above(event: Any) -> Iterator[str]:
    """The names of operators and of our own ranges around an event, the innermost first."""
    while (event := event.cpu_parent) is not None:
        if event.name == OURS or _is_operator(event.name):
            yield event.name


def first_difference(tool: str, bare: dict[str, Kernels], seen: dict[str, Kernels]) -> Iterator[Difference]:
    for phase in PHASES:
        if bare[phase] == seen[phase]:
            continue
        ends = ("(end)",)
        pairs = zip(
            bare[phase] + ends * len(seen[phase]), seen[phase] + ends * len(bare[phase]), strict=False
        )
        mine, theirs = next((a, b) for a, b in pairs if a != b)
        yield Difference(tool, phase, mine.strip(), theirs.strip())


# -- programs that are in no database --------------------------------------------------------------------------


def _encoder_layer() -> Callable[[], Any]:
    """In eval mode and without gradients torch takes one fused kernel, unless it sees that somebody looks on."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval().to(DEVICE)
    x = torch.randn(2, 5, 16, device=DEVICE)
    return lambda: layer(x)


def _attention() -> Callable[[], Any]:
    torch.manual_seed(0)
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval().to(DEVICE)
    x = torch.randn(2, 5, 16, device=DEVICE)
    return lambda: layer(x, x, x, need_weights=False)


PROGRAMS: dict[str, Callable[[], Callable[[], Any]]] = {
    "nn.TransformerEncoderLayer.eval": _encoder_layer,
    "nn.MultiheadAttention.eval": _attention,
}


def runs(name: str, count: int) -> Iterator[Callable[[Callable[[str], Any]], None]]:
    """The programs of an entry, for `kernels_of`."""
    if name in PROGRAMS:
        run = PROGRAMS[name]()

        def inference(phase: Callable[[str], Any]) -> None:
            with torch.no_grad(), phase("forward"):
                run()

        yield inference
        return
    for sample in samples(name, count):

        def training(phase: Callable[[str], Any], sample: Any = sample) -> None:
            with phase("forward"):
                outputs = sample.forward()
            if outputs:
                weights = sample.weights(outputs)
                with phase("backward"):
                    sample.backward(outputs, weights)

        yield training


# -- one entry with all tools ----------------------------------------------------------------------------------


def compare(name: str, tools: list[str], count: int) -> Outcome:
    """Run an entry without and with each tool."""
    outcome = Outcome(name)
    for program in runs(name, count):
        program(lambda _: contextlib.nullcontext())  # whatever happens at a first call only
        bare = kernels_of(program)
        if kernels_of(program) != bare:
            outcome.unstable = True
            continue
        outcome.kernels += sum(map(len, bare.values()))
        for tool in tools:
            with TOOLS[tool](), own_work_marked():
                seen = kernels_of(program)
            outcome.differences += first_difference(tool, bare, seen)
    return outcome


def start(_group: str, setup: tuple[list[str], int]) -> Service:
    """The worker: answers the name of an entry with its outcome."""
    tools, count = setup
    os.chdir(tempfile.mkdtemp(prefix="kernel_lists_"))
    prepare_worker()

    def run(name: str) -> Outcome:
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                return compare(name, tools, count)
        except Exception as error:
            return Outcome(name, trouble=f"{type(error).__name__}: {error}".splitlines()[0][:100])

    return Service(run, None)


def sweep(
    operators: str, tools: list[str], count: int, workers: int, say: Callable[[str], None]
) -> list[Outcome]:
    """Every entry whose name matches."""
    names = [name for name in (*PROGRAMS, *database()) if re.fullmatch(operators, name)]
    if not names:
        raise typer.BadParameter(f"no differentiable entry of torch's database is called {operators!r}")
    found: list[Outcome] = []
    for event in in_workers("kernel_lists:start", (tools, count), names, workers, timeout=120):
        outcome = event.value if isinstance(event, Done) else Outcome(event.task, trouble=event.message)
        found.append(outcome)
        if len(found) % 50 == 0:
            say(f"{len(found)} of {len(names)}")
    return sorted(found, key=lambda outcome: names.index(outcome.name))


def print_differences(console: Console, outcomes: list[Outcome]) -> None:
    """A row for each way in which an entry's list differs, with the tools that make it so."""
    table = Table(title="Entries whose kernels differ")
    for column in ("entry", "phase", "without", "with", "tools"):
        table.add_column(column, overflow="fold")
    for outcome in outcomes:
        ways: dict[tuple[str, str, str], dict[str, None]] = {}
        for found in outcome.differences:
            ways.setdefault((found.phase, found.without, found.with_tool), {})[found.tool] = None
        for way, tools in ways.items():
            table.add_row(outcome.name, *way, ", ".join(tools))
    if table.row_count:
        console.print(table)
    for outcome in outcomes:
        if outcome.trouble:
            console.print(f"not run: {outcome.name}: {outcome.trouble}")
        if outcome.unstable:
            console.print(f"not the same twice without a tool: {outcome.name}")


def as_report(outcomes: list[Outcome], tools: list[str]) -> Report:
    cases = []
    ran = [outcome for outcome in outcomes if not outcome.trouble and outcome.kernels]
    for tool in tools:
        differing = [o.name for o in ran if any(d.tool == tool for d in o.differences)]
        phases = [
            sum(any((d.tool, d.phase) == (tool, phase) for d in o.differences) for o in ran)
            for phase in PHASES
        ]
        cells = [str(len(ran)), str(len(differing)), *map(str, phases)]
        cases.append(Case(tool, len(differing), cells, 0, raw={"differing": differing}))
    title = f"The same kernels with a tool as without, {DEVICE}, {sum(o.kernels for o in ran):,} calls"
    notes = {
        "not_run": {o.name: o.trouble for o in outcomes if o.trouble},
        "not_the_same_twice_without_a_tool": [o.name for o in outcomes if o.unstable],
        "differences": {
            o.name: list(map(dataclasses.astuple, o.differences)) for o in outcomes if o.differences
        },
    }
    return Report(title, ["entries", "differing", *(f"in {phase}" for phase in PHASES)], cases, notes)


def measure(options: Options) -> Report:
    tools = list(TOOLS)
    operators = "(index|gather|sort|topk|trace|prod).*" if options.quick else ".*"
    outcomes = sweep(operators, tools, 1 if options.quick else 2, 2, options.say)
    return as_report(outcomes, tools)


def main(
    operators: Annotated[str, typer.Option(help="entries: a full-match pattern")] = ".*",
    tools: Annotated[str, typer.Option(help=f"of {', '.join(TOOLS)}")] = ",".join(TOOLS),
    count: Annotated[int, typer.Option("--samples", help="samples of each entry")] = 1,
    workers: Annotated[int, typer.Option(help="processes")] = os.cpu_count() or 1,
    json: Annotated[Path | None, typer.Option(help="write every figure to this file")] = None,
) -> None:
    """Compare the kernels that run without a tool and with each."""
    chosen = [tool.strip() for tool in tools.split(",") if tool.strip()]
    unknown = sorted(set(chosen) - set(TOOLS))
    if unknown or not chosen:
        raise typer.BadParameter(
            f"no such tool: {', '.join(unknown) or '(none)'}; there are {', '.join(TOOLS)}"
        )
    console = Console(width=120)
    outcomes = sweep(operators, chosen, count, workers, lambda line: console.print(f"[dim]{line}[/]"))
    print_differences(console, outcomes)
    report = as_report(outcomes, chosen)
    report.print(console)
    if json is not None:
        write_json(json, report.as_json("kernel_lists"))
    sys.exit(1 if report.missed or not any(outcome.kernels for outcome in outcomes) else 0)


if __name__ == "__main__":
    typer.run(main)
