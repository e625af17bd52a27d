"""dlinfer's C++ kernels beside torch: all linear layers of SmolLM2-135M by batch size, norms, activations, experts.

Both sides run in turn on one thread; the figure is the ratio of their best rounds in CPU time, since what else a machine does
only ever adds to a round. Quantised products are held against torch's in float32. GB/s counts every weight once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from dlinfer.reference import KERNELS as REFERENCE
from dlinfer.vendors.cpp import VENDOR
from report import Case, Options, Report

LAYERS, HIDDEN, INNER, KEYS, VOCABULARY = 30, 576, 1536, 192, 49152
# Rows and columns of the weights of one layer, then of the last one.
SHAPES = [
    (HIDDEN, HIDDEN),
    (KEYS, HIDDEN),
    (KEYS, HIDDEN),
    (HIDDEN, HIDDEN),
    (INNER, HIDDEN),
    (INNER, HIDDEN),
    (HIDDEN, INNER),
]
MODEL = [*SHAPES * LAYERS, (VOCABULARY, HIDDEN)]
BATCHES, QUICK_BATCHES = (1, 4, 8, 16, 64, 512), (1, 8)
GROUP = 64
# The largest ratios that are accepted.
TARGETS = {"float32, batch 1": 1.05, "float32, batch 8": 0.55, "bfloat16, batch 1": 0.8, "int8, batch 1": 0.4}

Work = Callable[[], object]


@dataclass(frozen=True)
class Subject:
    """A kernel and what it is compared with."""

    name: str
    kernel: Work
    torch: Work
    bytes: float  # of weights, or of everything that is read and written


def best(subject: Subject, rounds: int) -> tuple[float, float]:
    """The shortest rounds of (kernel, torch), in turn."""
    found = [float("inf"), float("inf")]
    for number in range(2 * rounds + 2):
        side = number % 2
        begin = time.thread_time()
        (subject.kernel, subject.torch)[side]()
        if number >= 2:  # the first round of each side warms up
            found[side] = min(found[side], time.thread_time() - begin)
    return found[0], found[1]


def each(
    function: Callable[..., Tensor],
    xs: dict[int, Tensor],
    weights: Sequence[tuple[int, tuple[Tensor | int | None, ...]]],
) -> Work:
    """Calls with all weights of a model, one after the other; each comes with the size of its input."""

    def work() -> None:
        for size, given in weights:
            function(xs[size], *given)

    return work


def inputs(batch: int, dtype: torch.dtype) -> dict[int, Tensor]:
    return {size: torch.randn(batch, size).to(dtype) for size in (HIDDEN, INNER)}


def floats(dtype: torch.dtype, batches: Sequence[int]) -> Iterator[Subject]:
    weights = [(i, (torch.randn(o, i).to(dtype),)) for o, i in MODEL]
    size = sum(o * i for o, i in MODEL) * dtype.itemsize
    for batch in batches:
        xs, name = inputs(batch, dtype), str(dtype).removeprefix("torch.")
        yield Subject(
            f"{name}, batch {batch}",
            each(VENDOR.kernels["linear"], xs, weights),
            each(linear, xs, weights),
            size,
        )


def integers(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, dtype=torch.int8 if high == 128 else torch.int32)


def quantised(batches: Sequence[int]) -> Iterator[Subject]:
    """Weights of 8 bits in both layouts, of 4 bits, and activations of 8 bits too."""
    plain = [(i, (torch.randn(o, i),)) for o, i in MODEL]
    eight = [(i, (integers(-128, 128, o, i).t(), torch.rand(o))) for o, i in MODEL]
    columns = [(i, (weight.contiguous(), scale)) for i, (weight, scale) in eight]
    four = [
        (
            i,
            (
                integers(-(2**31), 2**31, i, o // 8),
                torch.rand(i // GROUP, o),
                integers(-(2**31), 2**31, i // GROUP, o // 8),
                None,
                GROUP,
            ),
        )
        for o, i in MODEL
    ]
    size = float(sum(o * i for o, i in MODEL))
    matmul, product = VENDOR.kernels["weight_quant_matmul"], VENDOR.kernels["linear_w8a8"]
    quantise = VENDOR.kernels["dynamic_quant"]

    def w8a8(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        number, rows = quantise(x, torch.int8)
        result: Tensor = product(number, weight.t(), rows, scale, torch.float32, torch.int8)
        return result

    for batch in batches:
        xs = inputs(batch, torch.float32)
        beside = each(linear, xs, plain)
        yield Subject(f"int8, batch {batch}", each(matmul, xs, eight), beside, size)
        yield Subject(f"int8 by columns, batch {batch}", each(matmul, xs, columns), beside, size)
        yield Subject(
            f"int4 (AWQ, groups of {GROUP}), batch {batch}", each(matmul, xs, four), beside, size / 2
        )
        yield Subject(f"w8a8 with dynamic_quant, batch {batch}", each(w8a8, xs, eight), beside, size)


def small(batches: Sequence[int]) -> Iterator[Subject]:
    """What lies between the products: a thousand calls each, but for experts."""
    kernels = VENDOR.kernels
    weight = torch.randn(HIDDEN)

    def often(work: Work) -> Work:
        def thousand() -> None:
            for _ in range(1000):
                work()

        return thousand

    for batch in batches:
        x, residual, gates = (
            torch.randn(batch, HIDDEN),
            torch.randn(batch, HIDDEN),
            torch.randn(batch, 2 * INNER),
        )

        def added(x: Tensor = x, residual: Tensor = residual) -> Tensor:
            return rms_norm(x + residual, (HIDDEN,), weight, 1e-5)

        def gated(gates: Tensor = gates) -> Tensor:
            gate, up = gates.chunk(2, -1)
            return silu(gate) * up

        yield Subject(
            f"1000 add_rms_norm, batch {batch}",
            often(lambda x=x, residual=residual: kernels["add_rms_norm"](x, residual, weight, 1e-5)),  # type: ignore[misc]
            often(added),
            16e3 * x.numel(),
        )
        yield Subject(
            f"1000 silu_and_mul, batch {batch}",
            often(lambda gates=gates: kernels["silu_and_mul"](gates)),  # type: ignore[misc]
            often(gated),
            6e3 * gates.numel(),
        )
        yield experts(batch)


def experts(batch: int) -> Subject:
    """Two of eight experts for each token, as wide as SmolLM2's layers; beside the reference."""
    weights = torch.randn(8, 2 * INNER, HIDDEN) / 24, torch.randn(8, HIDDEN, INNER) / 40
    x, shares = torch.randn(batch, HIDDEN), torch.rand(batch, 2)
    ids = torch.stack([torch.randperm(8)[:2] for _ in range(batch)])
    given = (x, *weights, shares, ids, True)
    size = 4.0 * len(ids.unique()) * 3 * INNER * HIDDEN
    return Subject(
        f"fused_moe, batch {batch}",
        lambda: VENDOR.kernels["fused_moe"](*given),
        lambda: REFERENCE["fused_moe"](*given),
        size,
    )


