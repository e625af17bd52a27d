"""Cases from PyTorch's own operator database.

Every entry of the database is run on the CPU with its own sample inputs, forward and backward; the ATen calls that this
makes, and that the operator table maps to a DIOPI function, are the cases. A group is one entry of the database.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import torch

from dicore.conformance.cases import Case, DecidedCase, case_id
from diopi.conformance.diopi_case import DiopiCase
from diopi.conformance.recorded_calls import CallRecorder, each_tensor, snapshot, template
from diopi.lowering import DiopiCall, NotServed, functions_of, lower_call

INDEX = "opinfo_index.json"
SEED = 20_231
LARGEST = 20_000  # elements of a tensor
DTYPES = {  # dtype -> samples of an entry that are run
    torch.float32: 32,
    torch.float16: 12,
    torch.bfloat16: 12,
    torch.float64: 12,
    torch.int64: 12,
    torch.int32: 8,
    torch.uint8: 6,
    torch.int8: 4,
    torch.int16: 4,
    torch.bool: 8,
    torch.complex64: 10,
}
_WITH_BACKWARD = (torch.float32, torch.float64, torch.bfloat16)
_DRAWN = 120  # samples of which those that are run are picked, evenly
# Cases of one function and dtype in a group whose own operator it is.
PER_FUNCTION = {"float32": 9, "bfloat16": 6}
_PER_FUNCTION_ELSE = 5
# Of functions that many groups reach only one: an addition inside a softmax is a case of little interest.
PER_HELPER = 1
_COMMON = 25  # groups that reach a function before it counts as such
# The result has another shape or dtype than the input: there is no such call.
_NOT_IN_PLACE = re.compile(
    "doesn't match the broadcast shape|can't be cast to the desired output type|Bad in-place call: input tensor size"
    "|In-place abs is not supported for complex|the base given to float_power_ has dtype"
)

Sample = Any
OpInfo = Any


def problem() -> str | None:
    """Why the database cannot be used here, and what to do; None if it can."""
    missing = [name for name in ("expecttest", "scipy") if importlib.util.find_spec(name) is None]
    if missing:
        return f"PyTorch's operator database needs {' and '.join(missing)}: pip install {' '.join(missing)}"
    return None


@cache
def database() -> dict[str, OpInfo]:
    """Name, with its variant, -> entry."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    found: dict[str, OpInfo] = {}
    for entry in op_db:
        name = f"{entry.name}.{entry.variant_test_name}" if entry.variant_test_name else entry.name
        found.setdefault(name, entry)
    return found


@cache
def _index() -> dict[str, list[str]]:
    """Group -> ATen overloads it reaches; made by `python -m diopi.conformance.capture opinfo`."""
    text = (files("diopi.conformance") / "data" / INDEX).read_text(encoding="utf-8")
    document = json.loads(text)
    names = document["overloads"]
    return {group: [names[i] for i in numbers] for group, numbers in document["groups"].items()}


@cache
def _reached() -> dict[str, frozenset[str]]:
    """Group -> DIOPI functions it reaches, by the index and the table as it is now."""
    return {
        group: frozenset().union(*(functions_of(overload) for overload in overloads))
        for group, overloads in _index().items()
    }


@cache
def _helpers() -> frozenset[str]:
    """Functions that many groups reach."""
    counts: dict[str, int] = {}
    for functions in _reached().values():
        for name in functions:
            counts[name] = counts.get(name, 0) + 1
    return frozenset(name for name, count in counts.items() if count > _COMMON)


