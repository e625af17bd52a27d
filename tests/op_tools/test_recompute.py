"""Recomputation: the right values, and nothing of the caller's changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from op_tools.reference import Recomputation, RecomputeError, Reference
from op_tools.trees import flat_results, flat_tensors
from op_tools.verdict import judge, tolerance_for

pytestmark = pytest.mark.unit
ATEN = torch.ops.aten


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def test_own_is_the_function_itself() -> None:
    a, b = torch.randn(5, 4), torch.randn(4, 3)
    for func in (torch.mm, ATEN.mm.default, torch.Tensor.mm):
        assert torch.equal(Recomputation(func, (a, b)).own()[0], a @ b)


def test_results_are_flat_in_tree_order() -> None:
    x = torch.randn(3, 4)
    values, places = Recomputation(torch.Tensor.sort, (x,), {"dim": 1}).own()
    assert torch.equal(values, x.sort(1).values) and torch.equal(places, x.sort(1).indices)
    assert Recomputation(torch.Tensor.tolist, (torch.tensor([[1, 2], [3, 4]]),)).own() == [1, 2, 3, 4]
    assert Recomputation(torch.Tensor.item, (torch.tensor(2.5),)).own() == [2.5]
    assert flat_results({"a": x, "b": (None, 1, [x])}) == [x, 1, x]
    assert flat_tensors([x, [x, 3]], {"out": None, "weight": x}) == [x, x, x]


def test_truth_is_computed_in_double_precision() -> None:
    a, b = torch.randn(5, 400).half(), torch.randn(400, 3).half()
    truth = Recomputation(torch.mm, (a, b)).truth()
    assert truth is not None and torch.equal(truth[0], a.double() @ b.double())
    x = torch.randn(4, 6).bfloat16()
    truth = Recomputation(functional.softmax, (x, 1), {"dtype": torch.float32}).truth()
    assert truth is not None and torch.equal(truth[0], x.double().softmax(1))
    truth = Recomputation(ATEN._softmax.default, (x.half(), 1, True)).truth()
    assert truth is None or truth[0].dtype == torch.float64


def test_truth_of_integer_inputs_and_of_factories() -> None:
    a, b = torch.tensor([1, 2]), torch.tensor([3, 7])
    truth = Recomputation(torch.div, (a, b)).truth()
    assert truth is not None and torch.equal(truth[0], a.double() / b.double())
    truth = Recomputation(torch.linspace, (0, 1, 7)).truth()
    assert truth is not None and torch.equal(truth[0], torch.linspace(0, 1, 7, dtype=torch.float64))


def test_no_truth_where_there_is_no_kernel() -> None:
    def half_only(x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float16:
            raise RuntimeError("only half")
        return x + 1

    x = torch.ones(2, dtype=torch.float16)
    reference = Recomputation(half_only, (x,))
    assert torch.equal(reference.own()[0], x + 1)
    assert reference.truth() is None and reference.perturbed(1) is None


def test_perturbed_moves_every_result_by_about_one_rounding() -> None:
    x = torch.rand(2000) + 0.5
    reference = Recomputation(torch.mul, (x, 1.0))
    truth, first, again, other = reference.truth(), *(reference.perturbed(seed) for seed in (1, 1, 2))
    assert truth and first and again and other
    relative = (first[0] - truth[0]) / truth[0]
    assert 0.8 < float(relative.square().mean().sqrt()) / 2.0**-24 < 1.2
    assert torch.equal(first[0], again[0]) and not torch.equal(first[0], other[0])


@pytest.mark.parametrize(
    ("func", "extra"),
    [
        (torch.Tensor.add_, (1.0,)),
        (torch.Tensor.__iadd__, (1.0,)),
        (ATEN.add_.Tensor, (torch.ones(4),)),
        (torch.relu_, ()),
        (lambda x: functional.relu(x, inplace=True), ()),
    ],
)
def test_in_place_functions_run_on_clones(func: Any, extra: tuple[Any, ...]) -> None:
    x = torch.tensor([-1.0, 2.0, -3.0, 4.0])
    before = x.clone()
    reference = Recomputation(func, (x, *extra))
    own = reference.own()
    assert torch.equal(x, before) and x._version == 0
    assert len(own) == 1 and torch.equal(own[0], func(before.clone(), *extra))
    assert torch.equal(reference.mutated()[0], own[0])
    assert reference.written == [], "the output is the input: it is listed once"


def test_writes_to_what_is_not_returned_are_listed_behind_the_outputs() -> None:
    x = torch.zeros(3)
    reference = Recomputation(torch.Tensor.__setitem__, (x, 1, 5.0))
    assert [value.tolist() for value in reference.own()] == [[0.0, 5.0, 0.0]]
    assert reference.written == [0] and not x.any()
    out = torch.zeros(3)
    reference = Recomputation(torch.add, (x, 1), {"out": out})
    assert reference.own()[0].tolist() == [1.0, 1.0, 1.0] and len(reference.own()) == 1 and not out.any()


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics(training: bool) -> None:
    x, mean, var = torch.randn(20, 3), torch.zeros(3), torch.ones(3)
    reference = Recomputation(functional.batch_norm, (x, mean, var), {"training": training})
    own = reference.own()
    assert not mean.any() and bool((var == 1).all())
    mine, yours = mean.clone(), var.clone()
    expected = functional.batch_norm(x, mine, yours, training=training)
    assert torch.equal(own[0], expected)
    assert reference.written == ([1, 2] if training else [])
    if training:
        assert torch.equal(own[1], mine) and torch.equal(own[2], yours)


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_that_no_schema_mentions(training: bool) -> None:
    x, mean, var = torch.randn(20, 3), torch.zeros(3), torch.ones(3)
    args = (x, None, None, mean, var, training, 0.1, 1e-5)
    reference = Recomputation(torch.ops.aten.native_batch_norm.default, args)
    own, truth = reference.own(), reference.truth()
    assert not mean.any() and bool((var == 1).all())
    assert reference.written == ([1, 2] if training else []) and len(own) == 3 + len(reference.written)
    assert truth is not None and len(truth) == len(own)
    if training:
        torch.testing.assert_close(own[3], 0.1 * x.mean(0))
        torch.testing.assert_close(own[4], 0.9 + 0.1 * x.var(0))
        torch.testing.assert_close(truth[3], 0.1 * x.double().mean(0))


def test_running_statistics_that_stay_as_they_are_count_as_written() -> None:
    x, mean, var = torch.randn(20, 3), torch.zeros(3), torch.ones(3)
    reference = Recomputation(functional.batch_norm, (x, mean, var), {"training": True, "momentum": 0.0})
    assert reference.written == [1, 2] and torch.equal(reference.own()[1], mean)


def test_foreach_lists() -> None:
    tensors = [torch.zeros(2), torch.ones(3)]
    reference = Recomputation(torch._foreach_add_, (tensors, 1.0))
    assert [value.tolist() for value in reference.mutated()] == [[1.0, 1.0], [2.0, 2.0, 2.0]]
    assert not tensors[0].any()


def test_the_same_tensor_twice_stays_the_same_tensor() -> None:
    x = torch.tensor([1.0, 2.0])
    assert Recomputation(torch.Tensor.add_, (x, x)).own()[0].tolist() == [2.0, 4.0]
    assert Recomputation(torch.add, (x, x), {"out": x}).own()[0].tolist() == [2.0, 4.0]
    assert x.tolist() == [1.0, 2.0]


def test_gradients_of_the_wanted_inputs() -> None:
    x, w, b = torch.randn(4, 5), torch.randn(3, 5), torch.randn(3)
    grad = torch.randn(4, 3)
    reference = Recomputation(functional.linear, (x, w, b), grad_outputs=[grad], wants_grad=[0, 2])
    gx, gb = reference.own()
    torch.testing.assert_close(gx, grad @ w)
    torch.testing.assert_close(gb, grad.sum(0))
    truth = reference.truth()
    assert truth is not None and torch.equal(truth[0], grad.double() @ w.double())
    assert not (x.requires_grad or w.requires_grad or gx.requires_grad)


def test_gradients_of_in_place_and_of_many_outputs() -> None:
    x, grad = torch.randn(6), torch.randn(6)
    assert torch.equal(
        Recomputation(torch.Tensor.mul_, (x, 3.0), grad_outputs=[grad], wants_grad=[0]).own()[0], grad * 3
    )
    parts = Recomputation(torch.chunk, (x, 2), grad_outputs=[grad[:3], None], wants_grad=[0]).own()[0]
    assert torch.equal(parts, torch.cat((grad[:3], torch.zeros(3))))


def test_inner_roundings_show_in_the_noise_of_a_gradient() -> None:
    """One minus a saturated softmax: no change of the inputs shows how uncertain that is."""
    x = torch.zeros(1, 8)
    x[0, 0] = 16.0
    reference = Recomputation(functional.softmax, (x, 1), grad_outputs=[torch.ones(1, 8)], wants_grad=[0])
    truth = reference.truth()
    changes = [reference.perturbed(seed) for seed in range(1, 5)]
    assert truth is not None
    moved = max(float((change[0] - truth[0]).abs()[0, 0]) for change in changes if change is not None)
    assert moved > 2.0**-27


def test_the_callers_state_is_left_alone() -> None:
    x = torch.randn(100)
    state = torch.get_rng_state()
    Recomputation(functional.dropout, (x, 0.5)).own()
    Recomputation(torch.rand_like, (x,)).own()
    Recomputation(torch.Tensor.normal_, (x,)).own()
    reference = Recomputation(functional.gelu, (x,), grad_outputs=[x], wants_grad=[0])
    reference.own(), reference.truth(), reference.perturbed(3), reference.variant(4)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")
    assert torch.get_default_dtype() == torch.float32


def test_inference_mode_and_no_grad_of_the_caller() -> None:
    x = torch.randn(5)
    with torch.inference_mode():
        assert torch.equal(Recomputation(torch.Tensor.add_, (x.clone(), 1.0)).own()[0], x + 1)
    with torch.no_grad():
        grads = Recomputation(torch.exp, (x,), grad_outputs=[torch.ones(5)], wants_grad=[0]).own()
        torch.testing.assert_close(grads[0], x.exp())
        assert not torch.is_grad_enabled()


def test_devices_in_the_arguments_become_the_reference() -> None:
    x = torch.ones(2)
    assert Recomputation(torch.Tensor.to, (x, torch.device("meta"))).own()[0].device.type == "cpu"
    assert Recomputation(torch.Tensor.to, (x, "meta", torch.float64)).own()[0].dtype == torch.float64
    assert Recomputation(torch.zeros, (2,), {"device": "meta"}).own()[0].tolist() == [0.0, 0.0]
    with torch.device("meta"):
        assert Recomputation(torch.ones, (2,)).own()[0].tolist() == [1.0, 1.0]


def test_autocast_of_the_device_is_what_the_reference_computes() -> None:
    x, w = torch.randn(4, 8), torch.randn(3, 8)
    low = (True, torch.bfloat16)
    reference = Recomputation(functional.linear, (x, w), autocast=low)
    assert reference.own()[0].dtype == torch.bfloat16
    truth = reference.truth()
    assert truth is not None
    assert torch.equal(truth[0], x.bfloat16().double() @ w.bfloat16().double().t())
    assert Recomputation(functional.softmax, (x.bfloat16(), 1), autocast=low).own()[0].dtype == torch.float32
    assert (
        Recomputation(functional.linear, (x, w), autocast=(False, torch.bfloat16)).own()[0].dtype
        == torch.float32
    )
    with torch.autocast("cpu", torch.bfloat16):
        assert Recomputation(functional.linear, (x, w)).own()[0].dtype == torch.float32
        assert torch.is_autocast_enabled("cpu")


def test_a_failing_function_says_what_failed() -> None:
    with pytest.raises(RecomputeError, match="mm could not run on cpu: RuntimeError") as caught:
        Recomputation(torch.mm, (torch.zeros(2, 3), torch.zeros(2, 3))).own()
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_variants_are_other_samples_of_the_same_call() -> None:
    x = torch.rand(500).bfloat16()
    reference = Recomputation(torch.exp, (x,))
    found = reference.variant(7)
    assert found is not None
    own, truth = found
    assert own[0].dtype == torch.bfloat16 and truth[0].dtype == torch.float64
    assert not torch.equal(own[0], reference.own()[0])
    assert float(((own[0].double() - truth[0]) / truth[0]).abs().max()) < 2.0**-8


def test_a_recurrent_network_under_autocast_is_left_to_its_kernels() -> None:
    lstm = torch.nn.LSTM(4, 4)
    x, state = torch.randn(3, 2, 4), torch.zeros(1, 2, 4)
    args = (x, (state, state), list(lstm.parameters()), True, 1, 0.0, False, False, False)
    assert Recomputation(torch.lstm, args).own()[0].shape == (3, 2, 4)
    with pytest.raises(RecomputeError, match="at level aten"):
        Recomputation(torch.lstm, args, autocast=(True, torch.bfloat16)).own()


def test_a_tensor_that_is_given_twice_stays_one_in_every_answer() -> None:
    """`x @ x` has one gradient, the sum of both: in the call's own dtype and in float64 alike."""
    x, grad = torch.randn(3, 3), torch.randn(3, 3)
    reference = Recomputation(torch.matmul, (x, x), grad_outputs=[grad], wants_grad=[0])
    expected = grad.double() @ x.double().t() + x.double().t() @ grad.double()
    truth, moved, variant = reference.truth(), reference.perturbed(1), reference.variant(1)
    assert truth is not None and torch.allclose(truth[0], expected, rtol=1e-12, atol=1e-12)
    assert moved is not None and torch.allclose(moved[0], expected, rtol=1e-5, atol=1e-5)
    assert not torch.equal(moved[0], truth[0])
    assert variant is not None and torch.allclose(variant[0][0].double(), variant[1][0], rtol=1e-4, atol=1e-4)


