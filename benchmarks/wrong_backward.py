"""Sixty kernels of backward made wrong one at a time: does OpAutoCompare find each and name it?

The kernels were drawn once, with a seed, from all operators that run on the device in the backward of torch's operator
database (`--draw` draws again; views, factories and copies are not drawn), before any result was looked at. Each is
replaced by one that has a wrong element in backward and is right in forward, and an entry that uses it, and whose gradients
the wrong element changes, is run under the tool. Found is what a failing row of backward names: the kernel, or the call that
it runs in. A kernel that no longer runs once the tool is on is `hidden`; one that is not found and changes no gradient is
`no effect`: its entry is of no use.

`python benchmarks/wrong_backward.py --kernels 'index.*|scatter.*'`; exit code 1 where one is not found. `--all` takes all
kernels that could be drawn.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import os
import random
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch.profiler import ProfilerActivity, profile

import op_tools
from dicore.workers import Done, Service
from op_tools.categories import category_of
from op_tools.engine import ENGINE, Call
from opinfo_samples import DEVICE, Sample, database, in_workers, prepare_worker, samples
from report import Case, Options, Report, write_json

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "op_tools"))
from wrong_kernels import (  # type: ignore[import-not-found]  # a module of the tests
    aten_name,
    install,
    one_element,
    overload_of,
)

SEED, COUNT = 16, 60
MOST_ENTRIES = 5  # that are tried for a kernel, beside the first
# In-place forms that autograd avoids where it thinks that somebody looks on: not left to chance.
ALWAYS = ("_index_put_impl_", "index_add_", "scatter_add_")
# Kernel -> the entry in whose backward it runs.
DRAWN = {
    "_adaptive_avg_pool2d_backward": "nn.functional.adaptive_avg_pool2d",
    "_embedding_bag_backward": "nn.functional.embedding_bag",
    "_embedding_bag_per_sample_weights_backward": "nn.functional.embedding_bag",
    "_fft_c2c": "fft.hfft2",
    "_index_put_impl_": "__getitem__",
    "_linalg_svd": "linalg.lstsq.grad_oriented",
    "_log_softmax_backward_data": "masked.log_softmax",
    "_logcumsumexp": "logcumsumexp",
    "_prelu_kernel_backward": "nn.functional.prelu",
    "_segment_reduce_backward": "_segment_reduce.lengths",
    "_unsafe_masked_index_put_accumulate": "_unsafe_masked_index",
    "addmm.out": "nn.functional.linear_cross_entropy.chunked_none",
    "avg_pool2d_backward": "nn.functional.avg_pool1d",
    "avg_pool3d_backward": "nn.functional.avg_pool3d",
    "bitwise_not": "nn.functional.linear_cross_entropy.chunked_none",
    "cos": "sin",
    "digamma_": "mvlgamma.mvlgamma_p_3",
    "dot": "nn.functional.linear_cross_entropy.chunked_none",
    "gelu_backward": "nn.functional.gelu",
    "hardswish_backward": "nn.functional.hardswish",
    "index.Tensor": "index_put",
    "index_add": "index_reduce.prod",
    "index_add_": "index_select",
    "index_fill.int_Scalar": "index_fill",
    "index_fill_.int_Tensor": "trace",
    "le.Tensor": "clamp_max",
    "leaky_relu_backward": "nn.functional.leaky_relu",
    "linalg_lu_solve": "lu_solve",
    "linalg_vector_norm": "renorm",
    "log": "logcumsumexp",
    "log_sigmoid_backward": "nn.functional.multilabel_soft_margin_loss",
    "logcumsumexp": "logcumsumexp",
    "logical_not_": "fmax",
    "logical_or_": "fmax",
    "logit_backward": "logit",
    "mul.Scalar": "square",
    "multi_margin_loss_backward": "nn.functional.multi_margin_loss",
    "native_dropout_backward": "nn.functional.multi_head_attention_forward",
    "ormqr": "ormqr",
    "pixel_unshuffle": "nn.functional.pixel_shuffle",
    "polygamma": "polygamma.polygamma_n_1",
    "put_": "take",
    "roll": "fft.ifftshift",
    "rrelu_with_noise_backward": "nn.functional.rrelu",
    "rsqrt": "asin",
    "scatter_add_": "cummin",
    "select_scatter": "select_scatter",
    "sinh": "cosh",
    "soft_margin_loss_backward.grad_input": "nn.functional.soft_margin_loss",
    "special_i0e": "special.i1e",
    "special_i1": "i0",
    "special_xlog1py": "special.xlog1py",
    "sub.Tensor": "logaddexp",
    "sub_.Tensor": "linalg.householder_product",
    "sum.dim_IntList": "corrcoef",
    "take": "put",
    "tanh_backward": "nn.functional.tanhshrink",
    "triangular_solve": "triangular_solve",
    "tril_": "linalg.householder_product",
    "where.self": "linalg.lstsq.grad_oriented",
}
# Nothing is computed in these, or replacing them would break what compares.
_NOT_DRAWN = ("view", "uninitialised", "communication", "random")
_COPIES = re.compile(
    r"(copy_|_to_copy|clone|detach|alias|lift_fresh|fill_|zero_|zeros|ones|full|new_\w+|\w+_like|scalar_tensor|arange"
    r"|_local_scalar_dense|contiguous|resize_\w*|set_\w*|eye|linspace|is_\w+|equal|record_stream)(\..*)?"
)


# The kernel itself is accused, or the call that it runs in: an operator around it, or one at API level.
FOUND = ("named", "call named")
STATES = (*FOUND, "other named", "missed", "hidden", "no effect", "not run")


@dataclasses.dataclass
class Outcome:
    kernel: str
    entry: str
    state: str  # one of STATES
    detail: str = ""


# -- drawing ---------------------------------------------------------------------------------------------------


def kernels_in_backward(sample: Sample) -> dict[str, set[str]]:
    """The operators that run in the backward of a sample, as `index_add_` or `mul.Tensor`, and those that call them."""
    outputs = sample.forward()
    if not outputs:
        return {}
    weights = sample.weights(outputs)
    with_overloads = torch._C._profiler._ExperimentalConfig(capture_overload_names=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=with_overloads) as profiler:
        sample.backward(outputs, weights)
    callers: dict[str, set[str]] = {}
    for event in profiler.events():
        name = _overload_in(event)
        above = callers.setdefault(name, set())
        while (event := event.cpu_parent) is not None:
            above.add(_overload_in(event))
    return {name: callers[name] for name in callers if _can_be_drawn(name)}


def _overload_in(event: Any) -> str:
    return event.name.removeprefix("aten::") + "." * bool(event.overload_name) + event.overload_name


def _can_be_drawn(name: str) -> bool:
    if _COPIES.fullmatch(name) or not re.fullmatch(r"\w+(\.\w+)?", name):
        return False
    try:
        overload = overload_of(name)
    except AttributeError:
        return False
    qualified = (
        overload._schema.name + "." * bool(overload._schema.overload_name) + overload._schema.overload_name
    )
    # A composite runs other kernels, on every device; they can be drawn.
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(qualified, "CompositeImplicitAutograd")
    returns = any("Tensor" in str(result.type) for result in overload._schema.returns)
    return returns and not composite and category_of(overload, aten_name(name)) not in _NOT_DRAWN


def kernels_to_draw(workers: int, dice: random.Random) -> dict[str, str]:
    """All kernels to draw from, each with an entry that shows when it is wrong."""
    uses: dict[str, list[str]] = {}
    for event in in_workers("wrong_backward:start", None, list(database()), workers, timeout=120):
        for kernel in event.value if isinstance(event, Done) else ():
            uses.setdefault(kernel, []).append(event.task)
    first = {name: dice.choice(sorted(uses[name])) for name in sorted(uses)}
    # Where a wrong element changes nothing, other entries follow, in an order that is drawn too.
    others = {name: sorted({*uses[name]} - {entry}) for name, entry in first.items()}
    asked = [
        (name, [entry, *dice.sample(others[name], min(len(others[name]), MOST_ENTRIES))])
        for name, entry in first.items()
    ]
    # The profiler also shows what a CPU kernel calls inside, where the device has none: those cannot be replaced.
    return {
        event.task[0]: event.value
        for event in in_workers("wrong_backward:start", None, asked, workers, timeout=300)
        if isinstance(event, Done) and event.value
    }


def draw(shown: dict[str, str], dice: random.Random) -> dict[str, str]:
    """Some of them."""
    left = sorted(set(shown) - set(ALWAYS))
    drawn = {*ALWAYS, *dice.sample(left, COUNT - len(ALWAYS))}
    return {name: shown[name] for name in sorted(drawn)}


# -- one wrong kernel ------------------------------------------------------------------------------------------


def entry_that_shows(kernel: str, entries: list[str]) -> str:
    """The first of the entries in whose backward the device runs a kernel such that a wrong element changes the gradients."""
    for entry in entries:
        sample = next(samples(entry, 1))
        right = gradients(sample)
        library = install(kernel, one_element, only_in_backward=True)
        try:
            wrong = gradients(sample)
        except (
            RuntimeError
        ):  # it is computed on the CPU, which may have no such kernel; or a formula checks it
            continue
        finally:
            library._destroy()
        if not alike(right, wrong):
            return entry
    return ""


def run_wrong(kernel: str, entry: str) -> Outcome:
    """Run an entry with a wrong kernel, without and with the tool."""
    sample = next(samples(entry, 1))
    callers = {
        aten_name(name)
        for name in kernels_in_backward(sample).get(kernel, ())
        if re.fullmatch(r"[\w.]+", name)
    }
    ran = 0
    right = gradients(sample)

    def mistake(right: torch.Tensor) -> None:
        nonlocal ran
        ran += 1
        call = ENGINE.local.api_call
        if isinstance(call, Call):
            callers.add(call.name)
        one_element(right)

    library = install(kernel, mistake, only_in_backward=True)
    try:
        wrong = gradients(sample)
        if not ran:
            return Outcome(kernel, entry, "not run", "the kernel does not run in this entry's backward")
        ran = 0
        with tempfile.TemporaryDirectory() as folder:
            with op_tools.OpAutoCompare(results=folder, save_failures=0):
                gradients(sample)
            rows = failures(Path(folder))
    finally:
        library._destroy()
    # A row's name is that of the call and which of its values it is about.
    accused = [row["name"].partition(" ")[0] for row in rows if row["phase"] == "backward"]
    if aten_name(kernel) in accused:
        return Outcome(kernel, entry, "named")
    if accused:
        return Outcome(kernel, entry, "call named" if accused[0] in callers else "other named", accused[0])
    if not ran:
        return Outcome(kernel, entry, "hidden", "does not run under the tool")
    if alike(right, wrong):
        return Outcome(kernel, entry, "no effect", "the wrong element changes no gradient")
    return Outcome(kernel, entry, "missed")


def gradients(sample: Sample) -> list[torch.Tensor | None]:
    """The gradients of a sample's leaves."""
    outputs = sample.forward()
    sample.backward(outputs, sample.weights(outputs))
    return [None if leaf.grad is None else leaf.grad.cpu() for leaf in sample.leaves]


