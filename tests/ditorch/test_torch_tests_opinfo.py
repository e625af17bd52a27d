"""The sweep is only worth something if it finds what is wrong: operators with planted faults must be caught.

A planted operator is two-faced: the sweep calls the CPU's side first and the device's second, so every second
call of `Twofaced` takes the other function. That needs no device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's operator database needs it")

from torch.testing._internal.opinfo.core import ErrorInput, OpInfo, SampleInput

from _ditorch.torch_tests import OpInfoCheck, Pair, State
from _ditorch.torch_tests.opinfo import pairs
from _ditorch.torch_tests.opinfo.checks import judged as judge
from _ditorch.torch_tests.opinfo.inputs import is_factory
from _ditorch.torch_tests.opinfo.judge import PairJudge
from _ditorch.torch_tests.outcomes import OpInfoOptions, PairOutcome, PairSelection

# planted operators


WIDE = (torch.float64, torch.complex128)


class Twofaced:
    """The CPU's side is right, the device's is not; the wider reference is the CPU's."""

    def __init__(self, right: Callable[..., Any], wrong: Callable[..., Any]) -> None:
        self.sides = right, wrong
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(arg, torch.Tensor) and arg.dtype in WIDE for arg in args):
            return self.sides[0](*args, **kwargs)
        self.calls += 1
        return self.sides[(self.calls - 1) % 2](*args, **kwargs)


class WrongOut(Twofaced):
    """The device's side is wrong only when it is told where to write."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs) if "out" in kwargs else self.sides[0](*args, **kwargs)


class HalfGradient(torch.autograd.Function):
    """A right answer with a wrong derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def raises(*_: Any) -> Any:
    raise RuntimeError("refused")


def off_by_little(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) + 1e-3


def two_samples(op: Any, device: str, dtype: torch.dtype, requires_grad: bool, **_: Any) -> Any:
    for size in ((), (2, 3)):
        yield SampleInput(torch.ones(size, device=device, dtype=dtype).requires_grad_(requires_grad))


def one_wrong_input(op: Any, device: str, **_: Any) -> Any:
    yield ErrorInput(
        SampleInput(torch.ones(2, device=device)), error_type=RuntimeError, error_regex="refused"
    )


def planted(name: str, right: Callable[..., Any], wrong: Callable[..., Any], **settings: Any) -> OpInfo:
    settings = {
        "dtypes": (torch.float32,),
        "sample_inputs_func": two_samples,
        "supports_autograd": False,
        "supports_out": False,
        **settings,
    }
    return OpInfo(f"planted_{name}", op=Twofaced(right, wrong), **settings)


OPTIONS = OpInfoOptions(device="cpu")


def judged(
    op: Any, check: OpInfoCheck = OpInfoCheck.FORWARD, dtype: str = "float32", **options: Any
) -> PairOutcome:
    return judge(
        PairJudge(op, Pair(check, op.full_name, dtype), OpInfoOptions(device="cpu", **options), True)
    )


# what the judge must find


def test_right_operator_passes_with_all_samples() -> None:
    outcome = judged(planted("right", torch.sin, torch.sin))
    assert (outcome.state, outcome.samples, outcome.problems) == (State.PASSED, 2, [])


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (torch.sin, off_by_little, r"1 of 1 elements differ, max abs 0.001, max rel 0.0011"),
        (torch.sin, lambda x: torch.sin(x).double(), "dtype torch.float64 instead of torch.float32"),
        (torch.sin, lambda x: torch.sin(x)[None], "shape torch.Size([1]) instead of torch.Size([])"),
        (torch.sin, lambda x: torch.sin(x).to("meta"), "is on meta, not on cpu"),
        (torch.sin, lambda x: (torch.sin(x),), "structure"),
        (torch.sin, lambda x: 0.84, "float instead of Tensor"),
        (torch.Tensor.item, lambda x: 2.0, "2.0 instead of 1.0"),
        (lambda x: x.view(-1), lambda x: x.view(-1).clone(), "a new tensor instead of a view"),
        (lambda x: x.clone(), lambda x: x, "a view instead of a new tensor"),
        (torch.Tensor.to_sparse, lambda x: (2 * x).to_sparse(), "_values(): 1 of 1 elements differ"),
        (raises, torch.sin, "accepted, but the CPU raises RuntimeError: refused"),
    ],
)
def test_wrong_answer_fails_and_says_why(right: Any, wrong: Any, said: str) -> None:
    outcome = judged(planted("wrong", right, wrong), max_samples=1)
    assert outcome.state is State.FAILED
    assert said in outcome.message


def test_exception_on_the_device_is_an_error_with_its_traceback() -> None:
    outcome = judged(planted("raising", torch.sin, raises))
    assert (outcome.state, len(outcome.problems)) == (State.ERROR, 2)
    assert outcome.message == "sample 0: RuntimeError: refused"
    assert "in raises" in outcome.problems[0].detail


