"""Calls every operator of dlinfer with one wrong argument at a time, in every call form and with every vendor given.

    python tests/dlinfer/dlinfer_arguments.py                            # one case of each operator, ref and cpp
    python tests/dlinfer/dlinfer_arguments.py --cases 99 --only fill_kv_cache
    python tests/dlinfer/dlinfer_arguments.py --accepted                 # also list what is let through

A call must be refused by an error that names the argument, with nothing written. Some changes leave it right, a longer cache
for instance: then it must give what the reference gives for the same values in memory of their own. All vendors must agree.
Calls are made in child processes, so that a crash is seen too.
Ends with 1 if something was found.
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import torch
from dlinfer_call_forms import ALIASES, Form, forms
from hostile_arguments import hostile, overlapping
from torch import Tensor

from dlinfer.conformance.calls import ReferenceRun
from dlinfer.conformance.judging import positions_problem
from dlinfer.conformance.samples import SAMPLES, make
from dlinfer.conformance.sampling import Case
from dlinfer.errors import DlinferArgumentError
from dlinfer.interface import OPERATORS
from dlinfer.ops.calling import TYPE_ERROR
from dlinfer.vendors import using

VENDORS = ("ref", "cpp")
# Vendors sum in another order.
TOLERANCE = 2e-3
_NEVER = frozenset(
    ("text", "list", "several", "sparse", "complex", "complex64", "fraction", "nan", "inf", "-inf")
)
_NEVER |= {"too large", "2**63", "-2**63 - 1"}
# Operators that look at no element.
_ANY_TENSOR = {("transdata", "complex64"), ("get_cache_len", "complex64")}
_NOWHERE = ("1000000", "-2", "2147483647", "-2147483648", "9223372036854775807", "-9223372036854775808")


@dataclass(frozen=True)
class Trial:
    """A call with one argument that is changed."""

    form: Form
    argument: str
    change: str

    def __str__(self) -> str:
        return f"{self.form.operator} ({self.form.name}): {self.argument}: {self.change}"


@dataclass
class Outcome:
    """What a call did: refused it, let it through, or something else."""

    kind: str
    text: str = ""
    results: tuple[Any, ...] = ()


def trials(operator: str, number: int) -> Iterator[Trial]:
    """All trials of one conformance case."""
    for form in forms(operator, make(operator, number).arguments):
        for name, value in form.arguments.items():
            if name not in form.unused:
                for change, other in hostile(value):
                    yield Trial(replace(form, arguments={**form.arguments, name: other}), name, change)
        for name, change, both in overlapping(form.arguments, form.writes):
            yield Trial(replace(form, arguments={**form.arguments, **both}), name, change)


# ---- one trial ----


def problem(trial: Trial, vendors: tuple[str, ...] = VENDORS) -> tuple[str, bool]:
    """(what is wrong with the answers to a trial, or nothing; whether the call was let through)."""
    outcomes = [outcome(trial, vendor) for vendor in vendors]
    for vendor, found in zip(vendors, outcomes, strict=True):
        if found.kind == "bad":
            return f"{vendor}: {found.text}", False
    kinds = {found.kind for found in outcomes}
    if len(kinds) > 1:
        answers = (f"{v}: {o.kind} {o.text}" for v, o in zip(vendors, outcomes, strict=True))
        return f"vendors disagree: {'; '.join(answers)}", False
    if kinds != {"accepted"}:
        return "", False
    if never_right(trial):
        return "let through", True
    plain = outcome(_apart(trial), "ref")
    if plain.kind != "accepted":
        return f"let through, but not in memory of its own: {plain.text}", True
    for vendor, found in zip(vendors, outcomes, strict=True):
        different = _different(trial.form, found.results, plain.results)
        if different:
            return f"{vendor}: let through, but {different}", True
    return "", True


def never_right(trial: Trial) -> bool:
    """Whether no call can be right with this change, whatever the reference gives for it."""
    form, argument, change = trial.form, trial.argument, trial.change
    if change in _NEVER:
        return (form.operator, change) not in _ANY_TENSOR and (argument, change) != ("alibi_slopes", "list")
    if change == "on meta":
        return sum(isinstance(value, Tensor) for value in form.arguments.values()) > 1
    if argument in form.writes and change.startswith(("stride 0", "overlapping itself")):
        return True
    if form.name != "torch.ops":
        return False
    declared = OPERATORS[form.operator]
    if change.startswith("in the memory of"):
        return change != "in the memory of query, at its start"
    if change.endswith("at the start") and argument in declared.indices:
        # The table of a sequence without keys is not looked at.
        used = argument != "block_table" or bool(form.arguments["kv_lengths"][0])
        return used and any(number in change for number in _NOWHERE)
    kinds = {one.name: str(one.type) for one in declared.parsed.arguments}
    return change in ("None", "number") and kinds[argument] == "Tensor"


def outcome(trial: Trial, vendor: str) -> Outcome:
    """Makes the call with a copy of the arguments, which share memory as these do."""
    form = trial.form
    arguments = copy.deepcopy(form.arguments)
    try:
        with using(vendor):
            result = form.call(**arguments)
    except DlinferArgumentError as error:
        return _refused(trial, arguments, f"{error.argument}: {error.problem}")
    except Exception as error:
        found = TYPE_ERROR.search(str(error)) if form.name == "torch.ops" else None
        if found is not None:  # torch's own error names the argument
            return _refused(trial, arguments, f"{found.group(2)}: {found.group(0)}")
        line = str(error).strip().partition("\n")[0][:150]
        return Outcome("bad", f"{type(error).__name__}: {line}")
    returned = list(result) if isinstance(result, (tuple, list)) else [] if result is None else [result]
    return Outcome("accepted", results=(*returned, *(arguments[name] for name in form.writes)))


def _refused(trial: Trial, arguments: dict[str, Any], text: str) -> Outcome:
    names = (trial.argument, *ALIASES.get(trial.argument, ()))
    if not any(re.search(rf"\b{name}\b", text) for name in names):
        return Outcome("bad", f"the error does not name it: {text}")
    for name, before in trial.form.arguments.items():
        if isinstance(before, Tensor) and not _same(before, arguments[name]):
            return Outcome("bad", f"refused after {name} was written: {text}")
    return Outcome("refused", text)


def _apart(trial: Trial) -> Trial:
    """The same values, each tensor in memory of its own."""
    given = {
        name: value.clone(memory_format=torch.contiguous_format) if isinstance(value, Tensor) else value
        for name, value in trial.form.arguments.items()
    }
    return replace(trial, form=replace(trial.form, arguments=given))


def _same(one: Tensor, other: Tensor) -> bool:
    """Bit for bit."""
    if one.layout != torch.strided or one.is_meta:
        return True
    return torch.equal(
        one.contiguous().flatten().view(torch.uint8), other.contiguous().flatten().view(torch.uint8)
    )


def _different(form: Form, found: tuple[Any, ...], wanted: tuple[Any, ...]) -> str:
    operator = OPERATORS[form.operator]
    for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if not isinstance(one, Tensor):
            if one != other:
                return f"result {index} is {one}, expected {other}"
            continue
        if (one.shape, one.dtype, one.device) != (other.shape, other.dtype, other.device):
            return (
                f"result {index} is {one.dtype} {list(one.shape)}, expected {other.dtype} {list(other.shape)}"
            )
        if one.is_meta or not one.numel():
            continue
        if operator.tolerance == "positions" and not one.is_floating_point():
            # Others are as good where values tie.
            if (
                form.name == "torch.ops"
                and one.dim() > 1
                and (text := positions_problem(_reference(form), one))
            ):
                return text
            continue
        right = other.double()
        size = float(right.nan_to_num(0, 0, 0).abs().max())
        room = 1.0 if operator.tolerance == "quantised" else TOLERANCE * max(1.0, size)
        if not torch.allclose(one.double(), right, rtol=TOLERANCE, atol=room, equal_nan=True):
            return (
                f"result {index} differs from the reference's by {float((one.double() - right).abs().max())}"
            )
    return ""


def _reference(form: Form) -> ReferenceRun:
    case = Case("", form.operator, "float32", "", form.arguments)
    return ReferenceRun(OPERATORS[form.operator], case)


# ---- all of them, in child processes ----


def _child(pipe: Connection, operator: str, number: int, start: int, vendors: tuple[str, ...]) -> None:
    torch.set_num_threads(1)
    for index, trial in enumerate(trials(operator, number)):
        if index >= start:
            pipe.send((index, str(trial), None, False))
            pipe.send((index, str(trial), *problem(trial, vendors)))
    pipe.send(None)


def answers(
    operator: str, number: int, vendors: tuple[str, ...] = VENDORS
) -> Iterator[tuple[str, str, bool]]:
    """(trial, problem, let through) of all trials of a case; a child that died is followed by another."""
    start, alive = 0, True
    while alive:
        pipe, end = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(
            target=_child, args=(end, operator, number, start, vendors)
        )
        child.start()
        end.close()
        doing = ""
        try:
            while (message := pipe.recv()) is not None:
                index, doing, text, accepted = message
                start = index + 1
                if text is not None:
                    yield doing, text, accepted
            alive = False
        except EOFError:
            child.join()
            yield doing, f"the process died with code {child.exitcode}", False
        child.join()


def main() -> int:
    """The program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", help="operators, separated by commas")
    parser.add_argument("--cases", type=int, default=1, help="labels of each operator to try")
    parser.add_argument("--vendors", default=",".join(VENDORS))
    parser.add_argument("--accepted", action="store_true", help="list what is let through")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else list(SAMPLES)
    counts: Counter[str] = Counter()
    for operator in wanted:
        samples = SAMPLES[operator]
        for label in range(min(options.cases, len(samples.labels))):
            for trial, text, accepted in answers(
                operator, label * len(samples.dtypes), tuple(options.vendors.split(","))
            ):
                kind = "wrong" if text else "let through" if accepted else "refused"
                counts[kind] += 1
                if text or (accepted and options.accepted):
                    print(f"{kind}: {trial}{': ' * bool(text)}{text}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