class OpInfoSource:
    """Cases from PyTorch's operator database."""

    name = "opinfo"

    def problem(self) -> str | None:
        return problem()

    def groups(self, functions: frozenset[str] | None) -> list[str]:
        """Entries of the database that are about one of these functions; where none is, those that reach it."""
        if problem() is not None:
            return []
        if functions is None:
            return [group for group, reached in _reached().items() if reached]
        about = {group: _own_functions(group) & functions for group in _reached()}
        others = functions - frozenset().union(*about.values())
        return [group for group, reached in _reached().items() if about[group] or reached & others]

    def cases(self, group: str) -> Iterator[Case]:
        """The mapped calls of one entry, without repetitions, a few of each function and dtype."""
        if group not in database():
            if group not in _reached():
                raise LookupError(f"PyTorch's operator database has no entry {group!r}")
            reason = f"the operator database of PyTorch {torch.__version__} has no entry {group}"
            yield DecidedCase(case_id(self.name, group, 0), "", "", group, reason)
            return
        collector = Collector(_own_functions(group))
        refused: list[tuple[str, str]] = []
        for dtype in DTYPES:
            name = str(dtype).removeprefix("torch.")
            refused += [(name, why) for why in run_samples(database()[group], dtype, collector.record)]
        collected = collector.collected
        for number, (call, arguments, about) in enumerate(collected):
            yield DiopiCase(case_id(self.name, group, number), call.function, about, group, arguments)
        # Behind the cases, whose numbers must not change.
        for number, (about, reason) in enumerate(refused, len(collected)):
            yield DecidedCase(case_id(self.name, group, number), "", about, group, reason)


def _own_functions(group: str) -> frozenset[str]:
    """What the group is about: everything it reaches that only few groups reach, or whose name it bears."""
    reached = _reached().get(group, frozenset())
    bare = "".join(part for part in group.partition(".")[0].rpartition("functional.")[2].split("_")).lower()
    named = {name for name in reached if name[5:].lower().startswith(bare)}
    return (reached - _helpers()) | named


class Collector:
    """Keeps the calls that a DIOPI function serves: each signature once, not too many of a kind."""

    def __init__(self, own: frozenset[str] | None) -> None:
        """`own`: the functions of which several are kept; None: no limits."""
        self.collected: list[tuple[DiopiCall, dict[str, Any], str]] = []
        self._own = own
        self._seen: set[Any] = set()
        self._counts: dict[tuple[str, str], int] = {}

    def record(self, overload: str, values: dict[str, Any]) -> Callable[[Any], None] | None:
        if not functions_of(overload):
            return None
        try:
            call = lower_call(overload, values)
        except NotServed:
            return None
        tensors = [t for v in values.values() for t in each_tensor(v)]
        if call.entry.reference is None or not self._fit(tensors):
            return None
        dtype = main_dtype(call)
        key = (call.function, dtype)
        signature = (call.function, tuple(_signature(v) for v in call.arguments.values()))
        if self._counts.get(key, 0) >= self._most(*key) or signature in self._seen:
            return None
        arguments = {name: _kept(value) for name, value in call.arguments.items()}

        def finish(result: Any) -> None:
            if not complete(call, arguments, result, LARGEST if self._own is not None else None):
                return
            self._seen.add(signature)
            self._counts[key] = self._counts.get(key, 0) + 1
            self.collected.append((call, arguments, dtype))

        return finish

    def _fit(self, tensors: list[torch.Tensor]) -> bool:
        """Plain tensors of a size that a case may have."""
        small = self._own is None or all(t.numel() <= LARGEST for t in tensors)
        return small and all(type(t) in (torch.Tensor, torch.nn.Parameter) for t in tensors)

    def _most(self, function: str, dtype: str) -> int:
        if self._own is None:
            return sys.maxsize
        return PER_FUNCTION.get(dtype, _PER_FUNCTION_ELSE) if function in self._own else PER_HELPER


def complete(call: DiopiCall, arguments: dict[str, Any], result: Any, largest: int | None = LARGEST) -> bool:
    """Adds the outputs that the ATen call gave, as templates; False if they cannot be outputs of a case."""
    results = list(result) if isinstance(result, tuple) else [result]
    roles = {a.name: call.entry.role(a) for a in call.entry.function.arguments}
    for name, value in zip(call.results, results, strict=False):
        if roles[name] in ("out", "outs"):
            if largest is not None and any(t.numel() > largest for t in each_tensor(value)):
                return False
            arguments[name] = _template(value)
    return True


