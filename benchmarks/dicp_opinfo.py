"""PyTorch's operator database through a backend of dicp: each sample compiled, run and judged beside eager PyTorch.

A sample is `right`, `wrong` (by op_tools' verdict, or of another shape, dtype or layout), an `error` (of the compiler or of
the run), or `not traced`: PyTorch cannot make a graph of it, for this backend or any other. `eager` counts the samples of
which a part fell back to eager PyTorch; they are judged all the same. With `--gradients` the backward is compiled and judged.

`python benchmarks/dicp_opinfo.py --backend hostgraph --json out.json`; `--ops 'nn\\.functional\\..*'` takes some entries.
"""

from __future__ import annotations

import random
import re
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import torch
import typer
from rich.console import Console
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

sys.path.insert(0, str(Path(__file__).resolve().parent))

from dicore.workers import Done, Service
from dicp.conformance.judging import problem_of_type
from dicp_calls import backend_named, compiled, traced
from op_tools.categories import category_of
from op_tools.reference import Recomputation, RecomputeError
from op_tools.trees import flat_results
from op_tools.verdict import judge_all, tolerance_for
from opinfo_samples import in_workers
from report import Case, Options, Report, write_json

STATES = ("right", "wrong", "error", "not traced")
SEED = 1234
DTYPES = ("float32", "bfloat16", "float16")
# They ask for tensors that are not strided, or for a device's library.
_NOT_RUN = re.compile(r"sparse\..*|to_sparse|masked_.*sparse.*|.*_scaled_mm.*|_jiterator.*")


@dataclass(frozen=True)
class Task:
    """An entry of the database with a dtype."""

    entry: str
    dtype: str
    backend: str
    samples: int
    gradients: bool