class Halved(Reference):
    """A reference of something that is no PyTorch call: half of a tensor, rounded as the tensor is."""

    name = "halved"

    def __init__(self, x: torch.Tensor) -> None:
        self.args = (x,)
        self.asked: list[bool] = []

    def evaluate(self, args: Any, kwargs: Any, grad_outputs: Any, *, upcast: bool) -> list[Any]:
        self.asked.append(upcast)
        return [args[0] / 3 * 1.5]


def test_a_subclass_only_says_how_to_evaluate() -> None:
    x = torch.randn(40).half()
    reference = Halved(x)
    assert torch.equal(reference.own()[0], x / 3 * 1.5) and reference.own() is reference.own()
    truth = reference.truth()
    assert truth is not None and torch.equal(truth[0], x.double() / 3 * 1.5)
    assert reference.asked == [False, True]
    moved, variant = reference.perturbed(3), reference.variant(3)
    assert moved is not None and 0 < float((moved[0] - truth[0]).abs().max()) < 1e-6
    assert (
        variant is not None and variant[0][0].dtype == torch.float16 and variant[1][0].dtype == torch.float64
    )
    assert 0 < float((variant[1][0] - truth[0]).abs().max()) < 0.01
    tolerance = tolerance_for("halved", torch.float16)
    good = judge(x / 2, reference, 0, category="other", tolerance=tolerance)
    bad = judge(x / 2 * 1.05, reference, 0, category="other", tolerance=tolerance)
    assert (good.status, bad.status) == ("pass", "fail")
