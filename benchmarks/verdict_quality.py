"""How often the verdict cries wolf, and how many wrong results it finds, beside the standards that others use.

The corpus is drawn anew at every run (the seed is printed; `--seed` repeats one). On the CPU correct variants are other
orders and formulas; on an accelerator its own results are the correct ones. A fault counts when it changes some
element by more than one unit in the last place: what is left of a missing eps after rounding to bfloat16 is no
wrong output. `python benchmarks/verdict_quality.py --device cpu|cuda|dipu [--json OUT]` needs torch alone.
"""

from __future__ import annotations

import argparse
import json
import math
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from op_tools.categories import Category, category_of
from op_tools.reference.recompute import Recomputation
from op_tools.trees import flat_results, map_leaves
from op_tools.verdict import Verdict, judge
from op_tools.verdict.rounding import format_of, unit_in_last_place
from op_tools.verdict.tolerance import tolerance_for
from verdict_arithmetic import LOWER_PRECISION, How, truncated
from verdict_corpus import REGIMES, SUBJECTS, Draw, Subject
from verdict_standards import STANDARDS

if TYPE_CHECKING:
    from report import Options, Report

Tensor = torch.Tensor
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Of all faults of all cases, this part is drawn: what fits into a few minutes.
SHARE_OF_FAULTS = 0.2
OURS = "conditioned noise (this)"
# Correct ways to compute; the second comes from the back and, where there is one, by another formula.
VARIANTS = (How(64), How(48, backwards=True), How(7))


@dataclass
class Tally:
    """Counts of one kind of comparison, by standard."""

    compared: int = 0
    flagged: Counter[str] = field(default_factory=Counter)
    raw: int = 0
    labelled: int = 0
    identical: int = 0
    details: list[str] = field(default_factory=list)

    def rate(self, standard: str) -> float:
        return self.flagged[standard] / max(1, self.compared)


def wilson(hits: int, count: int, z: float = 1.96) -> float:
    """The upper end of the 95 % interval of a rate."""
    if not count:
        return 1.0
    p = hits / count
    centre = p + z * z / (2 * count)
    half_width = z * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    return (centre + half_width) / (1 + z * z / count)


