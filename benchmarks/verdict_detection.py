"""Which faults the verdict finds, class by class, and which right results it accuses, over the wide corpus.

Every operator in five regimes of data and three dtypes. Right results: sums in several orders, split-K, online softmax,
Welford, Winograd, other formulas, elementary functions to 2 units in the last place. A wrong result counts where
some element is off by more than 2 units in the last place of its exact value (truncation, -0 and lower precision, which
stay below, are classes of their own). The second figure leaves out what right results scatter by as well: a fault is
beyond their scatter when some element is off by 2 units more than four times what any right variant is off in its row.

Rules are made on the development seeds; HELD_OUT is for the published figures only.
`python benchmarks/verdict_detection.py [--seed N] [--operators REGEX] [--share S] [--device cpu|cuda|dipu]` needs torch alone.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from op_tools.verdict import Verdict
from op_tools.verdict.rounding import format_of, unit_in_last_place
from verdict_arithmetic import How
from verdict_corpus import ALL_REGIMES, SUBJECTS
from verdict_faults import approximations, faulty, negative_zero, rounded, units_off
from verdict_quality import DTYPES, Case, wilson

Tensor = torch.Tensor
DEVELOPMENT = (1, 2, 3)
HELD_OUT = 977
# Of all faults of all cases, this part is drawn: what fits into a few minutes.
SHARE = 0.15
RIGHT = {
    "blocks of 64": How(64),
    "from the back, other formula": How(48, backwards=True),
    "one chain of short blocks": How(7),
    "split-K": How(64, lanes=8),
    "online": How(32, online=True),
    "online from the back": How(32, backwards=True, online=True),
}
# What cards do: a label is right, a failure is an alarm.
PRACTICE = {"half sums, lane by lane": How(lanes=32, fault="half sums")}
# The arithmetic of a label: a label counts as found, a failure too.
LOWER = ("half sums", "TF32 inputs", "bfloat16 values")
# They hand on bits; relu and clamp may give either zero.
COPIES = ("index_select", "cat", "masked_fill")
# Counted whatever their size.
SMALL = (*LOWER, "truncation", "-0 for 0")


@dataclass
class Tally:
    """Verdicts of one class."""

    statuses: Counter[str] = field(default_factory=Counter)
    details: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(self.statuses.values())

    def add(self, verdict: Verdict, detail: str, expected: tuple[str, ...]) -> None:
        self.statuses[verdict.status] += 1
        if verdict.status not in expected:
            self.details.append(f"{detail}: {verdict.status} {verdict.reason}")

    def share(self, *statuses: str) -> float:
        return 100 * sum(self.statuses[status] for status in statuses) / max(1, self.count)


Tallies = dict[str, Tally]
GOOD = ("same", "pass")
LABELS = ("lower_precision",)


def right_results(case: Case, draw: torch.Generator) -> Iterator[tuple[str, list[Tensor]]]:
    for name, how in RIGHT.items():
        yield name, case.by(how)
    truth, own = case.reference.truth(), case.reference.own()
    assert truth is not None
    yield "exact, rounded once", [rounded(t, o.dtype) for t, o in zip(truth, own, strict=True)]
    if case.category == "elementwise":
        kinds = [dict(approximations(t, o.dtype, draw)) for t, o in zip(truth, own, strict=True)]
        for name in kinds[0]:
            yield name, [found[name] for found in kinds]


def practice_results(case: Case) -> Iterator[tuple[str, list[Tensor]]]:
    if case.dtype != torch.float32 and "half sums" in case.subject.faults:
        for name, how in PRACTICE.items():
            yield name, case.by(replace(how, dtype=case.dtype))


def wrong_results(
    case: Case, good: list[Tensor], other: list[Tensor], draw: torch.Generator, share: float
) -> Iterator[tuple[str, list[Tensor | None]]]:
    """(class, results); None for results that the fault does not touch."""

    def taken() -> bool:
        return bool(torch.rand((), generator=draw) < share)

    precise = case.dtype == torch.float32
    for fault in case.subject.faults:
        if (fault in ("half sums", "two roundings") and precise) or (fault == "TF32 inputs" and not precise):
            continue
        if taken():
            block = 1 if fault == "half sums" else 64
            yield fault, [*case.by(How(block, fault=fault, dtype=case.dtype))]
    truth = case.reference.truth()
    assert truth is not None
    if case.category in ("movement", "view", "index"):
        if case.subject.name in COPIES:
            yield "-0 for 0", [negative_zero(value) for value in good]
    elif precise and taken():
        yield "bfloat16 values", [value.bfloat16().float() for value in good]
    kinds = [dict(faulty(g, o, t, draw)) for g, o, t in zip(good, other, truth, strict=True)]
    for name in dict.fromkeys(name for found in kinds for name in found):
        if taken():
            yield name.partition(" 1")[0], [found.get(name) for found in kinds]


class Scatter:
    """How far right variants of one case lie from the exact result, at most, in each row."""

    def __init__(self, case: Case) -> None:
        truth = case.reference.truth()
        assert truth is not None
        self._truth = [value.double() for value in truth]
        self._most = [torch.zeros_like(value) for value in self._truth]

    def add(self, results: list[Tensor]) -> None:
        for most, value, exact in zip(self._most, results, self._truth, strict=True):
            error = (value.double() - exact).abs().nan_to_num(0, 0, 0)
            row = error.amax(-1, True).expand_as(error) if error.dim() > 1 else error.amax().expand_as(error)
            torch.maximum(most, row, out=most)

    def exceeded(self, index: int, wrong: Tensor) -> tuple[bool, bool]:
        """Whether some element is off by more than 2 units; and beyond what right variants scatter by."""
        exact, most = self._truth[index], self._most[index]
        off = units_off(wrong, exact)
        form = format_of(wrong.dtype)
        assert form is not None
        scattered = most.reshape(-1) / unit_in_last_place(exact.reshape(-1), form)
        beyond = off > 2 + 4 * scattered
        return bool((off > 2).any()), bool(beyond.any())


def on_cpu(seed: int, chosen: list[tuple[int, Any]], share: float) -> dict[str, Tallies]:
    found: dict[str, Tallies] = {
        kind: defaultdict(Tally) for kind in ("right", "practice", "wrong", "beyond")
    }
    for case, other in cases(seed, chosen):
        draw = torch.Generator().manual_seed(seed * 7919 + len(case.name))
        scatter = Scatter(case)
        for name, results in right_results(case, draw):
            if name != "exact, rounded once":
                scatter.add(results)
            for index in range(len(results)):
                verdict = case.judged(results, index)
                found["right"][name].add(verdict, f"{case.name} [{index}] {name}", GOOD)
        for name, results in practice_results(case):
            for index in range(len(results)):
                verdict = case.judged(results, index)
                found["practice"][name].add(verdict, f"{case.name} [{index}] {name}", (*GOOD, *LABELS))
        good = case.by(RIGHT["blocks of 64"])
        stale = other.by(RIGHT["blocks of 64"])
        for name, changed in wrong_results(case, good, stale, draw, share):
            for index, wrong in enumerate(changed):
                if wrong is None or (torch.equal(wrong, good[index]) and name != "-0 for 0"):
                    continue
                large, beyond = scatter.exceeded(index, wrong)
                if not large and name not in SMALL:
                    continue
                if name == "truncation" and (wrong.numel() < 64 or large):
                    continue
                values = [wrong if at == index else value for at, value in enumerate(good)]
                verdict = case.judged(values, index)
                expected = ("fail", *LABELS) if name in LOWER else ("fail",)
                detail = f"{case.name} [{index}] {name}"
                found["wrong"][name].add(verdict, detail, expected)
                if beyond or name in SMALL:
                    found["beyond"][name].add(verdict, detail, expected)
    return found


def on_device(device: str, seed: int, chosen: list[tuple[int, Any]]) -> dict[str, Tallies]:
    """The device's own results are the right ones."""
    found: dict[str, Tallies] = {"right": defaultdict(Tally)}
    for case, _ in cases(seed, chosen):
        try:
            results = case.on(device)
        except (RuntimeError, NotImplementedError) as error:  # the device's overload asks for other dtypes
            print(f"not run: {case.name}: {str(error).splitlines()[0][:100]}", file=sys.stderr)
            continue
        own = case.reference.own()
        for index, (value, mine) in enumerate(zip(results, own, strict=True)):
            if value.dtype == mine.dtype:
                detail = f"{case.name} [{index}]"
                found["right"][str(case.dtype)].add(case.judged(results, index), detail, GOOD)
    return found


