"""Builds the text of a reproduction file and tries it out: the captured values must fail it, the CPU's must not."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from op_tools.categories import base_name
from op_tools.reference.autocast_policy import LOWER, SINGLE
from op_tools.reference.call_plan import plan_for
from op_tools.reproduce import autocast_source, runtime
from op_tools.reproduce.drawn_source import drawn_source
from op_tools.reproduce.judged import JudgedCall, JudgedValue
from op_tools.reproduce.limits import ROOM, ErrorLimits, envelope, limits_of
from op_tools.reproduce.packing import Packer, rounded_up
from op_tools.reproduce.rendering import NotWritable, call_source, reference_source
from op_tools.reproduce.runtime import Case, Saved, ValueCheck
from op_tools.verdict import ties
from op_tools.verdict.rounding import format_of, real_parts
from op_tools.verdict.tolerance import tolerance_for

__all__ = ["REPEAT", "Builder", "Script", "build", "failures_on", "is_faithful", "load", "tried"]

# How often a file runs its call, if nothing else is said.
REPEAT = Case._field_defaults["repeat"]

_DASHES = "# " + "-" * 118
_EXACT = ("movement", "view", "index")
_UNITS_WITHOUT_TRUTH = 4.0
_CPU = torch.device("cpu")
# What says where random numbers are drawn, not which.
_NO_PARAMETERS = ("device", "generator", "layout", "out")
_IMPORTS = """from __future__ import annotations