def alike(first: list[torch.Tensor | None], second: list[torch.Tensor | None]) -> bool:
    """Whether two runs of a sample gave the same gradients, bit for bit."""
    return all(
        a is b if a is None or b is None else torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        for a, b in zip(first, second, strict=True)
    )


def failures(folder: Path) -> list[dict[str, str]]:
    rows = []
    for path in folder.rglob("op_autocompare_info*.csv"):
        with path.open(newline="") as text:
            rows += [row for row in csv.DictReader(text) if row["verdict"] == "fail"]
    return rows


def start(_group: str, _setup: Any) -> Service:
    """The worker: answers an entry with its kernels, (kernel, entry) with what came of it when the kernel was wrong, and
    (kernel, entries) with the first of them that shows a wrong one."""
    os.chdir(tempfile.mkdtemp(prefix="wrong_backward_"))
    prepare_worker()

    def answer(task: str | tuple[str, str] | tuple[str, list[str]]) -> Any:
        with contextlib.redirect_stdout(io.StringIO()):
            if isinstance(task, str):
                return {kernel for sample in samples(task, 1) for kernel in kernels_in_backward(sample)}
            kernel, entry = task
            if isinstance(entry, list):
                return entry_that_shows(kernel, entry)
            try:
                return run_wrong(kernel, entry)
            except Exception as error:
                why = f"{type(error).__name__}: {error}".splitlines()[0][:100]
                return Outcome(kernel, entry, "not run", why)

    return Service(answer, None)


