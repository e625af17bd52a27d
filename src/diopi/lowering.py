"""ATen calls as calls of DIOPI functions, in Python, from the operator table.

The registrations of the device do the same in C++ (diopi.generate.registrations); here it serves the sources of conformance
cases, which see the calls that PyTorch makes on the CPU, and whoever compiles graphs of ATen calls.

    call = lower_call("add.Tensor", {"self": x, "other": y, "alpha": 1})
    call.function, call.arguments        # "diopiAdd", {"input": x, "other": y, "alpha": 1}
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import CodeType
from typing import Any

import torch

from diopi.table import Argument, Entry, load
from diopi.table.schema import DTYPE_GROUPS

# On the CPU some operators have names of their own; the table knows those that reach a device.
_DEVICE_NAMES = {
    "convolution": "convolution_overrideable",
    "convolution_backward": "convolution_backward_overrideable",
    "_native_batch_norm_legit": "native_batch_norm",
    "_native_batch_norm_legit.no_stats": "native_batch_norm",
    # PyTorch itself turns these into the others before they reach a device.
    "add.Scalar": "add.Tensor",
    "add_.Scalar": "add_.Tensor",
    "sub.Scalar": "sub.Tensor",
    "sub_.Scalar": "sub_.Tensor",
    "mul.Scalar": "mul.Tensor",
    "mul_.Scalar": "mul_.Tensor",
    "div.Scalar": "div.Tensor",
    "div_.Scalar": "div_.Tensor",
    "div.Scalar_mode": "div.Tensor_mode",
    "div_.Scalar_mode": "div_.Tensor_mode",
    "remainder.Scalar": "remainder.Tensor",
    "fmod.Scalar": "fmod.Tensor",
    "bitwise_and.Scalar": "bitwise_and.Tensor",
    "bitwise_or.Scalar": "bitwise_or.Tensor",
    "sum": "sum.dim_IntList",
    "mean": "mean.dim",
    "sort": "sort.stable",
}
_ABSENT_TYPES = ("const int64_t*", "const bool*", "const double*", "const diopiScalar_t*", "diopiSize_t")
_INTEGERS = ("int64_t", "int32_t", "int", "diopiReduction_t", "diopiRoundMode_t", "diopiDtype_t")
_MEMORY_FORMATS = {
    torch.contiguous_format: 0,
    torch.channels_last: 1,
    torch.channels_last_3d: 2,
    torch.preserve_format: 3,
}


class NotServed(Exception):
    """Why no entry of the table takes a call."""


@dataclass(frozen=True)
class DiopiCall:
    """One call of a DIOPI function that does what an ATen call does."""

    entry: Entry
    arguments: dict[str, Any]
    """By C name: tensors, lists, numbers, text, a torch.Generator; None where absent. What is only written is not in it."""
    results: tuple[str, ...]
    """The C names of what holds the results of the ATen call, in their order."""

    @property
    def function(self) -> str:
        return self.entry.name


@dataclass(frozen=True)
class _Schema:
    """What matters here of an overload's schema."""

    parameters: tuple[str, ...]
    defaults: dict[str, Any]
    outs: tuple[str, ...]
    results: int
    in_place: bool


def overload_name(overload: torch._ops.OpOverload) -> str:
    """`add.Tensor`, as the table and native_functions.yaml write it."""
    name = overload._schema.name.removeprefix("aten::")
    return f"{name}.{overload._schema.overload_name}" if overload._schema.overload_name else name