import argparse
import base64
import contextlib
import importlib
import math
import os
import random
import sys
import types
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
"""


@dataclass(frozen=True)
class Script:
    """The code of a file, and the bytes that are in it or go beside it."""

    code: str
    packer: Packer
    beside: str  # the name of the file with the bytes; empty: they are in the text

    @cached_property
    def text(self) -> str:
        """The whole file. Packing takes a while, and many scripts are only tried out."""
        memory = f"beside({self.beside!r})" if self.beside else "unpacked(DATA)"
        data = f'# The tensors: bytes, compressed, in base 85.\nDATA = """\n{self.packer.text()}\n"""\n\n'
        last = f'if __name__ == "__main__":\n    sys.exit(main(CASE, {memory}))\n'
        return f"{self.code}\n{'' if self.beside else data}{last}"


class Builder:
    """Everything of one call that goes into the file."""

    def __init__(
        self,
        call: JudgedCall,
        strides: Sequence[tuple[int, ...] | None] = (),
        limits: dict[int, ErrorLimits | None] | None = None,
        repeat: int = REPEAT,
    ) -> None:
        self.call = call
        self.repeat = repeat
        self.limits = limits if limits is not None else {}  # found once, and used by the next builder too
        self.packer = Packer()
        self.inputs: list[Saved] = []
        tensors = call.captured.tensors
        self._indices = {id(tensor): -1 for tensor in tensors}
        fitting = strides if len(strides) == len(tensors) else [None] * len(tensors)
        self._strides = dict(zip(map(id, tensors), fitting, strict=True))
        self._on_host = call.captured.host_tensors
        self._wants_grad = {id(tensors[position]) for position in call.wants_grad}
        self._kept: list[torch.Tensor] = []

    def tensor(self, tensor: torch.Tensor) -> str:
        """The name of an input in the file: `x[0]`."""
        if self._indices.get(id(tensor), -1) < 0:
            self._kept.append(tensor)
            grads = id(tensor) in self._wants_grad if self._wants_grad else tensor.requires_grad
            saved = self.packer.add(
                tensor,
                self._strides.get(id(tensor)),
                requires_grad=grads and self.call.graph,
                on_host=id(tensor) in self._on_host,
            )
            self._indices[id(tensor)] = len(self.inputs)
            self.inputs.append(saved)
        return f"x[{self._indices[id(tensor)]}]"

    def positions(self, flat: Sequence[int]) -> tuple[int, ...]:
        """Numbers of inputs in the file, of flat tensor inputs of the call."""
        tensors = self.call.captured.tensors
        found = tuple(self._indices[id(tensors[position])] for position in flat)
        if -1 in found:
            raise NotWritable("the gradient of a sparse tensor, or one that was written to")
        return found

    def limits_for(self, value: JudgedValue) -> ErrorLimits | None:
        if value.slot not in self.limits:
            self.limits[value.slot] = limits_of(value.reference, value.index, value.category)
        return self.limits[value.slot]

    # --- what is checked --------------------------------------------------------------------------------

    def check(
        self, value: JudgedValue, *, elementwise: bool, leans: bool, factor: bool, stored: bool
    ) -> ValueCheck:
        """The rule for one value, as the verdict judges it."""
        own = value.own
        if not isinstance(own, torch.Tensor):
            return self._number(value)
        if self.call.random:
            return ValueCheck(value.name, value.slot, own.dtype, tuple(own.shape), same_dtype=True)
        start: dict[str, Any] = {
            "name": value.name, "slot": value.slot, "dtype": own.dtype, "shape": tuple(own.shape),
        }  # fmt: skip
        exact = value.category in _EXACT and not value.reference.is_gradient
        if exact or format_of(own.dtype) is None:
            return ValueCheck(**start, same_dtype=True, picks=self._picks(value, own))
        limits = self.limits_for(value)
        if limits is None:
            tolerance = tolerance_for(self.call.name, own.dtype)
            slack = _UNITS_WITHOUT_TRUTH * torch.finfo(own.dtype).eps
            return ValueCheck(**start, same_dtype=True, rtol=tolerance.rtol + slack, atol=tolerance.atol)
        start["leans"] = leans
        start["or_as_cpu"] = limits.or_as_cpu
        if stored:
            truth = value.reference.truth()
            assert truth is not None
            start["exact"] = self.packer.add(truth[value.index])
        if elementwise:
            allowed = rounded_up(limits.allowed.nan_to_num(0, 3e38))
            start["bounds"] = self.packer.add(allowed)
        else:
            start["rtol"], start["atol"] = envelope(limits)
            allowed = limits.exact.abs() * start["rtol"] + start["atol"]
        if factor:
            start["factor"] = self._factor(value, limits, allowed.double(), real_parts(own))
        return ValueCheck(**start, rms=self._rms(limits, allowed.double(), real_parts(own)))

    def _factor(
        self, value: JudgedValue, limits: ErrorLimits, allowed: torch.Tensor, own: torch.Tensor
    ) -> float:
        """One rounding, twice the CPU's own share, and six standard errors with rows and columns as single witnesses."""
        form = format_of(value.own.dtype)
        assert form is not None
        columns = value.own.shape[-1] if value.own.dim() > 1 else 1
        mine, _ = runtime.along(own - limits.exact, limits.exact, allowed)
        deviations = [0.0]
        for result in (own, real_parts(value.given) if value.given is not None else own):
            if result.shape == limits.exact.shape:
                rest = runtime.along(result - limits.exact, limits.exact, allowed)[1]
                table = rest.reshape(-1, columns) if rest.numel() % columns == 0 else rest.reshape(-1, 1)
                deviations += [float(part.norm()) for part in (rest, table.sum(0), table.sum(1))]
        return float(f"{form.roundoff + 2 * abs(mine) + 6 * max(deviations):.3g}")

    def _rms(self, limits: ErrorLimits, allowed: torch.Tensor, own: torch.Tensor) -> float:
        """The verdict's limit for errors of the size it expects, as a share of what is allowed; the CPU gets room."""
        finite = limits.exact.isfinite() & own.isfinite() & (allowed > 0)
        share = (limits.expected / allowed)[finite]
        mine = ((own - limits.exact) / allowed)[finite]
        if not share.numel():
            return math.inf
        limit = limits.rms * float(share.square().mean().sqrt())
        needed = float(mine[mine.abs() <= 1].square().sum() / mine.numel()) ** 0.5
        return float(f"{max(limit, ROOM * needed):.3g}")

    def _number(self, value: JudgedValue) -> ValueCheck:
        exact = isinstance(value.own, bool | int) or value.category in _EXACT
        tolerance = tolerance_for(self.call.name, type(value.own))
        rtol, atol = (0.0, 0.0) if exact else (tolerance.rtol, tolerance.atol)
        return ValueCheck(value.name, value.slot, type(value.own), (), rtol, atol, same_dtype=True)

    def _picks(self, value: JudgedValue, own: torch.Tensor) -> tuple[int, int, int] | None:
        """Where positions count in, for operators that pick values: those of equal values are as good."""
        call = value.reference
        if value.category != "index" or own.is_floating_point() or call.kwargs.get("stable"):
            return None
        name = base_name(plan_for(call.func, "cpu").name)
        args, kwargs = self.call.captured.args, self.call.captured.kwargs
        source = args[0] if args else kwargs.get("input", kwargs.get("self"))
        if not isinstance(source, torch.Tensor):
            return None
        found = ties.flattened(name, source, args, kwargs, own)
        if found is None:
            return None
        values, _, dim = found
        which = self._indices.get(id(source), -1)
        if values.shape == source.shape:
            return which, 0, dim
        if values.dim() == 1 and dim == 0:
            return which, 1, 0
        return which, values.dim() - 1 - source.dim(), -1


