"""Declared differences of a vendor's kernel are absorbed by rules; rules that do not fit are refused at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dicore.conformance.case_filter import CaseFilter
from dicore.conformance.runner import RunOptions, run_suite
from dlinfer.adaptor import Cast, Constant, Contiguous, Drop, Fold, Layout, Rename, Rule, adapted
from dlinfer.conformance.suite import DlinferSuite
from dlinfer.errors import DlinferArgumentError, RuleError
from dlinfer.interface import OPERATORS
from dlinfer.reference import KERNELS
from dlinfer.vendors import Vendor, using

pytestmark = pytest.mark.unit


def _other_decode(
    *, q: Tensor, k_cache: Tensor, v_cache: Tensor, tables: Tensor, lens: Tensor, out: Tensor, cap: float, mode: str,
    **rest: Any,
) -> None:  # fmt: skip
    """A kernel for float32, heads before tokens, without softmax_scale, with other names and one more argument."""
    assert mode == "paged" and tables.dtype == torch.int64 and q.is_contiguous()
    assert q.dtype == k_cache.dtype == out.dtype == torch.float32
    assert k_cache.shape[1] <= k_cache.shape[2] or k_cache.shape[1] < 4, "heads lie before tokens"
    KERNELS["paged_decode_attention"](
        q.transpose(0, 1), k_cache.transpose(1, 2), v_cache.transpose(1, 2), tables, lens, 0, out.transpose(0, 1), 1.0,
        rest["alibi_slopes"], rest["window_left"], cap,
    )  # fmt: skip


DECODE: tuple[Rule, ...] = (
    Fold("softmax_scale", "query"),
    Cast("query", torch.float32),
    Layout("query", "TND->NTD"),
    Contiguous("query"),
    Rename("query", "q"),
    Cast("key_cache", torch.float32),
    Layout("key_cache", "BSND->BNSD"),
    Rename("key_cache", "k_cache"),
    Cast("value_cache", torch.float32),
    Layout("value_cache", "BSND->BNSD"),
    Rename("value_cache", "v_cache"),
    Cast("block_table", torch.int64),
    Rename("block_table", "tables"),
    Rename("kv_lengths", "lens"),
    Cast("attn_output", torch.float32),
    Layout("attn_output", "TND->NTD"),
    Rename("attn_output", "out"),
    Rename("soft_cap", "cap"),
    Drop("max_kv_len", ignored=True),
    Drop("kv_scales"),
    Drop("kv_zeros"),
    Drop("quant_bits", 0),
    Constant("mode", "paged"),
)


def _other_norm(x: Tensor, gamma: Tensor, eps: float, axis: int) -> Tensor:
    """Features first, in float64."""
    assert x.dtype == torch.float64 and axis == 0
    return x * torch.rsqrt(x.square().mean(0, keepdim=True) + eps) * gamma.unsqueeze(-1)


NORM: tuple[Rule, ...] = (
    Cast("hidden_states", torch.float64),
    Layout("hidden_states", "TH->HT"),
    Rename("hidden_states", "x"),
    Rename("weight", "gamma"),
    Rename("epsilon", "eps"),
    Constant("axis", 0),
    Layout("result", "TH->HT"),
    Cast("result"),
)


def test_an_adapted_kernel_passes_the_suite() -> None:
    kernels: dict[str, Callable[..., Any]] = {"paged_decode_attention": _other_decode}
    with using(Vendor("other", "1", kernels, rules={"paged_decode_attention": DECODE})):
        report = run_suite(
            DlinferSuite("other"),
            RunOptions(CaseFilter(frozenset(kernels), frozenset({"float32"})), in_process=True),
        )
    refused = [r for r in report.failures() if r.label.startswith(("8 bits", "4 bits"))]
    assert refused and all("kv_scales: is a tensor" in r.reason for r in refused), (
        "what the kernel has not, is refused"
    )
    # Folding the scale into the query rounds once more than the interface does, in the dtype of the query.
    assert [r.id for r in report.failures() if r not in refused] == []
    assert report.counts()["pass"] > 60


def test_arguments_results_names_and_constants() -> None:
    operator = OPERATORS["rms_norm"]
    kernel = adapted(operator, _other_norm, NORM)
    hidden = torch.randn(5, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    weight = torch.arange(8.0)
    got = kernel(hidden, weight, 1e-5)
    assert got.dtype == torch.bfloat16 and got.shape == hidden.shape
    torch.testing.assert_close(got, KERNELS["rms_norm"](hidden, weight, 1e-5))


def test_what_is_written_arrives_through_views_casts_and_copies() -> None:
    def fill(key: Tensor, key_cache: Tensor, value: Any, value_cache: Any, kv_indices: Tensor) -> None:
        assert key_cache.shape[1] == 3 and key_cache.is_contiguous() and key_cache.dtype == torch.float64
        key_cache[0, :, int(kv_indices[0])] = key[0].double()

    drops = [Drop(name) for name in ("key_scale", "key_zero", "value_scale", "value_zero")]
    rules = (
        Layout("key_cache", "BSND->BNSD"),
        Cast("key_cache", torch.float64),
        Contiguous("key_cache"),
        *drops,
    )
    kernel = adapted(OPERATORS["fill_kv_cache"], fill, (*rules, Drop("quant_bits", 0)))
    cache = torch.zeros(2, 4, 3, 2)
    kernel(torch.ones(1, 3, 2), cache, None, None, torch.tensor([2]))
    assert cache[0, 2].eq(1).all() and cache.sum() == 6


def test_a_dropped_argument_is_refused_when_it_says_something() -> None:
    kernel = adapted(OPERATORS["silu_and_mul"], lambda input_tensor: input_tensor, (Drop("dim", -1),))
    assert kernel(torch.ones(2)).tolist() == [1, 1]
    with pytest.raises(DlinferArgumentError, match="silu_and_mul: dim: is 0, but the kernel only knows -1"):
        kernel(torch.ones(2), 0)


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ([Rename("hidden", "x")], "there is no argument 'hidden'; there are hidden_states, weight, epsilon"),
        ([Layout("hidden_states", "TH->TD")], "the same different letters on both sides"),
        ([Layout("hidden_states", "TT->TT")], "the same different letters on both sides"),
        ([Layout("hidden_states", "TH")], "the same different letters on both sides"),
        ([Cast("hidden_states")], "say which dtype the kernel wants"),
        ([Cast("result", torch.float32)], "leave out the dtype"),
        ([Layout("result1", "TH->HT")], "the operator has 1 results"),
        ([Contiguous("result")], "only Layout and Cast are for results"),
        ([Rename("weight", "epsilon")], "two arguments of the kernel would be called 'epsilon'"),
        ([Rename("weight", "a"), Rename("weight", "b")], "renamed twice"),
        ([Constant("weight", 1)], "the argument exists already"),
        ([Drop("epsilon"), Rename("epsilon", "eps")], "epsilon is dropped or folded, and has another rule"),
        ([Drop("epsilon"), Fold("epsilon", "weight")], "epsilon is dropped or folded"),
        ([Fold("epsilon", "factor")], "there is no argument 'factor'"),
    ],
)
def test_rules_that_do_not_fit_are_refused_when_the_vendor_is_loaded(rules: list[Rule], words: str) -> None:
    with pytest.raises(RuleError, match=r"^rms_norm: ") as caught:
        adapted(OPERATORS["rms_norm"], _other_norm, rules)
    assert words in str(caught.value)
    vendor = Vendor("wrong", "1", {"rms_norm": _other_norm}, rules={"rms_norm": tuple(rules)})
    with pytest.raises(RuleError), using(vendor):
        pass


def test_without_rules_nothing_is_in_between() -> None:
    assert adapted(OPERATORS["rms_norm"], _other_norm, ()) is _other_norm
    with pytest.raises(RuleError, match="expected something that can be called"):
        adapted(OPERATORS["rms_norm"], "kernel", ())  # type: ignore[arg-type]
