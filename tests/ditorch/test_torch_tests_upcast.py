"""Who is right where device and CPU differ: a better device passes, a wrong one still fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's operator database needs it")

from torch.testing._internal.common_dtype import custom_types
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from _ditorch.torch_tests import OpInfoCheck, Pair, PairOutcome, Problem, State
from _ditorch.torch_tests.opinfo import pairs
from _ditorch.torch_tests.opinfo.checks import judged
from _ditorch.torch_tests.opinfo.compare import Tolerance
from _ditorch.torch_tests.opinfo.judge import PairJudge
from _ditorch.torch_tests.opinfo.upcast import UpcastReference
from _ditorch.torch_tests.opinfo.worker import mark_skipped_by_torch
from _ditorch.torch_tests.outcomes import OpInfoOptions, PairSelection


def samples(op: Any, device: str, dtype: torch.dtype, requires_grad: bool, **_: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(64, 64, generator=generator).to(dtype)
    yield SampleInput(values.requires_grad_(requires_grad))


def rounding_each_step(x: torch.Tensor) -> torch.Tensor:
    """As a kernel for halves without a wider accumulator: every partial sum is rounded to the dtype."""
    total = torch.zeros_like(x[:, 0])
    for column in x.unbind(1):
        total = total + column
    return total


def rounding_once(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float64).sum(1).to(x.dtype)


class Sides:
    """The CPU's function, then the device's; in a wider dtype always the CPU's."""

    def __init__(self, low: torch.dtype, cpu: Callable[..., Any], device: Callable[..., Any]) -> None:
        self.low, self.sides, self.calls = low, (cpu, device), 0

    def __call__(self, x: torch.Tensor) -> Any:
        if x.dtype != self.low:
            return self.sides[0](x)
        self.calls += 1
        return self.sides[(self.calls - 1) % 2](x)


def outcome(
    low: torch.dtype,
    cpu: Callable[..., Any],
    device: Callable[..., Any],
    check: OpInfoCheck = OpInfoCheck.FORWARD,
) -> PairOutcome:
    op = OpInfo(
        "planted", op=Sides(low, cpu, device), dtypes=(low,), sample_inputs_func=samples, supports_out=False
    )
    pair = Pair(check, "planted", pairs.name_of(low))
    return judged(PairJudge(op, pair, OpInfoOptions("cpu"), bit_equal_rng=True))


HALVES = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize("low", HALVES)
def test_a_device_that_rounds_less_than_the_cpu_passes_and_is_counted(low: torch.dtype) -> None:
    found = outcome(low, rounding_each_step, rounding_once)
    assert (found.state, found.wider, found.verdict) == (State.PASSED, 1, 0)
    agreeing = outcome(low, rounding_once, rounding_once)
    assert (agreeing.state, agreeing.wider) == (State.PASSED, 0)


@pytest.mark.parametrize("low", HALVES)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda y: y * 1.05,
        lambda y: y + 0.25,
        lambda y: torch.zeros_like(y),
        lambda y: y.flip(0),
        lambda y: y.index_fill(0, torch.tensor([3]), 0.0),
        lambda y: y.index_fill(0, torch.tensor([3]), float("nan")),
    ],
)
def test_a_wrong_device_still_fails(low: torch.dtype, spoil: Callable[..., Any]) -> None:
    found = outcome(low, rounding_each_step, lambda x: spoil(rounding_once(x)))
    assert (found.state, found.wider, found.verdict) == (State.FAILED, 0, 0)