def bound(overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the names of the schema, defaults filled in."""
    schema = overload._schema
    values = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    positional = [a.name for a in schema.arguments if not a.kwarg_only]
    values.update(zip(positional, args, strict=False))
    values.update(kwargs)
    return values


@cache
def _schema(overload: str) -> _Schema:
    name, _, variant = overload.partition(".")
    try:
        schema = getattr(getattr(torch.ops.aten, name), variant or "default")._schema
    except AttributeError:
        raise NotServed(f"{overload} is not an ATen overload of this PyTorch") from None
    first = schema.arguments[0] if schema.arguments else None
    in_place = bool(name.endswith("_") and first and first.alias_info and first.alias_info.is_write)
    return _Schema(
        parameters=tuple(a.name for a in schema.arguments),
        defaults={a.name: a.default_value for a in schema.arguments if a.has_default_value()},
        outs=tuple(a.name for a in schema.arguments if a.is_out),
        results=len(schema.returns),
        in_place=in_place,
    )


def device_name(overload: str) -> str:
    """The overload that a device sees where the CPU sees this one."""
    if overload in _entries():
        return overload
    return _DEVICE_NAMES.get(overload, overload)


@cache
def _entries() -> dict[str, tuple[Entry, ...]]:
    """Overload -> entries in the order in which they are tried, with the exchanged forms of commuting ones."""
    served: dict[str, list[Entry]] = {}
    for overload, entries in load().by_overload().items():
        for entry in entries:
            served.setdefault(overload, []).append(entry)
            if entry.commutes and entry.scalar == "other":
                exchanged = {**entry.args, "input": "other", "other": "self"}
                served[overload].append(replace(entry, scalar="self", args=exchanged))
    return {overload: tuple(entries) for overload, entries in served.items()}


def functions_of(overload: str) -> frozenset[str]:
    """The DIOPI functions that may serve an overload."""
    return frozenset(entry.name for entry in _entries().get(device_name(overload), ()))


def lower_call(overload: str, arguments: Mapping[str, Any]) -> DiopiCall:
    """The DIOPI call that serves an ATen call; NotServed, with the reasons, if none does."""
    name = device_name(overload)
    entries = _entries().get(name)
    if not entries:
        raise NotServed(f"the operator table has no entry for {name}")
    schema = _schema(name)
    missing: dict[str, Any] = dict.fromkeys(schema.parameters)
    given = {name: value for name, value in arguments.items() if name in missing}
    values = {**missing, **schema.defaults, **given}
    if name.startswith("convolution"):
        values.update(_expanded(values))
    reasons = []
    for entry in entries:
        try:
            return _attempt(entry, schema, values)
        except NotServed as reason:
            reasons.append(f"{entry.name}: {reason}")
    raise NotServed("; ".join(reasons))


def _expanded(values: Mapping[str, Any]) -> dict[str, list[int]]:
    """Torch lets one number stand for all dimensions of a convolution; a device is given one for each."""
    spatial = values["input"].dim() - 2
    lists = ("stride", "padding", "dilation", "output_padding")
    given = {name: list(values[name]) for name in lists if values.get(name) is not None}
    return {name: numbers * spatial for name, numbers in given.items() if len(numbers) == 1}


def _attempt(entry: Entry, schema: _Schema, values: dict[str, Any]) -> DiopiCall:
    _check_operands(entry, schema, values)
    if entry.when and not _evaluated(entry.when, values):
        raise NotServed(f"{entry.when} is false")
    results = _result_names(entry, schema)
    written_only = {a.name for a in entry.written() if entry.role(a) not in ("update", "updates")}
    made: dict[str, Any] = {}
    for argument in entry.function.arguments:
        if argument.ctype == "diopiContextHandle_t":
            continue
        if argument.name in results and schema.in_place:
            made[argument.name] = values["self"]
        elif argument.name in results and schema.outs:
            made[argument.name] = values[schema.outs[results.index(argument.name)]]
        elif argument.name not in written_only:
            made[argument.name] = _value(entry, argument, values)
    return DiopiCall(entry, made, results)


def _result_names(entry: Entry, schema: _Schema) -> tuple[str, ...]:
    written = entry.written()
    own = [a.name for a in written if entry.role(a) not in ("update", "updates")]
    names = own if own and not schema.in_place else [a.name for a in written]
    if schema.results:
        return tuple(names[: schema.results])
    # nothing is returned: what the overload does not name itself is what it is called on
    return tuple(name for name in names if name not in entry.args and name not in schema.parameters)


def _value(entry: Entry, argument: Argument, values: dict[str, Any]) -> Any:
    if argument.name in entry.args:
        expression = entry.args[argument.name]
    else:
        names = [argument.name, "self"] if argument.name == "input" else [argument.name]
        found = next((name for name in names if name in values), None)
        if found is None:
            if argument.ctype == "const char*":
                return ""
            if argument.ctype in _ABSENT_TYPES or "Handle_t" in argument.ctype:
                return None
            raise NotServed(f"nothing of {sorted(values)} fits its argument {argument.name}")
        expression = f"{found}_" if keyword.iskeyword(found) else found
    return converted(argument, _evaluated(expression, values))


def converted(argument: Argument, value: Any) -> Any:
    """A value of PyTorch as the C type of an argument takes it; NotServed if it cannot be handed over."""
    ctype = argument.ctype.removeprefix("const ")
    if value is None:
        return None
    if ctype in ("diopiTensorHandle_t", "diopiConstTensorHandle_t"):
        if not isinstance(value, torch.Tensor):
            raise NotServed(f"{argument.name} must be a tensor, not {value!r}")
        return value
    if ctype in ("diopiTensorHandle_t*", "diopiConstTensorHandle_t*"):
        return list(value)
    if ctype.startswith("diopiSize_t"):
        return [int(v) for v in value] if isinstance(value, Sequence | torch.Size) else [int(value)]
    if ctype == "diopiMemoryFormat_t":
        return _MEMORY_FORMATS.get(value, value)
    if isinstance(value, torch.Tensor) and not value.dim():
        value = value.item()
    if isinstance(value, complex):
        raise NotServed(f"{argument.name} is complex, which a scalar of the interface cannot be")
    if ctype in ("double", "float", "double*"):
        return float(value)
    if ctype in _INTEGERS or ctype == "int64_t*":
        return int(value)
    if ctype in ("bool", "bool*"):
        return bool(value)
    return value


# ---- does an entry take the operands ----


def _check_operands(entry: Entry, schema: _Schema, values: dict[str, Any]) -> None:
    allowed = {getattr(torch, name) for group in entry.dtypes for name in DTYPE_GROUPS[group]}
    integers = {getattr(torch, name) for name in DTYPE_GROUPS["int"]}
    for name, value in values.items():
        if name == entry.scalar:
            if not _is_number(value, values):
                raise NotServed(f"{name} is not a number")
        elif name in schema.outs:
            continue
        elif isinstance(value, complex):
            raise NotServed(f"{name} is complex, which a scalar of the interface cannot be")
        else:
            _check_tensors(name, value, integers if name in entry.indices else allowed)


def _is_number(value: Any, values: dict[str, Any]) -> bool:
    """A number where the schema has a tensor: written as a number, or held by the CPU beside tensors of a device."""
    if not isinstance(value, torch.Tensor):
        return isinstance(value, bool | int | float)
    if value.dim() or value.device.type != "cpu":
        return False
    others = [v for v in values.values() if isinstance(v, torch.Tensor) and v is not value]
    return any(v.device.type != "cpu" for v in others)


def _check_tensors(name: str, value: Any, allowed: set[torch.dtype]) -> None:
    tensors = value if isinstance(value, list | tuple) else [value]
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            continue
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg() or tensor.is_quantized:
            raise NotServed(f"{name} is not a plain dense tensor")
        if tensor.dtype not in allowed:
            raise NotServed(f"{name} is {tensor.dtype}")


# ---- the table's expressions ----


def _one_dtype(*tensors: Any) -> bool:
    flat = [t for item in tensors for t in (item if isinstance(item, list | tuple) else [item])]
    return len({t.dtype for t in flat if t is not None}) <= 1


def _expandable(small: torch.Tensor, to: torch.Tensor) -> bool:
    if small.dim() > to.dim():
        return False
    pairs = zip(reversed(small.shape), reversed(to.shape), strict=False)
    return all(a in (1, b) for a, b in pairs)


def _by_size(scale: float | None, before: int, after: int) -> bool:
    """Whether a scale says no more than the sizes do: then a function that knows only sizes computes the same."""
    return scale is None or (before > 0 and after % before == 0 and scale == after // before)


# What the conditions of the table ask; csrc/aten/wrapper.h and outputs.h have the same in C++.
FUNCTIONS: dict[str, Any] = {
    "torch": torch,
    "float": float,
    "len": len,
    "one_dtype": _one_dtype,
    "expandable": _expandable,
    "full_precision": lambda x: x.dtype in (torch.float32, torch.float64),
    "present": lambda x: x is not None,
    "absent": lambda x: x is None,
    "is_bool": lambda number: isinstance(number, bool),
    "is_integer": lambda number: isinstance(number, int),
    "is_floating": lambda tensor: tensor.is_floating_point(),
    "or_true": lambda value: True if value is None else value,
    "or_false": lambda value: False if value is None else value,
    "or_number": lambda number, otherwise: otherwise if number is None else number,
    "floating_or_none": lambda dtype: dtype is None or dtype.is_floating_point,
    "default_generator": lambda x: torch.default_generator,
    "generator_or_default": lambda given, x: given if given is not None else torch.default_generator,
    "by_size": _by_size,
    "bias_sizes_if": lambda wanted, grad_output: [grad_output.shape[1]] if wanted else None,
    "round_mode": (None, "trunc", "floor").index,
    "RoundModeNone": 0,
    "RoundModeTrunc": 1,
    "RoundModeFloor": 2,
    "ReductionNone": 0,
    "ReductionMean": 1,
    "ReductionSum": 2,
}


@cache
def _compiled(expression: str) -> CodeType:
    return compile(expression, f"<{expression}>", "eval")


def _evaluated(expression: str, values: Mapping[str, Any]) -> Any:
    names = {(f"{n}_" if keyword.iskeyword(n) else n): v for n, v in values.items()}
    try:
        return eval(_compiled(expression), {**FUNCTIONS, **names})
    except (NameError, AttributeError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise NotServed(f"{expression} cannot be evaluated here ({error})") from error


def unknown_names() -> dict[str, set[str]]:
    """C function -> names that its expressions use and nothing here defines: a defect of the table or of this module."""
    found: dict[str, set[str]] = {}
    for overload, entry in ((o, e) for o, entries in load().by_overload().items() for e in entries):
        expressions = [*([entry.when] if entry.when else []), *entry.args.values()]
        used = {
            node.id
            for text in expressions
            for node in ast.walk(ast.parse(text, mode="eval"))
            if isinstance(node, ast.Name)
        }
        parameters = _schema(overload).parameters
        visible = {f"{p}_" if keyword.iskeyword(p) else p for p in parameters} | set(FUNCTIONS)
        if missing := used - visible:
            found.setdefault(entry.name, set()).update(missing)
    return found