@dataclass
class Outcome:
    task: Task
    states: Counter[str] = field(default_factory=Counter)
    eager: int = 0
    """Samples of which a part ran eagerly."""
    details: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Operators that ran eagerly."""


@cache
def entries() -> dict[str, Any]:
    from torch.testing._internal import common_methods_invocations as definitions

    # Some entries set a seed inside of the call, which no graph can hold: it is set before the call here.
    definitions.wrapper_set_seed = lambda called, *args, **kwargs: called(*args, **kwargs)
    op_db = definitions.op_db
    return {op.full_name: op for op in op_db if not _NOT_RUN.fullmatch(op.full_name)}


def samples(op: Any, dtype: torch.dtype, count: int, gradients: bool) -> Iterator[Any]:
    """The first samples, each from a seed of its own."""
    made = iter(op.sample_inputs_func(op, "cpu", dtype, gradients))
    for number in range(count):
        torch.manual_seed(SEED + number)
        random.seed(SEED + number)
        sample = next(made, None)
        if sample is None:
            return
        yield sample


class SampleCall:
    """One sample as a function of its tensors."""

    def __init__(self, op: Any, sample: Any, gradients: bool) -> None:
        self.op = op
        self.args, self.kwargs = (sample.input, *sample.args), dict(sample.kwargs)
        leaves, self.form = tree_flatten((self.args, self.kwargs))
        self.leaves = leaves
        self.places = [n for n, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        self.tensors = [leaves[n].detach() for n in self.places]
        """What the function takes: the sample's tensors, then the gradients of the outputs."""
        self.wants = [n for n, place in enumerate(self.places) if gradients and leaves[place].requires_grad]
        self.weights: list[Tensor | None] = []
        if gradients:
            self._weigh()
            self.tensors += [w for w in self.weights if w is not None]

    def _call(self, tensors: Sequence[Tensor]) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = tree_unflatten(leaves, self.form)
        return self.op.op(*args, **kwargs)

    def _weigh(self) -> None:
        """A gradient for each output that has one: no two elements alike."""
        with torch.enable_grad():
            found = self._outputs(self._leaves(self.tensors))
        generator = torch.Generator().manual_seed(SEED)
        self.weights = [
            torch.randn(o.shape, dtype=o.dtype, generator=generator) if o.requires_grad else None
            for o in found
        ]

    def _leaves(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [t.detach().requires_grad_() if n in self.wants else t for n, t in enumerate(tensors)]

    def _outputs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [leaf for leaf in flat_results(self._call(tensors)) if isinstance(leaf, Tensor)]

    def __call__(self, *tensors: Tensor) -> list[Any]:
        if not self.weights:
            return flat_results(self._call(tensors))
        count = len(self.places)
        with torch.enable_grad():
            leaves = self._leaves(tensors[:count])
            found = self._outputs(leaves)
            outputs = [o for o, w in zip(found, self.weights, strict=True) if w is not None]
            wanted = [leaves[n] for n in self.wants]
            gradients = torch.autograd.grad(outputs, wanted, tensors[count:], allow_unused=True)
        return [g for g in gradients if g is not None]

    def reference(self) -> Recomputation:
        if not self.weights:
            return Recomputation(self.op.op, self.args, self.kwargs)
        return Recomputation(
            self.op.op, self.args, self.kwargs, grad_outputs=self.weights, wants_grad=self.wants
        )


class Checker:
    """Samples of one task, one after the other."""

    def __init__(self, task: Task) -> None:
        self.task, self.outcome = task, Outcome(task)
        self.backend = backend_named(task.backend)
        self.dtype: torch.dtype = getattr(torch, task.dtype)

    def run(self) -> Outcome:
        op, dtype = entries()[self.task.entry], self.dtype
        supported = op.supported_backward_dtypes("cpu") if self.task.gradients else op.dtypes
        if dtype not in supported or (self.task.gradients and not op.supports_autograd):
            return self.outcome
        for number, sample in enumerate(samples(op, dtype, self.task.samples, self.task.gradients)):
            try:
                call = SampleCall(op, sample, self.task.gradients)
                expected = Expected.of(call)
            except Exception:
                continue  # eager PyTorch refuses it
            if not expected.tensors:
                continue
            state, detail = self._one(call, expected)
            self.outcome.states[state] += 1
            if state not in ("right", "not traced"):
                self.outcome.details.append(f"sample {number}: {state}: {detail}")
        return self.outcome

    def _one(self, call: SampleCall, expected: Expected) -> tuple[str, str]:
        try:
            traced(call, call.tensors, self.backend)
        except Exception as error:
            return "not traced", f"{type(error).__name__}: {error}"
        refused: list[str] = []
        supports = self.backend.supports

        def noted(node: torch.fx.Node) -> bool:
            taken = supports(node)
            if not taken:
                refused.append(str(node.target))
            return taken

        try:
            with mock.patch.object(self.backend, "supports", noted), torch.no_grad():
                run = compiled(call, call.tensors, self.backend)
                torch.manual_seed(SEED)
                got = run(*_copies(call.tensors))
        except Exception as error:
            return "error", f"{type(error).__name__}: {str(error)[:300]}"
        self.outcome.eager += bool(refused)
        self.outcome.refused += [name for name in refused if name not in self.outcome.refused]
        problem = self._problem(call, got, expected)
        return ("wrong", problem) if problem else ("right", "")

    def _problem(self, call: SampleCall, got: list[Any], expected: Expected) -> str:
        if len(got) != len(expected.tensors):
            return f"gave {len(got)} tensors, expected {len(expected.tensors)}"
        for value, mine, is_view in zip(got, expected.tensors, expected.views, strict=True):
            problem = problem_of_type(value, mine)
            if problem and not ((is_view or self.task.gradients) and "strides" in problem):
                return problem
        if all(map(_identical, got, expected.tensors)):
            return ""
        if category_of(call.op.op, call.op.name) == "uninitialised":
            return ""
        if expected.is_random:
            alike = all(map(_close, got, expected.tensors))
            return "" if alike else "draws other numbers than eager PyTorch"
        return self._wrong_values(call, got)

    def _wrong_values(self, call: SampleCall, got: list[Tensor]) -> str:
        reference = call.reference()
        category = category_of(call.op.op, reference.name)
        try:
            own = reference.own()
        except RecomputeError as error:
            return f"no reference: {error}"
        given: Iterator[Tensor] = iter(got)
        full = [next(given, value) if isinstance(value, Tensor) else value for value in own]
        tolerance = tolerance_for(reference.name, self.dtype)
        category = "other" if category == "random" else category
        for verdict in judge_all(full, reference, category=category, tolerance=tolerance):
            if not verdict.ok:
                return verdict.reason or verdict.error_info
        return ""


@dataclass
class Expected:
    """What eager PyTorch gives."""

    tensors: list[Tensor]
    views: list[bool]
    """Of the sample's own tensors; the compiled function gives copies of them."""
    is_random: bool

    @classmethod
    def of(cls, call: SampleCall) -> Expected:
        def results(seed: int) -> tuple[list[Tensor], list[Tensor]]:
            given = _copies(call.tensors)
            torch.manual_seed(seed)
            return given, [value for value in call(*given) if isinstance(value, Tensor)]

        given, tensors = results(SEED)
        own = {_memory(t) for t in given}
        _, others = results(SEED + 1)
        return cls(tensors, [_memory(t) in own for t in tensors], not all(map(_identical, tensors, others)))


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def _identical(a: Tensor, b: Tensor) -> bool:
    """NaN is NaN here."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(torch.equal(a, b) or ((a == b) | (a.isnan() & b.isnan())).all())


def _close(a: Tensor, b: Tensor) -> bool:
    tolerance = 2e-2 if b.dtype in (torch.float16, torch.bfloat16) else 1e-4
    return torch.allclose(a, b, tolerance, tolerance, equal_nan=True)


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Of the same memory layout: a sample may be a view, and the call may write to it."""
    return [t.clone() if t.is_contiguous() else _restrided(t) for t in tensors]


def _restrided(tensor: Tensor) -> Tensor:
    if tensor.layout is not torch.strided or 0 in tensor.shape:
        return tensor.clone()
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    memory = torch.as_strided(tensor, (extent,), (1,)).clone()
    return torch.as_strided(memory, tensor.shape, tensor.stride(), 0)


def check(task: Task) -> Outcome:
    # An error of the compiler is an error here, not a reason to run eagerly.
    with warnings.catch_warnings(), mock.patch.dict("os.environ", DICP_FALLBACK="unsupported"):
        warnings.simplefilter("ignore")
        return Checker(task).run()


def start(group: str, setup: Any) -> Service:
    torch.set_num_threads(1)
    entries()
    return Service(run=check)


@dataclass
class Tally:
    """All tasks of a dtype."""

    counts: Counter[str] = field(default_factory=Counter)
    eager: int = 0
    problems: dict[str, list[str]] = field(default_factory=dict)
    refused: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: Outcome) -> None:
        self.counts.update(outcome.states)
        self.eager += outcome.eager
        self.refused.update(outcome.refused)
        if outcome.details:
            self.problems[outcome.task.entry] = outcome.details

    @property
    def share(self) -> float:
        judged = sum(self.counts[state] for state in ("right", "wrong", "error"))
        return 100 * self.counts["right"] / judged if judged else 0.0


