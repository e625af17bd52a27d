"""OpSentinel: a wrong kernel in a running job is found in time, the job is not changed, and the cost is kept."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from wrong_kernels import install, one_element

import op_tools
from op_tools.engine import ENGINE
from op_tools.tools.sentinel import OpSentinel

pytestmark = pytest.mark.device
D = "dipu"


def train(steps: int, each: Any = lambda step: None) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 4)
    ).to(D)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    data = torch.randn(32, 8, generator=torch.Generator().manual_seed(1)).to(D)
    for step in range(steps):
        optimizer.zero_grad()
        model(data).log_softmax(-1)[:, 0].mean().neg().backward()
        optimizer.step()
        each(step)
    return [*(parameter.detach().cpu() for parameter in model.parameters()), torch.get_rng_state()]


def test_a_kernel_that_turns_wrong_is_found_within_a_round_and_named(rows: Any) -> None:
    libraries: list[Any] = []

    def turn_wrong(step: int) -> None:
        if step == 19:
            libraries.append(install("gelu_backward", one_element))

    try:
        first = ENGINE.step
        with OpSentinel(refresh=10, budget=0, queue=100_000) as tool:
            train(40, turn_wrong)
    finally:
        for library in libraries:
            library._destroy()
    assert tool.failed_names == {"aten.gelu_backward.default": tool.counts["fail"]}
    failed = [row for row in rows("op_sentinel_result") if row["verdict"] == "fail"]
    assert 20 <= int(failed[0]["step"]) - first <= 31 and failed[0]["forward_name"] == "GeluBackward0"
    assert tool.native_sampler.taken < tool.native_sampler.calls / 3


def test_the_training_is_the_same_bit_for_bit_and_a_right_device_is_not_accused() -> None:
    bare = train(12)
    with OpSentinel(refresh=3, budget=0, queue=100_000) as tool:
        watched = train(12)
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))
    assert set(tool.counts) <= {"same", "pass", "skipped"} and tool.counts["same"] > 50


def test_what_does_not_fit_is_dropped_counted_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    go_on = threading.Event()
    x = torch.ones(4, device=D)
    with OpSentinel(queue=2, budget=0) as tool:
        tool._background.submit(lambda: go_on.wait(30) and None)
        for size in range(1, 30):
            torch.neg(x.expand(size, 4).contiguous())
        dropped = tool._background.dropped
        go_on.set()
    assert dropped > 20 and f"{dropped:,} calls were dropped" in capsys.readouterr().out


def test_a_budget_that_is_exceeded_makes_it_look_less_often_and_one_that_is_kept_as_often_as_asked() -> None:
    with OpSentinel(refresh=10, budget=1.0) as tool:
        tool._hooks_s = 1e6
        tool.stepped(100)
        assert tool.native_sampler.refresh > 1000
        for step in range(200, 2000, 100):
            tool.stepped(step)
        assert tool.native_sampler.refresh == 10


def test_it_needs_no_mode_and_costs_a_call_that_is_not_its_turn_nothing() -> None:
    with op_tools.OpSentinel(refresh=1000) as tool:
        assert not tool.uses_api and torch._C._len_torch_function_stack() == 0
