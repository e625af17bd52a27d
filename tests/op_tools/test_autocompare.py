"""OpAutoCompare in time: what it samples, what it holds on to, and that it stops when it is stopped."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from wrong_kernels import install, one_element

import op_tools
from op_tools.comparison.calls import Sampler
from op_tools.engine import ENGINE, native

pytestmark = pytest.mark.device
D = "dipu"


def test_inputs_are_let_go_when_backward_is_over():
    """A loss that is kept for a plot must not keep the activations of its step."""
    x = torch.randn(8, 8).to(D).requires_grad_()
    with op_tools.OpAutoCompare() as compare:
        hidden = x * 2
        storage = weakref.ref(hidden.untyped_storage())
        loss = (hidden + 1).square().sum()
        del hidden
        loss.backward()
        gc.collect()
        assert storage() is None
        assert compare.counts["same"] > 5
    assert loss.item() > 0


@pytest.mark.parametrize("verbose", [False, True])
def test_a_call_that_returns_another_number_of_values_is_wrong(verbose: bool, rows, capfd):
    library = torch.library.Library("op_tools_parts", "DEF")
    library.define("parts(Tensor x, int n) -> Tensor[]")
    library.impl("parts", lambda x, n: [x * i for i in range(n)], "CPU")
    library.impl("parts", lambda x, n: [x * i for i in range(n % 3)], "PrivateUse1")
    x = torch.randn(3).to(D)
    try:
        with op_tools.OpAutoCompare(verbose=verbose):
            for n in (2, 3, 4):
                torch.ops.op_tools_parts.parts(x, n)
    finally:
        library._destroy()
    found = [
        (row["name"], row["verdict"], row["reason"])
        for row in rows("op_autocompare_result")
        if "parts" in row["name"]
    ]
    assert found == [
        ("op_tools_parts.parts output[0]", "same", ""),
        ("op_tools_parts.parts output[1]", "same", ""),
        ("op_tools_parts.parts output", "fail", "0 results where the reference has 3"),
        ("op_tools_parts.parts output", "fail", "1 results where the reference has 4"),
    ]
    assert ENGINE.failures.seen == {}
    del library
    library = torch.library.Library("op_tools_more", "DEF")
    library.define("parts(Tensor x) -> Tensor[]")
    library.impl("parts", lambda x: [x + 1], "CPU")
    library.impl("parts", lambda x: [x + 1, x], "PrivateUse1")
    with op_tools.OpAutoCompare(verbose=verbose) as compare:
        torch.ops.op_tools_more.parts(x)
    library._destroy()
    assert compare.counts == {"fail": 2} and ENGINE.failures.seen == {}


@pytest.mark.parametrize("mode", ["every", "sampled"])
def test_a_result_without_values_is_not_compared(mode: str) -> None:
    x = torch.randn(3).to(D)
    with op_tools.OpAutoCompare(mode=mode) as compare:
        assert x.to("meta").is_meta
        torch.ops.aten._to_copy(x, device="meta")
        torch.empty(3, device="meta").copy_(x)
        x + 1
    assert ENGINE.failures.seen == {}
    assert compare.counts == {"same": 1}


def test_a_call_that_returns_nothing_and_counts_no_version_is_judged_by_what_it_writes(rows) -> None:
    """As GradScaler calls it."""
    found, scale = torch.zeros(1, device=D), torch.full((1,), 0.5, device=D)

    def verdicts() -> list[str]:
        with op_tools.OpAutoCompare():
            torch._amp_foreach_non_finite_check_and_unscale_([torch.ones(3, device=D)], found, scale)
        judged = [row for row in rows("op_autocompare_result") if "amp" in row["name"]]
        assert {row["name"].partition(" ")[2] for row in judged} == {"input (written) [0]"}
        return sorted(row["verdict"] for row in judged)

    assert verdicts() == ["same"]
    library = install("_amp_foreach_non_finite_check_and_unscale_", one_element)
    try:
        assert verdicts() == ["fail", "same"]
    finally:
        library._destroy()
    assert ENGINE.failures.seen == {}


def test_a_kept_graph_is_judged_again():
    x = torch.randn(4).to(D).requires_grad_()
    with op_tools.OpAutoCompare(list="torch.Tensor.mul") as compare:
        loss = (x * 2).sum()
        loss.backward(retain_graph=True)
        once = sum(compare.counts.values())
        loss.backward()
    assert sum(compare.counts.values()) > once


def test_checkpointing_holds_nothing_and_is_judged_at_aten_level(rows):
    x = torch.randn(4, 4).to(D).requires_grad_()
    alive = []

    def block(t: torch.Tensor) -> torch.Tensor:
        inner = torch.sin(t)
        alive.append(weakref.ref(inner.untyped_storage()))
        return torch.cos(inner)

    with op_tools.OpAutoCompare():
        out = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        gc.collect()
        assert alive[0]() is None
        out.sum().backward()
    names = [row["name"] for row in rows("op_autocompare_result") if row["phase"] == "backward"]
    assert any(name.startswith("aten.mul") for name in names)


def test_a_stopped_tool_stays_out_of_a_later_backward(rows):
    x = torch.randn(4).to(D).requires_grad_()
    compare = op_tools.OpAutoCompare()
    with compare:
        loss = (x * 2).sum()
    before = dict(compare.counts)
    loss.backward(retain_graph=True)
    assert compare.counts == before and compare.results is None
    with compare:
        loss.backward()  # a graph of the first run, under the second
    assert not [row for row in rows("op_autocompare_result") if " grad" in row["name"]]


def test_other_tools_see_the_arguments_of_the_program(rows):
    x = torch.ones(3, device=D)
    with op_tools.OpObserve(), op_tools.OpAutoCompare():
        x.mul_(2)
    [row] = [row for row in rows("op_observe_result") if row["name"] == "torch.Tensor.mul_"]
    assert "@dipu" in row["input"] and "@cpu" not in row["input"]


def test_a_sample_takes_each_signature_at_once_then_at_its_rate_and_again_in_time():
    sampler = Sampler("sampled", 0.01, refresh=500)
    taken = [sampler.takes("a", step=0) for _ in range(1001)]
    assert taken[0] and sum(taken[1:]) == 10
    assert sampler.takes("b", step=0)
    assert not sampler.takes("b", step=499) and sampler.takes("b", step=500)
    changed = Sampler("changed", 0.5, refresh=1)
    assert [changed.takes(kind, step) for step, kind in enumerate("aabab")] == [
        True,
        False,
        True,
        False,
        False,
    ]


@pytest.mark.parametrize("autocast", [False, True])
def test_a_sample_compares_as_many_calls_as_its_rate_says(autocast):
    a = torch.randn(4, 4).to(D)
    with op_tools.OpAutoCompare(mode="sampled", rate=0.05) as compare, torch.no_grad():
        for _ in range(400):
            with torch.autocast(D, torch.bfloat16, enabled=autocast):
                torch.mm(a, a)
    # Under autocast there are two casts and their copies beside each product.
    assert 15 <= sum(compare.counts.values()) <= (110 if autocast else 25)


def test_a_sample_of_everything_costs_a_call_that_is_not_taken_no_python() -> None:
    a = torch.randn(4, 4).to(D)
    with op_tools.OpAutoCompare(mode="sampled", rate=0.001, refresh=10_000) as compare, torch.no_grad():
        torch.mm(a, a)
        torch.mm(a, a)  # decisions about what it is made of
        entered = []
        sys.setprofile(lambda frame, event, _: event == "call" and entered.append(frame.f_code.co_qualname))
        try:
            for _ in range(50):
                torch.mm(a, a)
        finally:
            sys.setprofile(None)
    assert not [name for name in entered if name.startswith(("Engine", "OpAutoCompare"))]
    assert compare.native_sampler.calls >= 52 and compare.native_sampler.taken <= 2


def test_the_ranks_of_a_job_begin_with_different_signatures_and_together_see_all() -> None:
    tensors = [torch.ones(size, device=D) for size in range(1, 41)]
    taken = []
    for share in range(4):
        sampler = native.sampler(0, 100, share, 4)
        with op_tools.OpAutoCompare(mode="changed") as compare, torch.no_grad():
            compare.native_sampler = sampler
            ENGINE.changed()
            seen = []
            for tensor in tensors:
                before = sampler.taken
                torch.neg(tensor)
                seen.append(sampler.taken - before)
        taken.append(seen)
    assert [sum(column) for column in zip(*taken, strict=True)] == [1] * 40
    assert all(sum(seen) > 0 for seen in taken)


def test_only_changed_signatures():
    with op_tools.OpAutoCompare(mode="changed") as compare, torch.no_grad():
        for size in (2, 3, 2, 3, 4):
            F.relu(torch.ones(size, device=D))
    assert sum(compare.counts.values()) == 3


def test_what_initialises_parameters_is_judged_by_what_it_draws():
    x = torch.empty(60, 50, device=D)
    with op_tools.OpAutoCompare() as compare:
        torch.nn.init.uniform_(x, a=-1, b=1)
        torch.nn.init.kaiming_uniform_(x)
        F.gumbel_softmax(x)
        assert set(compare.counts) <= {"pass", "same"}
        assert compare.counts["pass"] >= 3


def test_a_generator_that_starts_again_is_told_from_one_that_was_set_back():
    def drawn(x, low=0.0, high=1.0, generator=None):
        return x.copy_(torch.rand(x.shape, generator=torch.Generator().manual_seed(3)))

    x = torch.empty(500, device=D)
    with op_tools.OpAutoCompare() as compare:
        for _ in range(2):  # a program that repeats itself on purpose
            torch.manual_seed(5)
            x.uniform_()
        x.uniform_()
        assert compare.counts == {"pass": 3}
        library = torch.library.Library("aten", "IMPL")
        library.impl("uniform_", drawn, "PrivateUse1", allow_override=True)
        try:
            x.uniform_()
            assert compare.counts == {"pass": 4}
            x.uniform_()
            assert compare.counts == {"pass": 4, "fail": 1}
        finally:
            library._destroy()


def test_dropout_that_is_computed_again_draws_the_same():
    from torch.utils.checkpoint import checkpoint

    x = torch.randn(40, 50).to(D).requires_grad_()
    with op_tools.OpAutoCompare() as compare:
        for reentrant in (False, True):
            checkpoint(lambda x: F.dropout(x, 0.3), x, use_reentrant=reentrant).sum().backward()
        assert "fail" not in compare.counts
        assert compare.counts["pass"] >= 4
