"""Cases from files that users write (see diopi.conformance.case_files).

An entry names a function of PyTorch: it is called on the CPU, with its backward where a tensor requires it, and the calls of
DIOPI functions that this makes are the cases. An entry whose name PyTorch does not know, or that begins with `diopi`, names the C
function itself, and its parameters are the C arguments.
"""

from __future__ import annotations

import math
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from dicore.conformance.cases import Case, DecidedCase, case_id
from dicore.suggestions import closest
from diopi.conformance.case_files import CaseFileError, FileCall, TensorSpec, expanded, read
from diopi.conformance.diopi_case import DiopiCase
from diopi.conformance.opinfo_source import SEED, Collector
from diopi.conformance.recorded_calls import CallRecorder, each_tensor
from diopi.conformance.suite import FILE
from diopi.table import Entry, load

# Published names that are not the C name in snake case.
ALIASES = {
    "cast_dtype": "diopiCastDtype",
    "slice_op": "diopiSlice",
    "mul": "diopiMul",
    "fill_": "diopiFill",
    "copy_": "diopiCopyInp",
    "clip_grad_norm_": "diopiClipGradNorm",
    "conv2d": "diopiConvolution2d",
    "conv3d": "diopiConvolution3d",
    "conv_transpose2d": "diopiConvTranspose2d",
    "interpolate": "diopiUpsampleNearest",
    "nll_loss": "diopiNLLLossV2",
    "ctc_loss": "diopiCTCLoss",
    "mse_loss": "diopiMSELoss",
    "bce_loss": "diopiBCELoss",
    "binary_cross_entropy": "diopiBCELoss",
    "binary_cross_entropy_with_logits": "diopiBCEWithLogits",
    "linalg_qr": "diopiLinalgQR",
    "rms_norm": "diopiRMSNorm",
}


def camel(name: str) -> str:
    """`batch_norm` -> `diopiBatchNorm`, as the C interface writes most names."""
    return "diopi" + "".join(part[:1].upper() + part[1:] for part in name.split("_") if part)


def c_function(name: str) -> str | None:
    """The C function that a published name stands for; None if there is none."""
    functions = {entry.lower(): entry for entry in load().functions}
    for candidate in (name, ALIASES.get(name, ""), camel(name), camel(name.rstrip("_") + "_inp")):
        if candidate.lower() in functions:
            return functions[candidate.lower()]
    return None


@cache
def _calls(path: Path) -> dict[str, list[FileCall]]:
    """Group (entry::function) -> its calls."""
    found: dict[str, list[FileCall]] = {}
    for name, entry in read(path).items():
        for call in expanded(path, name, entry):
            found.setdefault(f"{name}::{call.function}", []).append(call)
    for group, calls in found.items():
        _resolved(path, calls[0].entry, calls[0])
        if not calls:
            raise CaseFileError(f"{path}: {group}: no case")
    return found


def case_file_sources(paths: Sequence[Path], names: Iterable[str] | None = None) -> list[CaseFileSource]:
    """A source for each file. Where there are several, each has a name of its own, so that ids differ."""
    if len(paths) == 1:
        return [CaseFileSource(paths[0], names)]
    found: dict[str, CaseFileSource] = {}
    for path in paths:
        name = title = f"{FILE}-{path.stem.replace(':', '_')}"
        if any(other.path == path.absolute() for other in found.values()):
            raise CaseFileError(f"{path} is given twice")
        while name in found:  # files of the same name in two folders
            name = f"{title}-{len(found) + 1}"
        found[name] = CaseFileSource(path, names, name)
    return list(found.values())


class CaseFileSource:
    """A group is one function of one entry."""

    def __init__(self, path: Path | str, names: Iterable[str] | None = None, name: str = FILE) -> None:
        self.name = name
        self.path = Path(path).absolute()
        self.names = frozenset(names) if names is not None else None
        _calls(self.path)  # a wrong file is told now, not by a worker

    def groups(self, functions: frozenset[str] | None) -> list[str]:
        """All groups: which C functions an entry reaches is known only when it runs."""
        return [
            group
            for group in _calls(self.path)
            if self.names is None or group.rpartition("::")[2] in self.names
        ]

    def cases(self, group: str) -> Iterator[Case]:
        """The DIOPI calls of one group. Behind a call that the file has wrong, the iterator can be asked again."""
        return _Cases(self.path, self.name, group)