def test_an_error_outweighs_a_wrong_answer() -> None:
    op = planted("mixed", torch.sin, lambda x: raises() if x.dim() else torch.cos(x))
    outcome = judged(op)
    assert outcome.state is State.ERROR
    assert outcome.message.startswith("sample 1: RuntimeError")


def test_nothing_compared_is_not_a_pass() -> None:
    assert (
        judged(planted("empty", torch.sin, torch.sin, sample_inputs_func=lambda *a, **k: [])).state
        is State.ERROR
    )
    outcome = judged(planted("raising", raises, raises))
    assert outcome.state is State.ERROR
    assert outcome.message == "both sides refuse all 2 samples: RuntimeError: refused"


def test_wrong_gradient_is_found_although_the_result_is_right() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    wrong = planted("gradient", double, HalfGradient.apply, supports_autograd=True)
    right = planted("gradient", double, double, supports_autograd=True)
    assert judged(wrong, OpInfoCheck.FORWARD).state is State.PASSED
    outcome = judged(wrong, OpInfoCheck.GRADIENT)
    assert outcome.state is State.FAILED
    assert "gradient: 1 of 1 elements differ" in outcome.message
    assert judged(right, OpInfoCheck.GRADIENT).state is State.PASSED


def test_missing_gradient_is_found() -> None:
    op = planted("detached", lambda x: x * 2, lambda x: x.detach() * 2 + 0 * x.sum(), supports_autograd=True)
    assert judged(op, OpInfoCheck.GRADIENT).state is State.FAILED
    op = planted("constant", lambda x: x * 2, lambda x: x.detach() * 2, supports_autograd=True)
    assert judged(op, OpInfoCheck.GRADIENT).state is State.FAILED


def test_inputs_that_must_be_refused() -> None:
    def other(*_: Any) -> Any:
        raise NotImplementedError("no such operator")

    def op(right: Any, wrong: Any) -> OpInfo:
        return planted("refuse", right, wrong, error_inputs_func=one_wrong_input)

    assert judged(op(raises, raises), OpInfoCheck.ERRORS, "-").state is State.PASSED
    assert "accepted, but" in judged(op(raises, torch.sin), OpInfoCheck.ERRORS, "-").message
    assert judged(op(raises, other), OpInfoCheck.ERRORS, "-").state is State.FAILED


def test_same_seed_for_both_sides_and_form_only_without_it() -> None:
    op = planted("random", torch.rand_like, torch.rand_like)
    assert judged(op).state is State.PASSED
    other = planted("random", torch.rand_like, lambda x: torch.rand_like(x) / 2)
    assert judged(other).state is State.FAILED
    pair = Pair(OpInfoCheck.FORWARD, other.full_name, "float32")
    assert (
        judge(PairJudge(other, pair, OpInfoOptions(device="cpu"), bit_equal_rng=False)).state is State.PASSED
    )
    shape = planted("random", torch.rand_like, lambda x: torch.rand_like(x)[None])
    assert (
        judge(PairJudge(shape, pair, OpInfoOptions(device="cpu"), bit_equal_rng=False)).state is State.FAILED
    )


def test_undefined_values_are_compared_by_form() -> None:
    op = planted("empty", torch.zeros_like, torch.ones_like)
    assert judged(op).state is State.FAILED
    assert judged(op, undefined_values=frozenset({op.full_name})).state is State.PASSED


def test_operator_that_writes_to_its_argument_is_compared_from_the_same_start() -> None:
    op = planted("writing", lambda x: x.add_(1).clone(), lambda x: x.add_(1).clone())
    assert judged(op).state is State.PASSED


def test_a_wrong_in_place_form_is_found() -> None:
    wrong = Twofaced(torch.Tensor.sin_, torch.Tensor.cos_)
    op = planted("inplace", torch.sin, torch.sin, inplace_variant=wrong)
    assert judged(op).state is State.PASSED
    assert "in place[0]: 1 of 1" in judged(op, OpInfoCheck.INPLACE).message
    other = Twofaced(torch.Tensor.sin_, lambda x: x.sin_().clone())
    op = planted("inplace", torch.sin, torch.sin, inplace_variant=other)
    assert "in place[0]: a new tensor instead of a view" in judged(op, OpInfoCheck.INPLACE).message