def build(
    builder: Builder,
    title: str,
    *,
    beside: str = "",
    elementwise: bool = False,
    leans: bool = False,
    factor: bool = False,
    stored: bool = False,
) -> Script:
    """The text of the file. Raises NotWritable."""
    judged = builder.call
    captured = judged.captured
    device = str(captured.header.get("device") or "cpu")
    call = call_source(judged.name, captured.args, captured.kwargs, builder.tensor, device)
    checked = [value for value in judged.values if _is_checked(value, judged)]
    rule = {"elementwise": elementwise, "leans": leans, "factor": factor, "stored": stored}
    checks = [builder.check(value, **rule) for value in checked]
    reference = ""
    if any(not check.same_dtype and check.exact is None for check in checks):
        reference = reference_source(judged.func, captured.args, captured.kwargs, builder.tensor)
    factory = plan_for(judged.func, "cpu").is_factory
    fields = {
        "name": repr(judged.name),
        "call": "call",
        "reference": "reference" if reference else "None",
        "device": repr(device),
        "inputs": _listed(map(_saved, builder.inputs)),
        "checks": _listed(map(_check, checks)),
        "written": repr(builder.positions(judged.written)),
        "graph": repr(judged.graph),
        "copies": repr(judged.copies),
        "around": "under_autocast" if judged.autocast is not None else "None",
        "repeat": repr(builder.repeat),
    }
    drawn = ""
    if judged.random:
        told = {key: value for key, value in captured.kwargs.items() if key not in _NO_PARAMETERS}
        arguments = call_source("gathered", captured.args, told, builder.tensor, device)
        drawn, fields["drawn"] = drawn_source(judged.name, arguments), "drawn"
    if any(value.reference.is_gradient for value in checked):
        incoming = [None if grad is None else builder.packer.add(grad) for grad in judged.grad_outputs]
        fields |= {
            "gradients": _listed(map(_saved, incoming), "()"),
            "wants_grad": repr(builder.positions(judged.wants_grad)),
        }
    parts = [
        f'"""{title}"""\n\n{_IMPORTS}',
        _function("call(x, device)", "The call as it was captured.", call, "device" if factory else ""),
        _function("reference(x)", "The same in float64 on the CPU.", reference, "'cpu'" if factory else ""),
        _autocast(judged),
        drawn,
        _source_of(runtime),
        "CASE = Case(\n" + "".join(f"    {name}={text},\n" for name, text in fields.items()) + ")\n",
    ]
    # Two empty lines between what follows each other, as programs are written.
    return Script("\n\n\n".join(part.strip() for part in parts if part) + "\n", builder.packer, beside)


def _is_checked(value: JudgedValue, call: JudgedCall) -> bool:
    """All results where one is wrong, all gradients where one is; everything where nothing was found wrong."""
    wrong = {item.reference.is_gradient for item in call.wrong} or {False, bool(call.wants_grad)}
    skipped = value.verdict is not None and value.verdict.status == "skipped"
    return value.reference.is_gradient in wrong and not skipped


def _function(head: str, meaning: str, source: str, where: str) -> str:
    """`where`: the device that a function without tensors makes them on."""
    if not source:
        return ""
    body = f"    return {source}\n"
    if where:
        body = f"    with torch.device({where}):\n        return {source}\n"
    return f'\ndef {head}:\n    """{meaning}"""\n{body}'


def _source_of(module: Any) -> str:
    return inspect.getsource(module).partition(_DASHES + "\n")[2]