class _Cases(Iterator[Case]):
    """The calls of a group one after the other; a generator would end with the first that is wrong."""

    def __init__(self, path: Path, source: str, group: str) -> None:
        self._path, self._source, self._group = path, source, group
        self._calls = enumerate(_calls(path)[group])
        self._built: deque[Case] = deque()
        self._number = 0

    def __next__(self) -> Case:
        while not self._built:
            self._build(*next(self._calls))
        return self._built.popleft()

    def _build(self, index: int, call: FileCall) -> None:
        torch.manual_seed(zlib.crc32(f"{self._group}:{index}".encode()) ^ SEED)
        try:
            made = _made(self._path, call)
        except CaseFileError:
            self._number += 1  # what is wrong has a number too
            raise
        except Exception as error:  # PyTorch has no such kernel, or the arguments do not fit each other
            self._built.append(self._refused(call, error))
            return
        for function, arguments, dtype in made:
            self._built.append(DiopiCase(self._next_id(), function, dtype, call.entry, arguments))

    def _next_id(self) -> str:
        self._number += 1
        return case_id(self._source, self._group, self._number - 1)

    def _refused(self, call: FileCall, error: Exception) -> DecidedCase:
        function = c_function(call.function) or call.function
        dtype = next((spec.dtype for spec in call.tensors if spec.dtype), "float32")
        said = (str(error).strip().partition("\n")[0] or type(error).__name__)[:300]
        reason = f"PyTorch refuses {call.function} on the CPU: {said}"
        return DecidedCase(self._next_id(), function, dtype, call.entry, reason)


def _resolved(path: Path, entry: str, call: FileCall) -> Callable[..., Any] | Entry:
    """A function of PyTorch, or an entry of the table."""
    if not call.function.startswith("diopi") and call.interface != "CustomizedTest":
        found = _torch_function(call)
        if found is not None:
            return found
    name = c_function(call.function)
    if name is not None and name in load().entries:
        return load().entries[name]
    close = closest(camel(call.function), load().entries, most=3, cutoff=0.6)
    close += closest(call.function, dir(torch.nn.functional), most=3, cutoff=0.7)
    hint = f"; near are {', '.join(close[:4])}" if close else ""
    raise CaseFileError(
        f"{path}: {entry}: name: {call.function!r} is neither a function of PyTorch nor of DIOPI{hint}"
    )


def _torch_function(call: FileCall) -> Callable[..., Any] | None:
    namespaces: list[Any] = [torch.nn.functional, torch, torch.Tensor, torch.linalg]
    if call.interface == "torch":
        namespaces = [torch, torch.nn.functional, torch.Tensor]
    elif call.interface in ("torch.Tensor", "Tensor"):
        namespaces = [torch.Tensor]
    names = [call.function.rstrip("_") + "_", call.function] if call.in_place else [call.function]
    for name in names:
        for namespace in namespaces:
            found = getattr(namespace, name, None)
            if callable(found) and not isinstance(found, type):
                return found  # type: ignore[no-any-return]
    return None


def _made(path: Path, call: FileCall) -> list[tuple[str, dict[str, Any], str]]:
    function = _resolved(path, call.entry, call)
    tensors = {spec.name: _tensors(spec) for spec in call.tensors}
    if isinstance(function, Entry):
        return [_direct(path, call, function, {**tensors, **call.parameters})]
    return _watched(call, function, tensors)


def _watched(
    call: FileCall, function: Callable[..., Any], tensors: dict[str, Any]
) -> list[tuple[str, dict[str, Any], str]]:
    collector = Collector(None)
    given = {**tensors, **call.parameters}
    if call.in_place:
        given = {key: v.detach() if isinstance(v, torch.Tensor) else v for key, v in given.items()}
        if not function.__name__.endswith("_"):
            given["inplace"] = True
    positional: list[Any] = []
    if getattr(torch.Tensor, function.__name__, None) is function:  # a method: its tensor has no name
        positional = [given.pop("input" if "input" in given else next(iter(given)))]
    with CallRecorder(collector.record):
        _backward(function(*positional, **given), tensors)
    return [(made.function, arguments, dtype) for made, arguments, dtype in collector.collected]