def _template(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return template(value)
    return [_template(item) for item in value] if isinstance(value, list | tuple) else None


def _kept(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return snapshot(value)
    if isinstance(value, list):
        return [_kept(item) for item in value]
    return SEED if isinstance(value, torch.Generator) else value


def _signature(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape), value.stride())
    if isinstance(value, list):
        return tuple(_signature(item) for item in value)
    return (type(value), value if isinstance(value, int | float | str) else None)


def main_dtype(call: DiopiCall) -> str:
    """The dtype that a call is about: of its first tensor that is neither an index nor a mask, if there is one."""
    tensors = [t for name, value in call.arguments.items() for t in each_tensor(value)]
    plain = [
        t
        for name, value in call.arguments.items()
        for t in each_tensor(value)
        if name not in call.entry.indices and t.dtype != torch.bool
    ]
    chosen = (plain or tensors or [torch.empty(0)])[0]
    return str(chosen.dtype).removeprefix("torch.")


# ---- running the database's samples ----


def run_samples(
    entry: OpInfo, dtype: torch.dtype, on_call: Callable[[str, dict[str, Any]], Any], most: int | None = None
) -> list[str]:
    """Runs samples of an entry in one dtype and shows their ATen calls to `on_call`.

    Gives why, for each sample that PyTorch refuses although it says that it knows the dtype.
    """
    if dtype not in entry.supported_dtypes("cpu"):
        return []
    refused: list[str] = []
    backward = entry.supports_autograd and dtype in _WITH_BACKWARD
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed_all(f"{entry.name}.{entry.variant_test_name}.{dtype}")
        try:
            drawn = _picked(entry, dtype, backward, most or DTYPES[dtype])
        except Exception as error:  # some generators of the database need what is not installed
            return [_refusal("PyTorch's database has no samples", error)]
        with CallRecorder(on_call):
            for number, sample in enumerate(drawn):
                refused += _run(entry, sample, backward)
                if number % 4 == 0:
                    refused += _run_in_place(entry, sample)
    return refused


def _picked(entry: OpInfo, dtype: torch.dtype, backward: bool, most: int) -> list[Sample]:
    drawn = []
    for sample in entry.sample_inputs("cpu", dtype, requires_grad=backward):
        drawn.append(sample)
        if len(drawn) >= _DRAWN:
            break
    if len(drawn) <= most:
        return drawn
    return [drawn[i * len(drawn) // most] for i in range(most)]


def _refusal(what: str, error: Exception) -> str:
    return f"{what}: {(str(error).strip().partition(chr(10))[0] or type(error).__name__)[:300]}"


def _run(entry: OpInfo, sample: Sample, backward: bool) -> list[str]:
    """Why PyTorch refuses the sample on the CPU, if it does."""
    what = f"PyTorch refuses {entry.name} on the CPU"
    try:
        result = entry(sample.input, *sample.args, **sample.kwargs)
        if backward:
            what = f"PyTorch refuses the backward of {entry.name} on the CPU"
            _backward(sample, sample.output_process_fn_grad(result))
    except Exception as error:
        return [_refusal(what, error)]
    return []


def _backward(sample: Sample, result: Any) -> None:
    outputs = [t for t in each_tensor(result) if t.requires_grad]
    given = [sample.input, *sample.args, *sample.kwargs.values()]
    inputs = [t for value in given for t in each_tensor(value) if t.requires_grad]
    if outputs and inputs:
        gradients = [torch.randn_like(t) for t in outputs]
        torch.autograd.grad(outputs, inputs, gradients, allow_unused=True)


def _run_in_place(entry: OpInfo, sample: Sample) -> list[str]:
    """Why PyTorch refuses the in-place form, unless the result of this sample does not fit its input."""
    variant = entry.get_inplace()
    if variant is None or not isinstance(sample.input, torch.Tensor):
        return []
    try:
        with torch.no_grad():
            variant(sample.input.detach().clone(), *sample.args, **sample.kwargs)
    except Exception as error:
        if not _NOT_IN_PLACE.search(str(error)):
            return [_refusal(f"PyTorch refuses {entry.name}_ on the CPU", error)]
    return []


def seed_all(text: str) -> None:
    """Everything that samples draw from, seeded by a name."""
    import numpy

    seed = zlib.crc32(text.encode()) ^ SEED
    torch.manual_seed(seed)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