def subjects(batches: Sequence[int]) -> Iterator[Subject]:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        yield from floats(dtype, batches)
    yield from quantised(batches)
    yield from small(batches)


def measure(options: Options) -> Report:
    """The benchmark."""
    if problem := VENDOR.problem():
        raise SystemExit(f"dlinfer_kernels: the vendor cpp cannot be used: {problem}")
    from dlinfer import _cpp

    torch.manual_seed(0)
    cases = []
    for subject in subjects(QUICK_BATCHES if options.quick else BATCHES):
        many = subject.name.endswith(("batch 64", "batch 512"))
        kernel, beside = best(subject, 1 if options.quick else 2 if many else 7)
        rate = subject.bytes / kernel / 1e9
        cells = [f"{kernel * 1e3:.1f} ms", f"{beside * 1e3:.1f} ms", f"{kernel / beside:.2f}", f"{rate:.1f}"]
        raw = {"kernel_s": kernel, "torch_s": beside, "bytes": subject.bytes}
        cases.append(Case(subject.name, kernel / beside, cells, TARGETS.get(subject.name), raw))
        options.say(f"{subject.name}: {', '.join(cells)}")
    notes = {"level": _cpp.cpu_capability(), "weights": sum(o * i for o, i in MODEL)}
    return Report("dlinfer's C++ kernels, one thread", ["cpp", "torch", "ratio", "GB/s"], cases, notes)
