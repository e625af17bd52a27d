"""The loop IR: a graph as an ordered list of kernels, products and operators of ATen over buffers. Any loop vendor prints it.

A kernel is loops over rows; for each row its phases run one after the other; a phase is loops over columns around a body:

    for row in nest.rows:               # in any order, in parallel
        for phase in nest.phases:       # in this order
            for part in phase.parts:    # in any order: columns of a row that are computed differently, such as borders
                for column in part.columns:
                    part.body

What holds for every kernel (`dicp.loops.verify` checks what can be seen without running it):

- A body is in single assignment: each instruction names values that are new in the row. Values of a part without columns, and
  the results of `Reduce`, can be read by every later phase of the row; other values only in the body that makes them.
- `Reduce` accumulates over all iterations of all parts of its phase; its results exist when the phase is over. The parts of a
  phase have the same reductions, with the same results.
- What one phase stores in the row's scratch (`RowBuffer`) later phases of the row may load, at any index. Bodies without
  `Reduce` and `Scan` can run their iterations in any order: a vendor may vectorise them.
- No row reads what another row of the kernel stores. A buffer that is both read and stored to is read at the very element
  that the iteration stores to, and before it.
- `nest.lanes`: neighbours of the last loop over rows are neighbours in memory, those of the loops over columns are not. A
  vendor should keep a vector of rows at a time and make the loops over columns the outer ones. It changes nothing in what
  is computed.
- Indices are in elements of the buffer's dtype; they are in bounds. Sizes are never negative and may be 0: then a body does
  not run, and `Reduce` gives its neutral value.
- An element of a 16-bit float is loaded as float32 and rounded when it is stored (`primitives.held`).

Names: loops over rows `i0, i1...`, over columns `j0, j1...`, values `t0, t1...`, parameters `p0, p1...`, scratch `r0, r1...`,
sizes by their symbols. Kernels that do the same are equal, so a vendor prints each of `LoopProgram.kernels` once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import sympy
import torch

from dicp.loops.index import Affine, Size
from dicp.loops.primitives import Number, Value

__all__ = [
    "BufferKind",
    "BufferView",
    "CallArgument",
    "CheckedIndex",
    "Compute",
    "Convert",
    "IndexValue",
    "Instruction",
    "KernelArguments",
    "KernelLaunch",
    "KernelParameter",
    "LiteralValue",
    "Load",
    "Loop",
    "LoopBuffer",
    "LoopKernel",
    "LoopProgram",
    "MatrixProduct",
    "OperatorCall",
    "Phase",
    "PhasePart",
    "ProgramStep",
    "Reduce",
    "ReduceKind",
    "RowBuffer",
    "RowNest",
    "Scan",
    "ScanKind",
    "Store",
]

ReduceKind = Literal["sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "welford", "logsumexp"]
"""Of operands of one dtype, in which it accumulates, in any order:

- `sum`, `prod` (0 and 1 for no elements; integers wrap), `max`, `min` (NaN if one is NaN), `any`, `all` (of bool).
- `argmax`, `argmin`: operands (x, position: int64), results (the extreme, its position); a NaN counts as the extreme; of
  equal elements the
  smallest position.
- `welford`: operand x, results (mean, sum of squared deviations from it).
- `logsumexp`: operand x, results (maximum, sum of exp(x - maximum)); where the maximum is infinite, 0 is subtracted in its
  place.
"""
ScanKind = Literal["sum", "prod", "max", "min", "logsumexp"]
"""Inclusive, along the columns in order. `max`, `min`: operands (x, position), results (the extreme so far, its position: the
last of equal ones, and a NaN stays). `logsumexp`: log of the sum of exp so far."""


# --- instructions of a body ---


@dataclass(frozen=True, slots=True)
class Load:
    """An element of a parameter or of the row's scratch. `when` is false: `otherwise`, and memory is not touched."""

    result: Value
    buffer: str
    index: Affine
    when: Value | None = None
    otherwise: Number = 0


@dataclass(frozen=True, slots=True)
class Store:
    buffer: str
    index: Affine
    operand: Value
    when: Value | None = None


@dataclass(frozen=True, slots=True)
class Compute:
    """A primitive of `dicp.loops.primitives`. A number among the operands has the dtype of the values beside it."""

    result: Value
    primitive: str
    operands: tuple[Value | Number, ...]


@dataclass(frozen=True, slots=True)
class Convert:
    """To `dtype` as torch's `to` does it; of 16 bits: rounded to it, the result is held in float32."""

    result: Value
    operand: Value
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class LiteralValue:
    """A number, or one that is computed from sizes."""

    result: Value
    number: Number | sympy.Expr


@dataclass(frozen=True, slots=True)
class IndexValue:
    """An index as an int64, as in `arange`."""

    result: Value
    index: Affine


@dataclass(frozen=True, slots=True)
class CheckedIndex:
    """An int64 of data as an index into `size` elements: from the end where it is negative. Out of range it is an error of
    the run, and 0.

    `wraps` is false: negative ones are out of range. The result may occur as a variable of an index.
    """

    result: Value
    operand: Value
    size: Size
    wraps: bool = True


@dataclass(frozen=True, slots=True)
class Reduce:
    results: tuple[Value, ...]
    kind: ReduceKind
    operands: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Scan:
    """The results are those of this element: they can be read in the body. A phase with a Scan has one part."""

    results: tuple[Value, ...]
    kind: ScanKind
    operands: tuple[Value, ...]


Instruction = Load | Store | Compute | Convert | LiteralValue | IndexValue | CheckedIndex | Reduce | Scan


# --- kernels ---