def _autocast(call: JudgedCall) -> str:
    if call.autocast is None:
        return ""
    with _SeenFunctions() as seen:
        call.forward.evaluate(call.forward.args, call.forward.kwargs, None, upcast=False)
    lower = {name for name in seen.names if base_name(name) in LOWER}
    single = {name for name in seen.names if base_name(name) in SINGLE}
    sets = f"LOWER = {sorted(lower)!r}\nSINGLE = {sorted(single)!r}\n"
    return f"\nLOW = {call.autocast}\n{sets}{_source_of(autocast_source)}"


class _SeenFunctions(TorchFunctionMode):
    """Notes which functions a call consists of."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(str(getattr(func, "__name__", "")))
        return func(*args, **(kwargs or {}))


def _saved(saved: Saved | None) -> str:
    if saved is None:
        return "None"
    text = f"Saved({saved.dtype}, {saved.shape}, {saved.stride}, {saved.at}"
    text += ", requires_grad=True" if saved.requires_grad else ""
    return text + (", on_host=True)" if saved.on_host else ")")


def _check(check: ValueCheck) -> str:
    texts = []
    for name, value in check._asdict().items():
        if name in ValueCheck._field_defaults and value == ValueCheck._field_defaults[name]:
            continue
        text = _saved(value) if isinstance(value, Saved) else repr(value)
        texts.append(f"{name}={value.__name__ if isinstance(value, type) else text}")
    return f"ValueCheck({', '.join(texts)})"


def _listed(items: Iterable[str], brackets: str = "[]") -> str:
    return f"{brackets[0]}\n" + "".join(f"        {item},\n" for item in items) + f"    {brackets[1]}"


def load(script: Script) -> dict[str, Any]:
    """The names of the file, without running its last lines."""
    names: dict[str, Any] = {"__name__": "reproduction", "__file__": "reproduction.py"}
    # Our own text: values in it are written by repr.
    exec(compile(script.text, "reproduction.py", "exec"), names)
    return names


def tried(script: Script, call: JudgedCall) -> tuple[bool, bool]:
    """Let the file judge: whether it finds the captured values wrong, and the CPU's own right, with room."""
    names = load(script)
    case, memory = names["CASE"], script.packer.tensor()
    own = names["computed"](case, memory, _CPU, False)
    exact_values = own if case.reference is None else names["computed"](case, memory, _CPU, True)
    given = {value.slot: value.given for value in call.values}
    if case.drawn is not None:
        before = [names["read"](saved, memory) for saved in case.inputs]
        drawn = [value.given for value in call.values]
        found = all(value is not None for value in drawn) and bool(case.drawn(before, drawn))
        return found, not case.drawn(before, own[: len(drawn)])
    found, passed = False, True
    for check in case.checks:
        mine, captured = own[check.slot], given.get(check.slot)
        exact = exact_values[check.slot] if check.exact is None else names["read"](check.exact, memory)
        good = names["shown_problem"](check, mine, exact, mine, case, memory)
        passed &= not good.problem and good.worst <= 1 / ROOM + 0.01
        if captured is not None:
            found |= bool(names["shown_problem"](check, captured, exact, mine, case, memory).problem)
    return found, passed


def failures_on(script: Script, device: torch.device, repeat: int) -> tuple[int, str]:
    """Run the file's call on a device of this machine: in how many calls it fails, and what the file says of it."""
    names = load(script)
    calls = names["repeated"](names["CASE"], script.packer.tensor(), device, repeat)
    return sum(any(found.problem for found in call) for call in calls), names["summary"](calls)


def is_faithful(script: Script, call: JudgedCall) -> bool:
    """Whether the file's reference is the one that the verdict went by."""
    names = load(script)
    case = names["CASE"]
    if case.reference is None:
        return True
    try:
        exact_values = names["computed"](case, script.packer.tensor(), _CPU, True)
    except Exception:  # the reference took another way: integers in float64, say
        return False
    for value in call.values:
        truth = value.reference.truth()
        check = next((check for check in case.checks if check.slot == value.slot), None)
        if check is None or check.same_dtype or truth is None:
            continue
        exact, mine = truth[value.index], exact_values[value.slot]
        if not isinstance(mine, torch.Tensor) or mine.shape != exact.shape or mine.dtype != exact.dtype:
            return False
        got, want = real_parts(mine), real_parts(exact)
        size = float(want.nan_to_num(0, 0, 0).abs().max()) if want.numel() else 0.0
        if not torch.allclose(got, want, rtol=1e-9, atol=1e-12 * size, equal_nan=True):
            return False
    return True
