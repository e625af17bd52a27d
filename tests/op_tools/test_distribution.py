"""Random operators: correct generators pass, and each kind of wrong one is told apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

from op_tools.verdict.distribution import judge_random
from op_tools.verdict.distribution.evidence import SHARES
from op_tools.verdict.distribution.picks import sums_before

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
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        for count in (1, 2, 7, 60):
            x = torch.randn(count, generator=generator)
            drawn = torch.rand(count, generator=generator)
            kept = torch.where(drawn < 0.9, x / 0.9, 0.0)
            failed += status("torch.nn.functional.dropout", (x, 0.1), kept) == "fail"
            failed += status("torch.rand", (count,), drawn) == "fail"
    assert failed == 0


# What a distribution function alone does not see: 100,000 draws, as users are promised.
MANY = 100_000


def found(name: str, args: tuple[Any, ...], *results: Any) -> str:
    """What is said against a call; empty if it passes."""
    verdict = judge_random(name, args, {}, results)[0]
    assert verdict.status in ("pass", "fail")
    return verdict.reason if verdict.status == "fail" else ""


def test_one_nan_or_infinity_among_millions_is_seen() -> None:
    x = torch.randn(3_000_000)
    for broken, said in ((float("nan"), "1 of 3000000 values are NaN"), (float("inf"), "are infinite")):
        x[2_345_678] = broken
        assert said in found("torch.randn", (3_000_000,), x)
    x = torch.rand(3_000_000)
    x[1_234_567] = 1.0
    assert "which [0, 1) leaves out" in found("torch.rand", (3_000_000,), x)


def test_a_stretch_that_comes_again_is_seen_wherever_it_is() -> None:
    x = torch.randn(1_000_000)
    assert found("torch.randn", (1_000_000,), x) == ""
    x[700_123:703_123] = x[1_001:4_001]
    assert "come again" in found("torch.randn", (1_000_000,), x)
    source = torch.randn(1_000_000)
    keep = torch.rand(1_000_000) >= 0.1
    assert found("aten.native_dropout.default", (source, 0.1, True), source * keep / 0.9, keep) == ""
    keep[500_000:520_000] = keep[100_003:120_003]
    said = found("aten.native_dropout.default", (source, 0.1, True), source * keep / 0.9, keep)
    assert "come again" in said


def test_mean_variance_and_tails_of_normal_numbers() -> None:
    x = torch.randn(MANY)
    assert "variance" in found("torch.randn", (MANY,), x * 1.03)
    assert "mean" in found("torch.randn", (MANY,), x + 0.03)
    cut = torch.randn(MANY + 1000)
    assert "tail" in found("torch.randn", (MANY,), cut[cut.abs() < 3][:MANY])
    assert found("torch.randn", (MANY,), x) == ""


def test_draws_that_depend_on_each_other() -> None:
    x = torch.randn(MANY)
    pairs = x.view(-1, 2).clone()
    pairs[:, 1] = 0.3 * pairs[:, 0] + 0.91**0.5 * pairs[:, 1]
    assert "1 draws apart are correlated" in found("torch.randn", (MANY,), pairs.view(-1))
    assert found("torch.randn", (MANY,), x.sort().values)
    assert found("torch.randn", (MANY,), torch.cat([x[: MANY // 2], -x[: MANY // 2]]))
    radius = torch.randn(MANY // 2, 2).norm(dim=1).repeat_interleave(2)
    angle = torch.rand(MANY) * 2 * torch.pi
    assert "squares" in (said := found("torch.randn", (MANY,), radius * angle.cos())) or "distances" in said
    flags = (torch.rand(MANY // 2) < 0.3).float().repeat_interleave(2)
    assert found("aten.bernoulli_.float", (torch.zeros(MANY), 0.3), flags)


def test_lanes_bits_and_coincidences() -> None:
    x = torch.rand(MANY)
    whole = (x * 2**24).long()
    assert "digit 12" in found("torch.rand", (MANY,), (whole | 1 << 12).float() / 2**24)
    assert "are different" in found("torch.rand", (MANY,), torch.randint(4096, (MANY,)) / 4096)
    lanes = torch.randn(MANY)
    lanes[5::32] = lanes[5].item()
    assert found("torch.randn", (MANY,), lanes)
    assert "digit 0" in found("torch.randint", (50000, (MANY,)), torch.randint(25000, (MANY,)) * 2)


def test_discrete_distributions_at_their_jumps() -> None:
    zeros = torch.zeros(MANY)
    assert found("aten.geometric_.default", (zeros, 0.3), zeros.clone().geometric_(0.33))
    missing = zeros.clone().geometric_(0.3)
    assert found("aten.geometric_.default", (zeros, 0.3), torch.where(missing == 4, 5.0, missing))
    rates = torch.rand(MANY) * 20
    assert found("torch.poisson", (rates,), rates.round())
    assert found("torch.poisson", (rates,), torch.poisson(rates.roll(1)))
    assert found("torch.poisson", (rates,), torch.poisson(rates)) == ""
    count, p = torch.full((MANY,), 10.0), torch.full((MANY,), 0.3)
    assert found("torch.binomial", (count, p), torch.binomial(count, p)) == ""
    assert found("torch.binomial", (count, p), torch.poisson(count * p).clamp(max=10))
    assert found("torch.binomial", (count, p), torch.full((MANY,), 11.0)).startswith("values other than")


def test_every_element_follows_its_own_parameters() -> None:
    p = torch.rand(MANY)
    assert found("torch.bernoulli", (p,), torch.bernoulli(p)) == ""
    assert found("torch.bernoulli", (p,), (torch.rand(MANY) < 0.5).float())
    assert found("torch.bernoulli", (p,), torch.bernoulli(0.9 * p + 0.05))
    assert found("torch.bernoulli", (p,), torch.bernoulli(p.roll(1)))
    mean, deviation = torch.randn(MANY), torch.rand(MANY) + 0.5
    assert found("torch.normal", (mean, deviation), torch.normal(mean, deviation)) == ""
    same = torch.normal(mean, torch.ones(MANY) * deviation.square().mean().sqrt())
    assert found("torch.normal", (mean, deviation), same)
    # x.bernoulli_() fills x at a rate of a half, whatever x was.
    assert found("aten.bernoulli_.float", (p,), p.clone().bernoulli_()) == ""


def test_permutations_are_uniform_among_all() -> None:
    count = 10_000
    assert found("torch.randperm", (count,), torch.randperm(count)) == ""
    assert found("torch.randperm", (count,), torch.arange(count).roll(1234))
    half = torch.cat([torch.randperm(count // 2), torch.arange(count // 2, count)])
    assert found("torch.randperm", (count,), half)
    within = (torch.arange(0, count, 100)[:, None] + torch.rand(100, 100).argsort(1)).view(-1)
    assert found("torch.randperm", (count,), within)


def test_sums_before_are_those_of_two_loops() -> None:
    rows = torch.tensor([0] * 7 + [1] * 5)
    keys = torch.cat([torch.randperm(7), torch.randperm(5)])
    weights = torch.rand(12, dtype=torch.float64)
    expected = [
        sum(float(weights[j]) for j in range(i) if rows[j] == rows[i] and keys[j] < keys[i])
        for i in range(12)
    ]
    assert sums_before(rows, keys, weights).tolist() == pytest.approx(expected)


def test_picks_without_replacement_follow_the_weights_of_what_is_left() -> None:
    weights = torch.rand(20_000, 20)
    right = torch.multinomial(weights, 4)
    assert found("torch.multinomial", (weights, 4), right) == ""
    assert found("torch.multinomial", (weights, 4), torch.multinomial(torch.ones_like(weights), 4))
    assert found("torch.multinomial", (weights, 4), right.sort(1).values)
    rest = torch.multinomial(torch.ones_like(weights).scatter_(1, right[:, :1], 0.0), 3)
    assert found("torch.multinomial", (weights, 4), torch.cat([right[:, :1], rest], 1))
    long = torch.rand(20_000) + 0.1
    assert found("torch.multinomial", (long, 10_000), torch.multinomial(long, 10_000)) == ""
    assert found("torch.multinomial", (long, 10_000), torch.randperm(20_000)[:10_000])


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    x = torch.randn(MANY)
    name = "torch.nn.functional.alpha_dropout"
    assert found(name, (x, 0.2, True), functional.alpha_dropout(x, 0.2, True)) == ""
    assert "neither" in found(name, (x, 0.2, True), functional.dropout(x, 0.2))
    assert "neither" in found(name, (x, 0.2, True), functional.alpha_dropout(x, 0.2, True) * 1.01)


def test_halves_may_be_rounded_in_any_direction() -> None:
    for dtype, bits in ((torch.bfloat16, 8), (torch.float16, 11)):
        cut = (torch.rand(MANY) * 2**bits).floor() / 2**bits
        assert found("torch.rand", (MANY,), cut.to(dtype)) == ""
        assert found("torch.rand", (MANY,), torch.rand(MANY, dtype=dtype)) == ""
        assert "which [0, 1) leaves out" in found("torch.rand", (MANY,), torch.rand(MANY).to(dtype))
        assert found("torch.rand", (MANY,), (torch.randint(16, (MANY,)) / 16).to(dtype))
        assert found("torch.randn", (MANY,), torch.randn(MANY).to(dtype)) == ""
        assert found("torch.randn", (MANY,), (torch.randn(MANY) * 1.04).to(dtype))


def test_what_rows_columns_and_halves_have_in_common() -> None:
    x = torch.randn(MANY)
    rows = x + 0.1 * torch.randn(MANY // 250).repeat_interleave(250)
    assert "rows of 256" in (said := found("torch.randn", (MANY,), rows)) or "draws apart" in said
    assert "from the first to the last" in found(
        "torch.randn", (MANY,), x + torch.linspace(-0.06, 0.06, MANY)
    )
    zeros = torch.zeros(MANY)
    flags = (torch.rand(MANY) < 0.3).float()
    assert "reversed" in found(
        "aten.bernoulli_.float", (zeros, 0.3), torch.cat([flags[: MANY // 2], flags[: MANY // 2].flip(0)])
    )
    by_column = (torch.rand(MANY) < 0.05 + 0.1 * (torch.arange(MANY) % 128) / 128).float()
    assert "period of 128" in found("aten.bernoulli_.float", (zeros, 0.1), by_column)
    kept = (torch.rand(MANY) < 0.1) & (torch.arange(MANY) // 128 % 50 != 7)
    assert "equal flags" in found("aten.bernoulli_.float", (zeros, 0.1), kept.float())
    some = torch.where(torch.rand(MANY) < 0.001, 0.0, x)
    assert "one value comes" in found("torch.randn", (MANY,), some)
    # Two equal ones among a thousand of 2^31 integers are no more than an accident.
    whole = torch.zeros(1000, dtype=torch.int32).random_()
    whole[1] = whole[700]
    assert found("aten.random_.default", (whole,), whole) == ""


def test_the_tests_share_one_level_and_keep_to_it() -> None:
    """Judged at a level of 1 in 20, right generators are accused in fewer than 1 of 20 calls."""
    assert sum(SHARES.values()) == pytest.approx(1.0)
    generator = torch.Generator().manual_seed(7)
    accused = 0
    for _ in range(100):
        x = torch.randn(500, generator=generator)
        flags = (torch.rand(500, generator=generator) < 0.3).float()
        counts = torch.poisson(torch.full((500,), 4.5), generator=generator)
        for name, args, drawn in (
            ("torch.randn", (500,), x),
            ("aten.bernoulli_.float", (x, 0.3), flags),
            ("torch.poisson", (torch.full((500,), 4.5),), counts),
        ):
            accused += judge_random(name, args, {}, [drawn], level=0.05)[0].status == "fail"
    assert accused <= 15


def test_judging_leaves_the_programs_generator_alone() -> None:
    x = torch.randn(1000)
    before = torch.get_rng_state()
    verdicts = [judge_random("torch.randn", (1000,), {}, [x])[0] for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert verdicts[0] == verdicts[1]


def test_a_quick_look_at_a_mask_still_sees_all_elements() -> None:
    """Of many masks of one kind OpAutoCompare judges some by all tests, and each by this."""
    x = torch.randn(MANY)
    keep = torch.rand(MANY) >= 0.1

    def quick(values: torch.Tensor, mask: torch.Tensor) -> str:
        name = "aten.native_dropout.default"
        return judge_random(name, (x, 0.1, True), {}, [values, mask], thorough=False)[0].status

    assert quick(x * keep / 0.9, keep) == "pass"
    assert quick(x * keep, keep) == "fail"
    assert quick(x, torch.ones_like(keep)) == "fail"
    again = keep[: MANY // 2].repeat(2)
    assert quick(x * again / 0.9, again) == "fail"
    rare = torch.rand(MANY) >= 0.12
    assert quick(x * rare / 0.9, rare) == "fail"