class KeptRecomputation(Recomputation):
    """Many results are judged by one reference: what it was asked once it need not compute again."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kept: dict[tuple[str, int], Any] = {}

    def perturbed(self, seed: int) -> list[Any] | None:
        return self._once("perturbed", seed)

    def variant(self, seed: int) -> tuple[list[Any], list[Any]] | None:
        return self._once("variant", seed)

    def _once(self, question: str, seed: int) -> Any:
        if (question, seed) not in self._kept:
            self._kept[question, seed] = getattr(super(), question)(seed)
        return self._kept[question, seed]


class Case:
    """One operator on one set of inputs."""

    def __init__(self, subject: Subject, regime: str, dtype: torch.dtype, seed: int) -> None:
        self.subject, self.regime, self.dtype = subject, regime, dtype
        self.args = subject.make(Draw(seed, regime, dtype))
        self.name = f"{subject.name} {str(dtype).removeprefix('torch.')} {regime}"
        self.category = _category(subject)
        self.grads: list[Tensor] | None = None
        if subject.wants_grad is not None:
            like = flat_results(subject.func(*self.args, **subject.kwargs))
            draw = Draw(seed + 1, "small" if regime == "small" else "normal", dtype)
            self.grads = [
                draw.data(*value.shape) if value.dim() else torch.ones_like(value) for value in like
            ]
        self.reference = KeptRecomputation(
            subject.func, self.args, subject.kwargs, grad_outputs=self.grads, wants_grad=subject.wants_grad
        )

    def by(self, how: How) -> list[Tensor]:
        """The results of the formula, in float32 and rounded once at the end."""
        upcast = map_leaves(list(self.args), lambda x: x.float() if _is_floating(x) else x)
        if self.subject.wants_grad is None:
            values = flat_results(self.subject.formula(how, *upcast))
            return [value.to(own.dtype) for value, own in zip(values, self.reference.own(), strict=True)]
        leaves = [upcast[i].detach().requires_grad_() for i in self._wanted()]
        for index, leaf in zip(self._wanted(), leaves, strict=True):
            upcast[index] = leaf
        assert self.grads is not None
        output = self.subject.formula(how, *upcast)
        found = torch.autograd.grad(output, leaves, self.grads[0].float(), allow_unused=True)
        return [
            (torch.zeros_like(leaf) if grad is None else grad).to(self.dtype)
            for grad, leaf in zip(found, leaves, strict=True)
        ]

    def _wanted(self) -> list[int]:
        tensors = [index for index, value in enumerate(self.args) if torch.is_tensor(value)]
        return [tensors[i] for i in self.subject.wants_grad or ()]

    def on(self, device: str) -> list[Tensor]:
        """The results of the device itself."""
        args = map_leaves(list(self.args), lambda x: x.to(device) if torch.is_tensor(x) else x)
        if self.grads is None:
            return [value.cpu() for value in flat_results(self.subject.func(*args, **self.subject.kwargs))]
        leaves = [args[i].requires_grad_() for i in self._wanted()]
        output = self.subject.func(*args, **self.subject.kwargs)
        return [g.cpu() for g in torch.autograd.grad(output, leaves, self.grads[0].to(device))]

    def judged(self, results: list[Tensor], index: int) -> Verdict:
        tolerance = tolerance_for(self.subject.name, self.dtype, {})
        return judge(results[index], self.reference, index, category=self.category, tolerance=tolerance)


def _is_floating(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _category(subject: Subject) -> Category:
    return category_of(subject.func, f"torch.{getattr(subject.func, '__name__', '')}")


def add(
    tally: Tally,
    case: Case,
    results: list[Tensor],
    what: str,
    *,
    label_counts: bool,
    good: list[Tensor] | None = None,
) -> None:
    """Judge every result by every standard; `good` is what faulty results would be without their fault."""
    own, truth = case.reference.own(), case.reference.truth()
    assert truth is not None
    for index, result in enumerate(results):
        if good is not None and not has_effect(result, good[index], truth[index], what):
            continue
        want_flag = good is not None
        verdict = case.judged(results, index)
        tally.compared += 1
        tally.identical += verdict.status == "same"
        tally.raw += verdict.raw_alarm and verdict.status != "lower_precision"
        tally.labelled += verdict.status == "lower_precision"
        flagged = verdict.status == "fail" or (label_counts and verdict.status == "lower_precision")
        tally.flagged[OURS] += flagged
        if flagged != want_flag or verdict.status == "lower_precision":
            tally.details.append(f"{case.name} [{index}] {what}: {verdict.status} {verdict.reason}")
        for name, standard in STANDARDS.items():
            tally.flagged[name] += not standard(result, own[index], truth[index], case.category)


def has_effect(result: Tensor, good: Tensor, exact: Tensor, what: str) -> bool:
    """Whether the fault moves some element by more than one unit in the last place (truncation: many by one)."""
    form = format_of(result.dtype)
    assert form is not None
    exact, got = exact.reshape(-1), result.reshape(-1).double()
    if what == "truncation":
        return bool((got != exact.to(result.dtype).double()).double().mean() > 0.1) and exact.numel() >= 64
    moved = (got - good.reshape(-1).double()).abs()
    return not bool((moved <= unit_in_last_place(exact, form)).all())


def wrong_results(
    case: Case, good: list[Tensor], other: list[Tensor], draw: torch.Generator
) -> Iterator[tuple[str, list[Tensor]]]:
    """Faults of kernels: those of the formula, then those of any kernel."""
    for fault in case.subject.faults:
        precise = case.dtype == torch.float32
        if (fault == "half sums" and precise) or (fault == "TF32 inputs" and not precise):
            continue
        yield fault, case.by(How(1 if fault == "half sums" else 64, fault=fault, dtype=case.dtype))
    truth = case.reference.truth()
    assert truth is not None
    if case.category not in ("movement", "view"):
        yield "truncation", [truncated(exact, case.dtype) for exact in truth]
        if case.dtype == torch.float32:
            yield "bfloat16 inside", [value.bfloat16().float() for value in good]
    yield "zeros", [torch.zeros_like(value) for value in good]
    yield "stale buffer", [value.clone() for value in other]
    yield "one element of another place", [_one_element(value, draw) for value in good]
    yield "one element off by 1 %", [_one_scaled(value, draw) for value in good]
    if all(value.numel() >= 64 for value in good):
        yield "unwritten tail", [_tail(value) for value in good]
        yield "swapped rows", [_swapped(value, draw) for value in good]
        yield "shifted by one", [value.reshape(-1).roll(1).view(value.shape) for value in good]


def _one_element(value: Tensor, draw: torch.Generator) -> Tensor:
    wrong = value.clone().reshape(-1)
    if wrong.numel() == 1:
        return (wrong * 0.5).view(value.shape)
    a, b = torch.randperm(wrong.numel(), generator=draw)[:2]
    wrong[a] = wrong[b].item()
    return wrong.view(value.shape)


def _one_scaled(value: Tensor, draw: torch.Generator) -> Tensor:
    wrong = value.clone().reshape(-1)
    index = int(torch.randint(wrong.numel(), (), generator=draw))
    wrong[index] *= 1.01
    return wrong.view(value.shape)


def _tail(value: Tensor) -> Tensor:
    wrong = value.clone().reshape(-1)
    wrong[-(wrong.numel() % 64 or 16) :] = 0
    return wrong.view(value.shape)


def _swapped(value: Tensor, draw: torch.Generator) -> Tensor:
    rows = value.clone().reshape(value.shape[0], -1)
    if len(rows) < 2:
        return value.roll(1)
    a, b = torch.randperm(len(rows), generator=draw)[:2].tolist()
    rows[[a, b]] = rows[[b, a]]
    return rows.view(value.shape)


def cases(seed: int, repeats: int) -> Iterator[Case]:
    for repeat in range(repeats):
        for index, subject in enumerate(SUBJECTS):
            for regime in REGIMES:
                for dtype in DTYPES:
                    yield Case(subject, regime, dtype, seed + 1000 * repeat + 10 * index)


def on_cpu(seed: int, repeats: int) -> dict[str, Tally]:
    right, wrong = Tally(), Tally()
    draw = torch.Generator().manual_seed(seed)
    for case in cases(seed, repeats):
        good = case.by(VARIANTS[0])
        for how in VARIANTS:
            add(right, case, case.by(how), f"blocks of {how.block}", label_counts=True)
        other = Case(case.subject, case.regime, case.dtype, seed + 7).by(VARIANTS[0])
        for what, results in wrong_results(case, good, other, draw):
            if bool(torch.rand((), generator=draw) >= SHARE_OF_FAULTS):
                continue
            lower = what in (*LOWER_PRECISION, "bfloat16 inside")
            add(wrong, case, results, what, label_counts=lower, good=good)
    return {"correct": right, "wrong": wrong}


def on_device(device: str, seed: int, repeats: int) -> dict[str, Tally]:
    found = {"correct": Tally(), "lower": Tally()}
    for case in cases(seed, repeats):
        add(found["correct"], case, case.on(device), device, label_counts=case.dtype == torch.float32)
    if device == "cuda":
        settings = torch.backends.cuda.matmul
        settings.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        settings.allow_fp16_accumulation = True
        for case in cases(seed, 1):
            if case.category == "matmul" and case.dtype != torch.bfloat16:
                add(found["lower"], case, case.on(device), "TF32 and half sums allowed", label_counts=False)
    return found


def run(device: str, seed: int, repeats: int) -> dict[str, Any]:
    torch.set_num_threads(max(1, torch.get_num_threads() // 2))
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if device == "dipu":
        torch.get_device_module("dipu").configure(numerics="reordered")
    started = time.perf_counter()
    found = on_cpu(seed, repeats) if device == "cpu" else on_device(device, seed, repeats)
    return {
        "device": device,
        "seed": seed,
        "seconds": round(time.perf_counter() - started, 1),
        "tallies": found,
    }


def lines(result: dict[str, Any]) -> Iterator[str]:
    found: dict[str, Tally] = result["tallies"]
    right, wrong, lower = found["correct"], found.get("wrong"), found.get("lower")
    yield f"device {result['device']}, seed {result['seed']}, {result['seconds']} s, torch {torch.__version__}"
    yield f"{right.compared} correct results of {len(SUBJECTS)} operators ({right.identical} bit-equal to the reference)"
    if wrong is not None:
        yield f"{wrong.compared} wrong results"
    yield f"{'standard':32} {'false alarms %':>15} {'upper 95 %':>11} {'found %':>8}"
    for name in (*STANDARDS, OURS):
        share = f"{100 * wrong.rate(name):8.1f}" if wrong is not None else ""
        upper = 100 * wilson(right.flagged[name], right.compared)
        yield f"{name:32} {100 * right.rate(name):15.2f} {upper:11.3f} {share}"
    yield f"raw alarms before confirmation, labels apart: {right.raw} ({100 * right.raw / max(1, right.compared):.2f} %)"
    yield f"labelled as lower precision: {right.labelled} correct" + (
        f", {wrong.labelled} wrong" if wrong else ""
    )
    if lower is not None and lower.compared:
        yield f"with TF32 and half sums allowed: {lower.labelled} of {lower.compared} labelled, {lower.flagged[OURS]} failed"


def as_json(result: dict[str, Any]) -> dict[str, Any]:
    tallies = {
        kind: {
            "compared": tally.compared,
            "identical": tally.identical,
            "raw_alarms": tally.raw,
            "labelled": tally.labelled,
            "flagged": dict(tally.flagged),
            "details": tally.details,
        }
        for kind, tally in result["tallies"].items()
    }
    return {**result, "torch": torch.__version__, "tallies": tallies}


def measure(options: Options) -> Report:
    """The same for `benchmarks/run.py`."""
    from report import Case as Row
    from report import Report

    result = run(options.device, secrets.randbelow(2**31), 1)
    for line in lines(result):
        options.say(line)
    right, wrong = result["tallies"]["correct"], result["tallies"].get("wrong")
    rows = [Row("false alarms %", 100 * right.rate(OURS), [f"{right.compared}"], 0.5)]
    if wrong is not None:
        rows.append(Row("wrong results missed %", 100 - 100 * wrong.rate(OURS), [f"{wrong.compared}"], 5.0))
    return Report("Verdict quality", ["compared"], rows, as_json(result))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="cpu", help="cpu, or the accelerator whose results are the correct ones"
    )
    parser.add_argument("--seed", type=int, help="repeat a run")
    parser.add_argument("--repeats", type=int, help="how many sets of inputs (1 on the CPU, 3 on a device)")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--verbose", action="store_true", help="print every miss, alarm and label")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else secrets.randbelow(2**31)
    result = run(options.device, seed, options.repeats or (1 if options.device == "cpu" else 3))
    print("\n".join(lines(result)))
    if options.verbose:
        for kind, tally in result["tallies"].items():
            print(*(f"{kind}: {line}" for line in tally.details), sep="\n")
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(result), indent=1) + "\n")


if __name__ == "__main__":
    main()
