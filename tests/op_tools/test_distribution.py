"""Random operators: correct generators pass, and each kind of wrong one is told apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from op_tools.verdict.distribution import judge_random

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def status(name: str, args: tuple[Any, ...], *results: Any, **kwargs: Any) -> str:
    verdicts = judge_random(name, args, kwargs, results)
    assert len(verdicts) == len(results)
    return verdicts[0].status


N = 5000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_correct_generators_pass(dtype: torch.dtype) -> None:
    x = torch.zeros(N, dtype=dtype)
    assert status("torch.rand", (N,), torch.rand(N, dtype=dtype)) == "pass"
    assert status("torch.Tensor.uniform_", (x, -2.0, 3.0), x.clone().uniform_(-2, 3)) == "pass"
    assert status("aten.uniform_.default", (x,), x.clone().uniform_()) == "pass"
    assert status("torch.randn_like", (x,), torch.randn_like(x)) == "pass"
    assert status("torch.Tensor.normal_", (x, 1.0, 0.5), x.clone().normal_(1, 0.5)) == "pass"
    assert status("torch.Tensor.exponential_", (x, 2.0), x.clone().exponential_(2)) == "pass"
    assert status("torch.Tensor.cauchy_", (x,), x.clone().cauchy_()) == "pass"
    assert status("torch.Tensor.log_normal_", (x, 0.0, 1.0), x.clone().log_normal_(0, 1)) == "pass"
    assert status("torch.Tensor.geometric_", (x, 0.3), x.clone().geometric_(0.3)) == "pass"
    assert status("torch.Tensor.bernoulli_", (x, 0.3), x.clone().bernoulli_(0.3)) == "pass"


def test_correct_discrete_generators_pass() -> None:
    p = torch.rand(N)
    assert status("torch.bernoulli", (p,), torch.bernoulli(p)) == "pass"
    assert status("torch.randint", (3, 9, (N,)), torch.randint(3, 9, (N,))) == "pass"
    assert status("torch.randint", (9, (N,)), torch.randint(9, (N,))) == "pass"
    assert status("torch.Tensor.random_", (p, 4, 8), p.clone().random_(4, 8)) == "pass"
    assert status("torch.randperm", (50,), torch.randperm(50)) == "pass"
    assert status("torch.poisson", (p * 5,), torch.poisson(p * 5)) == "pass"
    weights = torch.tensor([0.0, 1.0, 2.0, 5.0])
    assert status("torch.multinomial", (weights, N, True), torch.multinomial(weights, N, True)) == "pass"
    assert status("torch.multinomial", (weights, 3), torch.multinomial(weights, 3)) == "pass"
    mean = torch.arange(N).float()
    assert status("torch.normal", (mean, 2.0), torch.normal(mean, 2.0)) == "pass"


def test_wrong_distributions_fail() -> None:
    x = torch.zeros(N)
    assert status("torch.rand", (N,), torch.rand(N) * 0.9) == "fail"
    assert status("torch.rand", (N,), torch.rand(N) + 0.5) == "fail"
    assert status("torch.rand", (N,), torch.zeros(N)) == "fail"
    assert status("torch.rand", (N,), torch.rand(50).repeat(100)) == "fail"
    assert status("torch.randn", (N,), torch.randn(N) * 1.2) == "fail"
    assert status("torch.Tensor.normal_", (x, 1.0, 0.5), torch.randn(N)) == "fail"
    assert status("torch.Tensor.exponential_", (x, 2.0), x.clone().exponential_(1)) == "fail"
    assert status("torch.Tensor.bernoulli_", (x, 0.3), x.clone().bernoulli_(0.4)) == "fail"
    assert status("torch.Tensor.bernoulli_", (x, 0.3), x + 0.3) == "fail"
    assert status("torch.randint", (3, 9, (N,)), torch.randint(3, 10, (N,))) == "fail"
    assert status("torch.randint", (0, 8, (N,)), torch.randint(0, 4, (N,))) == "fail"
    assert status("torch.poisson", (x + 4,), torch.poisson(x + 5)) == "fail"


def test_wrong_picks_fail() -> None:
    assert status("torch.randperm", (50,), torch.arange(50)) == "fail"
    assert status("torch.randperm", (4,), torch.tensor([0, 1, 1, 3])) == "fail"
    weights = torch.tensor([0.0, 1.0, 1.0])
    assert status("torch.multinomial", (weights, 2), torch.tensor([0, 1])) == "fail"
    assert status("torch.multinomial", (weights, 2), torch.tensor([1, 1])) == "fail"
    assert status("torch.multinomial", (weights, N, True), torch.ones(N, dtype=torch.int64)) == "fail"
    p = torch.tensor([0.0, 1.0, 0.5])
    assert status("torch.bernoulli", (p,), torch.tensor([1.0, 1.0, 0.0])) == "fail"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_keeps_scaled_values_at_its_rate(dtype: torch.dtype, p: float) -> None:
    x = torch.randn(N).to(dtype)
    name = "torch.nn.functional.dropout"
    right = functional.dropout(x, p)
    assert status(name, (x, p), right) == "pass"
    assert status(name, (x, p, True, True), right) == "pass"
    assert status(name, (x,), right * (1 - p) / 0.5, p=p) == ("fail" if p != 0.5 else "pass")
    assert status(name, (x, p), x.clone()) == "fail"
    assert status(name, (x, p), functional.dropout(x, p + 0.1) * (1 - p - 0.1) / (1 - p)) == "fail"
    one = right.clone()
    place = int(one.abs().argmax())
    one[place] *= 1.05
    assert status(name, (x, p), one) == "fail"


def test_dropout_with_its_mask() -> None:
    x = torch.randn(N)
    values, mask = torch.native_dropout(x, 0.3, True)
    assert status("aten.native_dropout.default", (x, 0.3, True), values, mask) == "pass"
    assert status("aten.native_dropout.default", (x, 0.3, True), values, ~mask) == "fail"
    assert status("torch.nn.functional.dropout", (x, 1.0), torch.zeros(N)) == "pass"


def test_dropout_of_channels() -> None:
    x = torch.randn(40, 50, 3, 3)
    right = functional.dropout2d(x, 0.4)
    assert status("torch.nn.functional.dropout2d", (x, 0.4), right) == "pass"
    assert status("torch.nn.functional.dropout2d", (x, 0.4), functional.dropout(x, 0.4)) == "fail"
    assert status("torch.nn.functional.dropout2d", (x, 0.4), right * 1.1) == "fail"


def test_slopes_of_rrelu() -> None:
    x = torch.randn(N)
    assert (
        status("torch.nn.functional.rrelu", (x,), functional.rrelu(x, training=True), training=True) == "pass"
    )
    assert (
        status("torch.nn.functional.rrelu", (x,), functional.rrelu(x, 0.5, 0.9, True), training=True)
        == "fail"
    )
    assert status("torch.nn.functional.rrelu", (x,), functional.leaky_relu(x, 0.2), training=True) == "fail"


def test_unknown_operators_are_not_judged_but_must_be_finite() -> None:
    x = torch.randn(4)
    verdicts = judge_random("mine.noise", (x,), {}, [x + 1])
    assert verdicts[0].status == "skipped" and "not judged" in verdicts[0].reason and verdicts[0].ok
    assert status("mine.noise", (x,), x * float("nan")) == "fail"


def test_small_samples_never_fail_by_chance() -> None:
    failed = 0
    for seed in range(300):
        generator = torch.Generator().manual_seed(seed)
        for count in (1, 2, 7, 60):
            x = torch.randn(count, generator=generator)
            drawn = torch.rand(count, generator=generator)
            kept = torch.where(drawn < 0.9, x / 0.9, 0.0)
            failed += status("torch.nn.functional.dropout", (x, 0.1), kept) == "fail"
            failed += status("torch.rand", (count,), drawn) == "fail"
    assert failed == 0