def sweep(
    kernels: str, workers: int, say: Callable[[str], None], among: dict[str, str] = DRAWN
) -> list[Outcome]:
    tasks = [(kernel, entry) for kernel, entry in among.items() if re.fullmatch(kernels, kernel)]
    if not tasks:
        raise typer.BadParameter(f"no kernel that was drawn is called {kernels!r}")
    found = []
    for event in in_workers("wrong_backward:start", None, tasks, workers, timeout=120):
        if isinstance(event, Done):
            outcome = event.value
        else:
            kernel, entry = event.task
            outcome = Outcome(kernel, entry, "not run", event.message)
        found.append(outcome)
        if outcome.state not in FOUND:
            say(f"{outcome.kernel} in {outcome.entry}: {outcome.state} {outcome.detail}")
    return found


def as_report(outcomes: list[Outcome]) -> Report:
    counts = {state: [o.kernel for o in outcomes if o.state == state] for state in STATES}
    unnamed = len(outcomes) - sum(len(counts[state]) for state in FOUND)
    cells = [str(len(outcomes)), *(str(len(counts[state])) for state in STATES)]
    case = Case("wrong kernels in backward", unnamed, cells, 0, raw=counts)
    return Report(f"Wrong kernels of backward under OpAutoCompare, {DEVICE}", ["kernels", *STATES], [case])