def cases(seed: int, chosen: list[tuple[int, Any]]) -> Iterator[tuple[Case, Case]]:
    """Each case, and one of other data for what a stale buffer holds."""
    for position, subject in chosen:
        for regime in ALL_REGIMES:
            for dtype in DTYPES:
                drawn = seed * 100_003 + 10 * position
                yield Case(subject, regime, dtype, drawn), Case(subject, regime, dtype, drawn + 5)


def run(
    device: str, seed: int, operators: str = "", share: float = SHARE, part: tuple[int, int] = (0, 1)
) -> dict[str, Any]:
    """`part`: of the operators every so many-th, from that one on, for processes that share the work."""
    pattern = re.compile(operators)
    chosen = [(at, subject) for at, subject in enumerate(SUBJECTS) if pattern.search(subject.name)]
    chosen = chosen[part[0] :: part[1]]
    if not chosen:
        raise SystemExit(
            f"no operator of the corpus matches {operators!r}; try one of {SUBJECTS[0].name}, mm, softmax"
        )
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if device == "dipu":
        torch.get_device_module("dipu").configure(numerics="reordered")
    started = time.perf_counter()
    found = on_cpu(seed, chosen, share) if device == "cpu" else on_device(device, seed, chosen)
    seconds = round(time.perf_counter() - started, 1)
    return {"device": device, "seed": seed, "operators": len(chosen), "seconds": seconds, "found": found}