def test_a_wrong_form_is_not_hidden_by_numbers_that_can_be_excused() -> None:
    def pair(sum_: Callable[..., Any], second: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: (sum_(x), second(x))

    cpu = pair(rounding_each_step, lambda x: x + 1)
    assert outcome(torch.float16, cpu, pair(rounding_once, lambda x: x + 1)).state is State.PASSED
    found = outcome(torch.float16, cpu, pair(rounding_once, lambda x: (x + 1).float()))
    assert (found.state, "dtype torch.float32 instead of" in found.message) == (State.FAILED, True)
    found = outcome(torch.float16, cpu, pair(rounding_once, lambda x: x))
    assert (found.state, "a view instead of a new tensor" in found.message) == (State.FAILED, True)


def test_a_wrong_gradient_is_not_excused_by_a_wider_one() -> None:
    found = outcome(torch.float32, lambda x: x * 2, lambda x: x * 2, OpInfoCheck.GRADIENT)
    assert found.state is State.PASSED
    assert (
        outcome(torch.float32, lambda x: x * 2, lambda x: x * 2.001, OpInfoCheck.GRADIENT).state
        is State.FAILED
    )


def test_where_neither_agrees_the_verdict_wants_an_error_of_correct_arithmetic() -> None:
    """A sum of float32 in two orders, both off by more than the default tolerance: large terms cancel."""
    order = torch.randperm(192, generator=torch.Generator().manual_seed(1))

    def terms(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x * 20, -x * 20, x], 1)

    def straight(x: torch.Tensor) -> torch.Tensor:
        return rounding_each_step(terms(x))

    def shuffled(x: torch.Tensor) -> torch.Tensor:
        return rounding_each_step(terms(x)[:, order])

    found = outcome(torch.float32, straight, shuffled)
    assert (found.state, found.wider, found.verdict) == (State.PASSED, 0, 1)
    assert outcome(torch.float32, straight, lambda x: shuffled(x) + 1e-3).state is State.FAILED


def test_other_random_numbers_are_not_excused_by_the_verdict() -> None:
    arguments = torch.zeros(64)
    cpu, device = torch.rand(64), torch.rand(64) / 2
    call = UpcastReference(
        lambda x: torch.rand(64, dtype=torch.float64), arguments, cpu, device, torch.float32
    )
    assert call.agreement(Tolerance()) == ""


# what a device is held to


def test_pairs_are_those_that_both_the_cpu_and_the_device_declare() -> None:
    op = OpInfo(
        "planted",
        op=torch.sin,
        dtypes=(torch.float32, torch.float64, torch.int8),
        dtypesIfCUDA=custom_types(torch.float32, torch.float16, torch.int8),
        sample_inputs_func=samples,
        supports_out=False,
    )

    def forward(**settings: Any) -> set[str]:
        planned = pairs.build([op], PairSelection((OpInfoCheck.FORWARD,)), OpInfoOptions("cpu", **settings))
        return {pair.dtype for pair in planned}

    assert forward() == {"float32", "float64", "int8"}
    assert forward(dtypes_of="cuda") == {"float32", "int8"}
    assert forward(device_dtypes=frozenset({"float32"})) == {"float32"}


def test_dtypes_held_to_what_is_declared_for_another_device() -> None:
    def takes(*dtypes: torch.dtype) -> Callable[..., Any]:
        def run(x: torch.Tensor) -> torch.Tensor:
            if x.dtype not in dtypes:
                raise RuntimeError("not here")
            return x.clone()

        return run

    def found(op: Callable[..., Any]) -> PairOutcome:
        entry = OpInfo(
            "planted",
            op=op,
            dtypes=(torch.float32,),
            dtypesIfCUDA=custom_types(torch.float32, torch.int8),
            sample_inputs_func=samples,
            supports_out=False,
            supports_autograd=False,
        )
        return judged(
            PairJudge(
                entry, Pair(OpInfoCheck.DTYPES, "planted", "-"), OpInfoOptions("cpu", dtypes_of="cuda"), True
            )
        )

    assert found(takes(torch.float32, torch.int8)).state is State.PASSED
    assert (
        "int8 forward: declared, but refused: RuntimeError: not here" in found(takes(torch.float32)).message
    )
    more = found(takes(torch.float32, torch.int8, torch.bool))
    assert (more.state, "bool forward: accepted, but not declared" in more.message) == (State.FAILED, True)


def test_what_torch_itself_skips_is_recognised_by_its_decorators() -> None:
    ops = pairs.operators(OpInfoOptions.op_db)

    def marked(name: str, check: OpInfoCheck, device: str, state: State = State.FAILED) -> State:
        outcome = PairOutcome(Pair(check, name, "float32"), problems=[Problem(state, "planted")])
        mark_skipped_by_torch(ops[name], outcome, device)
        return outcome.state

    assert marked("sin", OpInfoCheck.FORWARD, "cuda") is State.FAILED
    assert marked("empty", OpInfoCheck.NONCONTIGUOUS, "cuda") is State.ARTEFACT
    assert marked("empty", OpInfoCheck.NONCONTIGUOUS, "cuda", State.CRASH) is State.CRASH
    assert marked("sin", OpInfoCheck.OUT, "cuda") is State.FAILED