def wrong_out(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch.cos(x, out=out)


def keeps_strides_wrong(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """Writes as if there were no gaps between the elements."""
    if out.is_contiguous() or out.shape != x.shape:
        return torch.sin(x, out=out)
    out.as_strided(out.shape, torch.empty(out.shape).stride()).copy_(torch.sin(x))
    return out


def takes_integers(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return torch.sin(x, out=out) if out.is_floating_point() else out.copy_(torch.sin(x))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (wrong_out, "out=[0]: 1 of 1 elements differ"),
        (lambda x, out: torch.sin(x), "out=[1]: False instead of True"),
        (lambda x, out: torch.sin(x, out=out).clone(), "out=[1]: False instead of True"),
        (keeps_strides_wrong, "out= with gaps[0]: "),
        (takes_integers, "out= of integers: accepted, but the CPU raises"),
    ],
)
def test_a_wrong_out_form_is_found(wrong: Any, said: str) -> None:
    op = OpInfo(
        "planted_out",
        op=WrongOut(torch.sin, wrong),
        dtypes=(torch.float32,),
        sample_inputs_func=two_samples,
    )
    assert judged(op).state is State.PASSED
    outcome = judged(op, OpInfoCheck.OUT)
    assert outcome.state is State.FAILED
    assert any(said in problem.message for problem in outcome.problems)


def test_right_out_and_in_place_forms_pass_and_refusals_of_both_are_counted() -> None:
    op = next(op for op in pairs.operators(OpInfoOptions.op_db).values() if op.full_name == "sin")
    for dtype in ("float32", "int64"):
        assert judged(op, OpInfoCheck.OUT, dtype).state is State.PASSED
        outcome = judged(op, OpInfoCheck.INPLACE, dtype)
        assert (outcome.state, outcome.refused == outcome.samples) == (State.PASSED, dtype == "int64")


def test_a_pair_whose_samples_have_no_such_form_is_not_called_passed() -> None:
    def broadcasting(op: Any, device: str, dtype: torch.dtype, requires_grad: bool, **_: Any) -> Any:
        yield SampleInput(torch.ones(2, device=device, dtype=dtype), broadcasts_input=True)

    op = planted(
        "broadcasting",
        torch.sin,
        torch.sin,
        sample_inputs_func=broadcasting,
        inplace_variant=torch.Tensor.sin_,
    )
    outcome = judged(op, OpInfoCheck.INPLACE)
    assert (outcome.state, outcome.reason) == (State.SKIPPED, "No sample of the operator has this form.")


def test_samples_with_gaps_find_an_operator_that_ignores_strides() -> None:
    def ignores_strides(x: torch.Tensor) -> torch.Tensor:
        return torch.sin(x.as_strided(x.shape, torch.empty(x.shape).stride()))

    op = planted("strides", torch.sin, ignores_strides)
    assert judged(op).state is State.PASSED
    assert judged(op, OpInfoCheck.NONCONTIGUOUS).state is State.FAILED


def test_dtypes_that_only_one_side_takes_are_found() -> None:
    def only(*dtypes: torch.dtype) -> Callable[..., Any]:
        return lambda x: torch.sin(x) if x.dtype in dtypes else raises()

    def op(device: Callable[..., Any]) -> OpInfo:
        made = planted("dtypes", torch.sin, torch.sin)
        made.op = TwofacedAnyDtype(only(torch.float32), device)
        return made

    assert judged(op(only(torch.float32)), OpInfoCheck.DTYPES, "-").state is State.PASSED
    found = judged(op(only(torch.float32, torch.int8)), OpInfoCheck.DTYPES, "-")
    assert "int8 forward, sample 0: accepted, but the CPU raises" in found.message
    assert "float32 forward, sample 0: RuntimeError" in judged(op(only()), OpInfoCheck.DTYPES, "-").message
    declared = judged(op(only(torch.float32)), OpInfoCheck.DTYPES, "-", dtypes_of="cuda")
    assert declared.state is State.PASSED


class TwofacedAnyDtype(Twofaced):
    """Without an exception for the wider reference."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.sides[(self.calls - 1) % 2](*args, **kwargs)


def test_factories_are_recognised_by_their_schema() -> None:
    assert all(is_factory(name) for name in ("arange", "linspace", "logspace", "eye", "zeros", "randint"))
    assert not any(
        is_factory(name) for name in ("add", "zeros_like", "new_full", "normal", "resize_", "no_such")
    )


# the real database


def test_every_operator_dtype_pair_is_planned() -> None:
    ops = pairs.operators(OpInfoOptions.op_db)
    planned = pairs.build(ops.values(), PairSelection(), OPTIONS)
    counts = {check: sum(pair.check is check for pair in planned) for check in OpInfoCheck}
    assert len(set(planned)) == len(planned)
    assert counts[OpInfoCheck.FORWARD] == sum(len(op.dtypes) for op in ops.values())
    differentiable = [op for op in ops.values() if op.supports_autograd]
    with_dtype = [
        op for op in differentiable if any(d.is_floating_point or d.is_complex for d in op.backward_dtypes)
    ]
    assert counts[OpInfoCheck.GRADIENT] == len(with_dtype)
    if torch.__version__.startswith("2.13."):
        assert (len(ops), counts[OpInfoCheck.FORWARD], counts[OpInfoCheck.GRADIENT]) == (702, 6121, 543)
    quick = pairs.build(ops.values(), PairSelection(checks=(OpInfoCheck.FORWARD,), one_dtype=True), OPTIONS)
    assert {pair.op for pair in quick} == {pair.op for pair in planned if pair.check is OpInfoCheck.FORWARD}
    assert len(quick) == len({pair.op for pair in quick})