def measure(options: Options) -> Report:
    return as_report(sweep("index_.*|scatter.*" if options.quick else ".*", 2, options.say))


def main(
    kernels: Annotated[str, typer.Option(help="kernels that were drawn: a full-match pattern")] = ".*",
    draws: Annotated[bool, typer.Option("--draw", help="only draw, and print what was drawn")] = False,
    whole: Annotated[bool, typer.Option("--all", help="all kernels to draw from, not those drawn")] = False,
    workers: Annotated[int, typer.Option(help="processes")] = os.cpu_count() or 1,
    json: Annotated[Path | None, typer.Option(help="write every figure to this file")] = None,
) -> None:
    """Make kernels wrong and see whether they are found."""
    console = Console(width=120)
    dice = random.Random(SEED)
    shown = kernels_to_draw(workers, dice) if draws or whole else {}
    if draws:
        drawn = shown if whole else draw(shown, dice)
        console.print(f"{len(drawn)} of {len(shown)} kernels in the backward of {len(database())} entries")
        print("\n".join(f'    "{kernel}": "{entry}",' for kernel, entry in drawn.items()))
        return
    report = as_report(sweep(kernels, workers, console.print, shown or DRAWN))
    report.print(console)
    if json is not None:
        write_json(json, report.as_json("wrong_backward"))
    sys.exit(1 if report.missed else 0)


if __name__ == "__main__":
    typer.run(main)