def _backward(result: Any, tensors: dict[str, Any]) -> None:
    outputs = [t for t in each_tensor(result) if t.requires_grad]
    inputs = [t for value in tensors.values() for t in each_tensor(value) if t.requires_grad]
    if outputs and inputs:
        torch.autograd.grad(outputs, inputs, [torch.randn_like(t) for t in outputs], allow_unused=True)


def _direct(
    path: Path, call: FileCall, entry: Entry, given: dict[str, Any]
) -> tuple[str, dict[str, Any], str]:
    names = [a.name for a in entry.function.arguments]
    for name in given:
        if name not in names:
            close = closest(name, names, most=2, cutoff=0.6)
            hint = f"; did you mean {' or '.join(close)}?" if close else f"; it has {', '.join(names[1:])}"
            raise CaseFileError(f"{path}: {call.entry}: {entry.name} has no argument {name!r}{hint}")
    plain = {
        name: value.detach() if isinstance(value, torch.Tensor) else value for name, value in given.items()
    }
    tensors = [t for value in plain.values() for t in each_tensor(value)]
    dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else "float32"
    return entry.name, plain, dtype


# ---- tensors ----


def _tensors(spec: TensorSpec) -> Any:
    if spec.absent:
        return None
    match spec.policy:
        case "gen_tensor_by_value":
            made = torch.tensor(spec.value)
            return made.to(_dtype(spec)) if spec.dtype else made
        case "gen_tensor_list":
            return [_filled(spec, spec.shape) for _ in range(max(spec.count))]
        case "gen_tensor_list_diff_shape":
            return [_filled(spec, shape) for shape in spec.shape]
    return _filled(spec, spec.shape)


def _dtype(spec: TensorSpec) -> torch.dtype:
    found: torch.dtype = getattr(torch, spec.dtype or "float32")
    return found


def _filled(spec: TensorSpec, shape: Any) -> torch.Tensor:
    sizes = tuple(shape) if isinstance(shape, list | tuple) else (int(shape),)
    values = _values(spec, sizes).to(_dtype(spec))
    if spec.stride is not None:
        if len(spec.stride) != len(sizes):
            raise ValueError(f"{spec.name}: stride {spec.stride} does not fit the shape {sizes}")
        values = torch.empty_strided(sizes, spec.stride, dtype=values.dtype).copy_(values)
    elif spec.reversed and len(sizes) > 1:
        values = (
            values.permute(*reversed(range(len(sizes)))).contiguous().permute(*reversed(range(len(sizes))))
        )
    differentiable = values.is_floating_point() or values.is_complex()
    return values.requires_grad_(spec.requires_grad and differentiable)


def _values(spec: TensorSpec, shape: tuple[int, ...]) -> torch.Tensor:
    low, high = spec.options.get("low", 0), spec.options.get("high", 10)
    match spec.fill:
        case "rand":
            return torch.rand(shape, dtype=torch.float64)
        case "randint" | "randn_int":
            return torch.randint(int(low), max(int(high), int(low) + 1), shape)
        case "uniform":
            return torch.rand(shape, dtype=torch.float64) * (high - low) + low
        case "zeros" | "empty":
            return torch.zeros(shape)
        case "ones":
            return torch.ones(shape)
        case "full":
            return torch.full(shape, spec.options.get("value", 1))
        case "positive":
            return torch.randn(shape, dtype=torch.float64).abs() + (
                0 if "float" in (spec.dtype or "float") else 1
            )
        case "mask":
            return torch.rand(shape) < 0.5
        case "arange":
            return torch.arange(math.prod(shape)).view(shape)
        case "sym_mat":
            drawn = torch.randn(shape, dtype=torch.float64)
            return drawn @ drawn.mT + 1e-3 * torch.eye(shape[-1], dtype=torch.float64)
        case "randn_cmplx":
            return torch.randn(shape, dtype=torch.complex128)
    return torch.randn(shape, dtype=torch.float64)