@dataclass(frozen=True, slots=True)
class Loop:
    variable: str
    begin: Size
    end: Size

    @property
    def count(self) -> Size:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class PhasePart:
    """A body for some of the columns; without loops it runs once a row."""

    columns: tuple[Loop, ...]
    body: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Phase:
    parts: tuple[PhasePart, ...]

    @property
    def reductions(self) -> tuple[Reduce, ...]:
        """Of all parts, which have the same ones."""
        return tuple(i for i in self.parts[0].body if isinstance(i, Reduce))

    @property
    def scans(self) -> bool:
        return any(isinstance(i, Scan) for part in self.parts for i in part.body)


@dataclass(frozen=True, slots=True)
class RowBuffer:
    """Scratch of a row (with lanes: one for each lane); nothing is left of it afterwards."""

    name: str
    dtype: torch.dtype
    """Of what is stored; 16-bit floats are kept as float32."""
    size: Size


@dataclass(frozen=True, slots=True)
class RowNest:
    rows: tuple[Loop, ...]
    phases: tuple[Phase, ...]
    scratch: tuple[RowBuffer, ...] = ()
    lanes: bool = False


@dataclass(frozen=True, slots=True)
class KernelParameter:
    """A pointer to the first element of a buffer. No two parameters of a call are the same buffer."""

    name: str
    dtype: torch.dtype
    read: bool
    written: bool


@dataclass(frozen=True, slots=True)
class LoopKernel:
    """`nests` store to different elements: they can run in any order."""

    parameters: tuple[KernelParameter, ...]
    sizes: tuple[str, ...]
    """Names of the symbols in it."""
    nests: tuple[RowNest, ...]

    def instructions(self) -> Iterator[Instruction]:
        for nest in self.nests:
            for phase in nest.phases:
                for part in phase.parts:
                    yield from part.body


# --- programs ---

BufferKind = Literal["input", "constant", "output", "temporary", "result"]
"""`input`, `constant`: given at each call, or once (a placeholder with `meta["constant"]`). `output`: allocated for a call, with
the buffer's sizes and strides, and handed to the caller. `temporary`: part of the arena. `result`: allocated by the operator
whose result it is."""


@dataclass(frozen=True, slots=True)
class LoopBuffer:
    """Memory. An element lies at the sum of its index times `strides`."""

    name: str
    kind: BufferKind
    dtype: torch.dtype
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    elements: Size
    """How many lie between the first and the last, both included."""
    position: int = -1
    """Among the graph's placeholders, of an input or constant."""
    written: bool = False
    """An input that the graph stores to."""


@dataclass(frozen=True, slots=True)
class BufferView:
    """Part of a buffer, perhaps as another dtype."""

    buffer: str
    dtype: torch.dtype
    sizes: tuple[Size, ...]
    strides: tuple[Size, ...]
    offset: Size = 0
    """In elements of `dtype`."""


@dataclass(frozen=True, slots=True)
class KernelArguments:
    """For one call of a kernel: buffers for its parameters, numbers for its sizes."""

    buffers: tuple[str, ...]
    sizes: tuple[Size, ...] = ()


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """Calls of one kernel that need nothing of each other, such as an optimizer's updates of many weights: best done as one."""

    kernel: int
    """Of `LoopProgram.kernels`."""
    calls: tuple[KernelArguments, ...]


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """`out[batch, m, n] = a[batch, m, k] @ b[batch, k, n] + bias[n]`; all views have three dimensions, strides may be 0 in
    `a` and `b`.

    Rows of `out` are dense. Of one dtype, a float; sums are formed in at least float32 and rounded once.
    """

    a: BufferView
    b: BufferView
    out: BufferView
    bias: BufferView | None = None


@dataclass(frozen=True, slots=True)
class CallArgument:
    """An int of a call that is computed from sizes. Tensors are BufferViews."""

    number: Size


@dataclass(frozen=True)
class OperatorCall:
    """An operator of ATen as it is. `arguments`: all of the schema, in its order; BufferView and CallArgument inside, also in
    lists.

    `results`: (number of the result, position in that result's list or -1, buffer). Those that nobody reads are not named.
    The buffers are of kind `result`; what the call gives must have their sizes and strides, else it is copied. An operator
    with `out=` or in place writes to buffers among its arguments: `written`.
    """

    operator: torch._ops.OpOverload
    arguments: tuple[Any, ...]
    results: tuple[tuple[int, int, str], ...] = ()
    written: tuple[str, ...] = ()

    def views(self) -> Iterator[BufferView]:
        for argument in self.arguments:
            for item in argument if isinstance(argument, (list, tuple)) else (argument,):
                if isinstance(item, BufferView):
                    yield item


ProgramStep = KernelLaunch | MatrixProduct | OperatorCall


@dataclass(frozen=True)
class LoopProgram:
    """A graph: its steps run in order."""

    buffers: dict[str, LoopBuffer]
    kernels: tuple[LoopKernel, ...]
    steps: tuple[ProgramStep, ...]
    outputs: tuple[BufferView, ...]
    """In the graph's order."""
    symbols: dict[str, int]
    """The names of symbolic sizes, and which placeholder gives each its value."""

    def accesses(self, step: ProgramStep) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The buffers that a step reads, and those that it writes."""
        match step:
            case KernelLaunch(kernel, calls):
                parameters = self.kernels[kernel].parameters
                pairs = [(p, b) for call in calls for p, b in zip(parameters, call.buffers, strict=True)]
                return tuple(b for p, b in pairs if p.read), tuple(b for p, b in pairs if p.written)
            case MatrixProduct(a, b, out, bias):
                return (a.buffer, b.buffer, *(() if bias is None else (bias.buffer,))), (out.buffer,)
            case OperatorCall():
                read = tuple(view.buffer for view in step.views())
                return read, (*(buffer for _, _, buffer in step.results), *step.written)