def lines(result: dict[str, Any]) -> Iterator[str]:
    yield (
        f"device {result['device']}, seed {result['seed']}, {result['operators']} operators, "
        f"{result['seconds']} s, torch {torch.__version__}"
    )
    found: dict[str, Tallies] = result["found"]
    yield f"{'right results':32} {'count':>7} {'accused %':>10} {'labelled %':>11}"
    for name, tally in [
        *found["right"].items(),
        ("all", together(found["right"])),
        *found.get("practice", {}).items(),
    ]:
        yield f"{name:32} {tally.count:7} {tally.share('fail'):10.2f} {tally.share(*LABELS):11.2f}"
    total = together(found["right"])
    yield f"accused, upper end of the 95 % interval: {100 * wilson(total.statuses['fail'], total.count):.2f} %"
    for kind, title in (
        ("wrong", "wrong by more than 2 ulp"),
        ("beyond", "... and beyond right results' scatter"),
    ):
        if kind not in found:
            continue
        yield f"{title:38} {'count':>7} {'failed %':>9} {'labelled %':>11} {'missed %':>9}"
        faults = {name: tally for name, tally in sorted(found[kind].items()) if name not in SMALL}
        small = {name: tally for name, tally in sorted(found[kind].items()) if name in SMALL}
        rows = [*faults.items(), ("all", together(faults))]
        for name, tally in rows + (list(small.items()) if kind == "wrong" else []):
            shares = tally.share("fail"), tally.share(*LABELS), tally.share(*GOOD)
            yield f"{name:38} {tally.count:7} {shares[0]:9.1f} {shares[1]:11.1f} {shares[2]:9.1f}"


def together(tallies: Tallies) -> Tally:
    total = Tally()
    for tally in tallies.values():
        total.statuses.update(tally.statuses)
    return total


def as_json(result: dict[str, Any]) -> dict[str, Any]:
    found = {
        kind: {name: {"statuses": dict(t.statuses), "unexpected": t.details} for name, t in tallies.items()}
        for kind, tallies in result["found"].items()
    }
    return {**result, "torch": torch.__version__, "found": found}


def _part(text: str) -> tuple[int, int]:
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected I/N with I below N, such as 0/15")
    return int(index), int(count)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu, or the device whose results are the right ones")
    parser.add_argument("--seed", type=int, default=DEVELOPMENT[0], help=f"development: {DEVELOPMENT}")
    parser.add_argument("--operators", default="", help="a regular expression that their names match")
    parser.add_argument(
        "--share", type=float, default=SHARE, help="part of all faults to try (default %(default)s)"
    )
    parser.add_argument(
        "--part", type=_part, default=(0, 1), metavar="I/N", help="one of N parts of the operators, from 0"
    )
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--verbose", action="store_true", help="print every unexpected verdict")
    options = parser.parse_args()
    result = run(options.device, options.seed, options.operators, options.share, options.part)
    print("\n".join(lines(result)))
    if options.verbose:
        for kind, tallies in result["found"].items():
            for tally in tallies.values():
                print(*(f"{kind}: {line}" for line in tally.details), sep="\n")
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(result), indent=1) + "\n")


if __name__ == "__main__":
    main()