def measured(tasks: list[Task], workers: int, say: Any) -> dict[str, Tally]:
    tallies: dict[str, Tally] = defaultdict(Tally)
    for event in in_workers("dicp_opinfo:start", None, tasks, workers, 300):
        if isinstance(event, Done):
            outcome: Outcome = event.value
        else:
            lost = [f"sample ?: {event.cause}: {event.message}"]
            outcome = Outcome(event.task, Counter(error=1), details=lost)
        tallies[outcome.task.dtype].add(outcome)
        for line in outcome.details[:1]:
            say(f"{outcome.task.entry} {outcome.task.dtype}: {line.splitlines()[0]}")
    return tallies


def report_of(tallies: dict[str, Tally], backend: str, gradients: bool, seconds: float) -> Report:
    cases = []
    for dtype, tally in tallies.items():
        numbers = [sum(tally.counts.values()), *(tally.counts[state] for state in STATES), tally.eager]
        figure = 100 - tally.share
        cells = [*(f"{n:,}" for n in numbers), f"{tally.share:.2f} %"]
        raw = {
            **tally.counts,
            "eager": tally.eager,
            "problems": tally.problems,
            "refused": dict(tally.refused),
        }
        cases.append(Case(dtype, figure, cells, 0.5, raw))
    what = "gradients of samples" if gradients else "samples"
    title = f"{what} of the operator database through {backend}, {seconds:.0f} s"
    return Report(title, ["samples", *STATES, "eager", "right share"], cases)


def tasks_of(pattern: str, dtypes: Sequence[str], backend: str, samples: int, gradients: bool) -> list[Task]:
    names = [name for name in entries() if re.fullmatch(pattern, name)]
    return [Task(name, dtype, backend, samples, gradients) for dtype in dtypes for name in names]


def measure(options: Options) -> Report:
    """For `benchmarks/run.py`: the backend that makes C++."""
    start = time.perf_counter()
    tasks = tasks_of(
        ".*", DTYPES[:1] if options.quick else DTYPES, "hostgraph", 2 if options.quick else 8, False
    )
    return report_of(measured(tasks, 2, options.say), "hostgraph", False, time.perf_counter() - start)


def main(
    backend: Annotated[str, typer.Option(help="`reference`: the interpreter of loop programs")] = "hostgraph",
    ops: Annotated[str, typer.Option(help="a pattern that whole names of entries match")] = ".*",
    dtypes: Annotated[str, typer.Option(help="separated by commas")] = ",".join(DTYPES),
    samples: Annotated[int, typer.Option(help="of each entry at most")] = 8,
    gradients: Annotated[bool, typer.Option("--gradients", help="forward and backward in one graph")] = False,
    workers: Annotated[int, typer.Option(help="processes")] = 2,
    json: Annotated[Path | None, typer.Option(help="write everything to this file")] = None,
) -> None:
    """Run the operator database through a backend of dicp."""
    console = Console(width=140)
    start = time.perf_counter()
    tasks = tasks_of(ops, dtypes.split(","), backend, samples, gradients)
    tallies = measured(tasks, workers, lambda line: console.print(line, markup=False, highlight=False))
    report = report_of(tallies, backend, gradients, time.perf_counter() - start)
    report.print(console)
    if json is not None:
        write_json(json, report.as_json("dicp_opinfo"))
    if report.missed:
        raise typer.Exit(1)


if __name__ == "__main__":
    import dicp_opinfo  # tasks are of its classes, which the workers know by that name

    typer.run(dicp_opinfo.main)
