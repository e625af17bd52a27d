"""The simulated chip's arithmetic.

Plain is the CPU's, bit for bit; reordered adds the same numbers up in another, equally accurate order. A
reordered result is judged as a real chip's would be: against a float64 truth, beside the CPU's own error.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from forked_python import run_python
from torch.nn import functional as F

from torch_dipu import dipu

pytestmark = pytest.mark.device

Function = Callable[..., torch.Tensor]
norm = torch.linalg.vector_norm


@dataclass(frozen=True)
class Case:
    """An operator and the shapes of its inputs."""

    name: str
    function: Function
    shapes: tuple[tuple[int, ...], ...]
    differ: float = 0.2  # at least so many of the results have other bits than the CPU's
    shared: tuple[
        int, ...
    ] = ()  # results along these dimensions share a sum: their errors are not independent

    def inputs(self, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(2023)
        return [torch.randn(shape, generator=generator).to(dtype) for shape in self.shapes]


def batch_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.batch_norm(x, None, None, weight, bias, training=True)


CASES = [
    Case("sum", lambda x: x.sum(1), ((2000, 700),)),
    Case("sum of columns", lambda x: x.sum(0), ((700, 2000),)),
    Case("sum of two dimensions", lambda x: x.sum((0, 2)), ((30, 1000, 30),)),
    Case("mean", lambda x: x.abs().mean(1), ((2000, 700),)),
    Case("vector norm", lambda x: norm(x, dim=1), ((2000, 1000),)),
    Case("softmax", lambda x: torch.softmax(x, 1), ((500, 700),), shared=(1,)),
    # what differs is one sum a row, behind a logarithm and beside a much larger rounding
    Case("log_softmax", lambda x: torch.log_softmax(x, 1), ((500, 700),), differ=0.02, shared=(1,)),
    Case(
        "layer_norm", lambda x, w, b: F.layer_norm(x, (700,), w, b), ((500, 700), (700,), (700,)), shared=(1,)
    ),
    Case("group_norm", lambda x, w, b: F.group_norm(x, 8, w, b), ((64, 32, 15), (32,), (32,)), shared=(1, 2)),
    Case("batch_norm", batch_norm, ((8, 200, 9, 9), (200,), (200,)), shared=(0, 2, 3)),
    Case("mm", torch.mm, ((100, 700), (700, 100))),
    Case("mm of few", torch.mm, ((300, 24), (24, 300))),
    Case("mm halved", torch.mm, ((100, 400), (400, 100))),
    Case("mm transposed", lambda a, b: torch.mm(a.t(), b.t()), ((700, 100), (100, 700))),
    Case("bmm", torch.bmm, ((8, 40, 300), (8, 300, 40))),
    Case(
        "addmm", lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), ((100, 100), (100, 700), (700, 100))
    ),
    Case("baddbmm", torch.baddbmm, ((8, 40, 40), (8, 40, 300), (8, 300, 40))),
    Case("linear", F.linear, ((64, 500), (128, 500), (128,))),
    Case("conv2d", lambda x, w, b: F.conv2d(x, w, b, padding=1), ((4, 32, 14, 14), (24, 32, 3, 3), (24,))),
    Case(
        "conv2d of groups", lambda x, w: F.conv2d(x, w, stride=2, groups=4), ((4, 32, 15, 15), (24, 8, 3, 3))
    ),
    Case("conv2d depthwise", lambda x, w: F.conv2d(x, w, groups=32), ((4, 32, 14, 14), (32, 1, 3, 3))),
    Case("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), ((8, 16, 28, 28),)),
    Case("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (5, 3)), ((8, 64, 28, 28),)),
]
BY_NAME = {case.name: case for case in CASES}
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture
def reordered() -> Iterator[None]:
    before = dipu.option("numerics")
    dipu.configure(numerics="reordered")
    yield
    dipu.configure(numerics=before)


@pytest.fixture
def plain() -> Iterator[None]:
    before = dipu.option("numerics")
    dipu.configure(numerics="plain")
    yield
    dipu.configure(numerics=before)


def on_device(function: Function, inputs: list[torch.Tensor]) -> torch.Tensor:
    return function(*(x.to("dipu") for x in inputs)).cpu()


@dataclass(frozen=True)
class Errors:
    """A result's distance from the truth, beside the CPU's."""

    differ: float
    rms: float
    cpu_rms: float
    bias: float  # of the mean error, in standard errors

    @property
    def ratio(self) -> float:
        return self.rms / self.cpu_rms


def measure(
    result: torch.Tensor, cpu: torch.Tensor, truth: torch.Tensor, shared: tuple[int, ...] = ()
) -> Errors:
    error, cpu_error = result.double() - truth, cpu.double() - truth
    independent = (error.mean(shared) if shared else error).flatten()
    spread = independent.std().item() / math.sqrt(independent.numel())
    return Errors(
        differ=(result != cpu).double().mean().item(),
        rms=error.square().mean().sqrt().item(),
        cpu_rms=cpu_error.square().mean().sqrt().item(),
        bias=independent.mean().item() / spread if spread else 0.0,
    )


def truth_of(function: Function, inputs: list[torch.Tensor]) -> torch.Tensor:
    return function(*(x.double() for x in inputs))


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_plain_is_the_cpu_bit_for_bit(case: Case, dtype: torch.dtype, plain: None) -> None:
    inputs = case.inputs(dtype)
    assert torch.equal(on_device(case.function, inputs), case.function(*inputs))


@every_case
def test_reordered_has_other_bits_and_the_same_accuracy(case: Case, reordered: None) -> None:
    inputs = case.inputs()
    result, cpu = on_device(case.function, inputs), case.function(*inputs)
    errors = measure(result, cpu, truth_of(case.function, inputs), case.shared)
    assert errors.differ > case.differ, errors
    assert 0.5 < errors.ratio < 2, errors
    assert abs(errors.bias) < 5, errors


@every_case
def test_reordered_gives_the_same_bits_again(case: Case, reordered: None) -> None:
    inputs = case.inputs()
    assert torch.equal(on_device(case.function, inputs), on_device(case.function, inputs))


IN_HALF = ["sum", "mean", "softmax", "log_softmax", "layer_norm", "mm", "bmm", "addmm", "conv2d"]
WITH_GRADIENTS = [
    "softmax",
    "log_softmax",
    "layer_norm",
    "batch_norm",
    "linear",
    "bmm",
    "conv2d",
    "avg_pool2d",
]


@pytest.mark.parametrize("name", IN_HALF)
def test_half_precision_is_rounded_once(name: str, reordered: None) -> None:
    """Sums are kept in float32: the error is that of the last rounding, as on the CPU."""
    case = BY_NAME[name]
    inputs = case.inputs(torch.bfloat16)
    result, truth = on_device(case.function, inputs), truth_of(case.function, inputs)
    errors = measure(result, case.function(*inputs), truth, case.shared)
    rounding = (truth.bfloat16().double() - truth).square().mean().sqrt().item()
    assert result.dtype == torch.bfloat16
    assert 0.5 < errors.ratio < 1.1, errors
    assert errors.rms < 1.1 * rounding or name == "log_softmax", (errors, rounding)
    assert abs(errors.bias) < 5, errors


def test_half_precision_products_differ_where_a_sum_lies_between_two_numbers(reordered: None) -> None:
    a, b = Case("", torch.mm, ((400, 3000), (3000, 400))).inputs(torch.bfloat16)
    different = (on_device(torch.mm, [a, b]) != a @ b).sum().item()
    assert 0 < different < 0.05 * 400 * 400


def gradients(function: Function) -> Callable[..., list[torch.Tensor]]:
    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        leaves = [x.detach().requires_grad_() for x in inputs]
        out = function(*leaves)
        slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(5))
        return list(torch.autograd.grad(out, leaves, slope.to(out)))

    return run


@pytest.mark.parametrize("name", [*WITH_GRADIENTS, "conv2d of groups"])
def test_reordered_gradients(name: str, reordered: None) -> None:
    case = BY_NAME[name]
    inputs, run = case.inputs(), gradients(case.function)
    on_chip = [g.cpu() for g in run(*(x.to("dipu") for x in inputs))]
    on_cpu, truths = run(*inputs), run(*(x.double() for x in inputs))
    for result, cpu, truth in zip(on_chip, on_cpu, truths, strict=True):
        errors = measure(result, cpu, truth)
        assert errors.differ > 0.02, errors
        assert errors.ratio < 2, errors


def test_reordered_embedding_gradient(reordered: None) -> None:
    generator = torch.Generator().manual_seed(7)
    words = torch.randint(0, 40, (60, 50), generator=generator)
    table, slope = torch.randn(40, 32, generator=generator), torch.randn(60, 50, 32, generator=generator)

    def gradient(device: str, dtype: torch.dtype, scale: bool) -> torch.Tensor:
        leaf = table.to(device, dtype).requires_grad_()
        out = F.embedding(words.to(device), leaf, padding_idx=3, scale_grad_by_freq=scale)
        return torch.autograd.grad(out, leaf, slope.to(device, dtype))[0].cpu()

    for scale in (False, True):
        result, cpu = gradient("dipu", torch.float32, scale), gradient("cpu", torch.float32, scale)
        errors = measure(result, cpu, gradient("cpu", torch.float64, scale))
        assert errors.differ > 0.2, errors
        assert 0.5 < errors.ratio < 2, errors
        assert result[3].eq(0).all()


def test_running_statistics_follow_the_cpu(reordered: None) -> None:
    x = torch.randn(16, 8, 20, generator=torch.Generator().manual_seed(1)) * 3 + 2
    mean, var = torch.full((8,), 0.5), torch.full((8,), 2.0)
    chip_mean, chip_var = mean.to("dipu"), var.to("dipu")
    F.batch_norm(x, mean, var, training=True, momentum=0.3)
    F.batch_norm(x.to("dipu"), chip_mean, chip_var, training=True, momentum=0.3)
    torch.testing.assert_close(chip_mean.cpu(), mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(chip_var.cpu(), var, rtol=1e-6, atol=1e-6)


def special() -> torch.Tensor:
    x = torch.randn(9, 40, generator=torch.Generator().manual_seed(3))
    x[0, 3], x[1, 5], x[2, 6], x[3, 1], x[3, 30] = math.nan, math.inf, -math.inf, math.inf, -math.inf
    x[4], x[5], x[6], x[7], x[8] = -math.inf, math.inf, 0.0, -0.0, 1e10
    return x


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(1), lambda x: x.mean(0), lambda x: x.sum(),
        lambda x: norm(x, dim=1), lambda x: norm(x, 3, dim=0),
        lambda x: norm(x, 0, dim=1), lambda x: norm(x, math.inf, dim=1),
        lambda x: torch.softmax(x, 1), lambda x: torch.log_softmax(x, 0),
        lambda x: x @ x.t(),
        lambda x: torch.addmm(x[:, :9], x, x.t(), beta=0), lambda x: torch.addmm(x[:, :9], x, x.t(), alpha=0),
        lambda x: F.layer_norm(x, (40,)), lambda x: F.batch_norm(x, None, None, training=True),
    ],
)  # fmt: skip
def test_special_values_go_the_same_way(function: Function, reordered: None) -> None:
    x = special()
    torch.testing.assert_close(on_device(function, [x]), function(x), rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(0), lambda x: x.sum(1), lambda x: x.mean(0), lambda x: x.sum(),
        lambda x: x.t() @ x, lambda x: torch.addmm(torch.ones(5, 5, device=x.device), x.t(), x, beta=2),
        lambda x: torch.softmax(x, 1), lambda x: norm(x),
    ],
)  # fmt: skip
def test_nothing_to_add_up(function: Function, reordered: None) -> None:
    x = torch.empty(0, 5)
    torch.testing.assert_close(on_device(function, [x]), function(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("count_include_pad", [True, False])
@pytest.mark.parametrize("ceil_mode", [True, False])
@pytest.mark.parametrize("divisor", [None, 3, -2])
def test_windows_are_counted_as_on_the_cpu(
    count_include_pad: bool, ceil_mode: bool, divisor: int | None, reordered: None
) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(x, (3, 4), (2, 3), (1, 2), ceil_mode, count_include_pad, divisor)

    x = torch.randn(2, 3, 9, 11, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(on_device(run, [x]), run(x), rtol=1e-5, atol=1e-6)
    on_chip, on_cpu = gradients(run)(x.to("dipu"))[0], gradients(run)(x)[0]
    torch.testing.assert_close(on_chip.cpu(), on_cpu, rtol=1e-5, atol=1e-6)


def test_the_environment_chooses() -> None:
    code = (
        "import torch, torch_dipu; x = torch.randn(500, 700, generator=torch.Generator().manual_seed(0));"
        "print(torch.dipu.option('numerics'), torch.equal(x.to('dipu').sum(1).cpu(), x.sum(1)))"
    )
    for value, expected in (("plain", "plain True"), ("reordered", "reordered False")):
        done = run_python(
            "-c", code, timeout=180, check=True, env={**os.environ, "DIPU_HOST_NUMERICS": value}
        )
        assert done.stdout.splitlines()[-1] == expected


def test_the_judge_sees_what_is_no_reordering() -> None:
    """The CPU's own bits, noise on top of them, and rounding that leans to one side."""
    case = BY_NAME["sum"]
    inputs = case.inputs()
    cpu, truth = case.function(*inputs), truth_of(case.function, inputs)
    assert measure(cpu, cpu, truth).differ == 0
    noise = torch.randn(cpu.shape, generator=torch.Generator().manual_seed(0))
    assert measure(cpu + 1e-6 * cpu * noise, cpu, truth).ratio > 2
    leaning = torch.where(cpu.double() > truth, torch.nextafter(cpu, -torch.inf * torch.ones(())), cpu)
    assert measure(leaning, cpu, truth).bias < -5
