"""OpSentinel: a wrong kernel in a running job is found in time, the job is not changed, and the cost is kept."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from wrong_kernels import aten_name, install, off, one_element

import op_tools
from op_tools.engine import ENGINE
from op_tools.report.collect import collect
from op_tools.runs import open_run
from op_tools.tools.sentinel import OpSentinel

pytestmark = pytest.mark.device
D = "dipu"


def train(steps: int, each: Any = lambda step: None, **optimizer: Any) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 4)
    ).to(D)
    chosen = torch.optim.AdamW(model.parameters(), **({"foreach": False} | optimizer))
    data = torch.randn(32, 8, generator=torch.Generator().manual_seed(1)).to(D)
    for step in range(steps):
        chosen.zero_grad()
        model(data).log_softmax(-1)[:, 0].mean().neg().backward()
        chosen.step()
        each(step)
    return [*(parameter.detach().cpu() for parameter in model.parameters()), torch.get_rng_state()]


def fewer_kept(mask: torch.Tensor) -> None:
    """Dropout that drops more than it should."""
    mask.view(-1)[::4] = 0


@pytest.mark.parametrize(
    ("kernel", "mistake", "optimizer"),
    [
        ("gelu", off, {}),
        ("gelu_backward", one_element, {}),
        ("native_dropout", fewer_kept, {}),
        ("addcdiv_", off, {}),
        ("_foreach_addcdiv_.ScalarList", off, {"foreach": True}),
        ("_fused_adamw_", off, {"foreach": False, "fused": True}),
    ],
)
def test_a_kernel_that_turns_wrong_is_found_within_two_rounds_and_named(
    kernel: str, mistake: Any, optimizer: dict[str, Any], tmp_path: Any
) -> None:
    libraries: list[Any] = []

    def turn_wrong(step: int) -> None:
        if step == 19:
            libraries.append(install(kernel, mistake))

    try:
        with OpSentinel(refresh=10, budget=0, queue=100_000) as tool:
            train(40, turn_wrong, **optimizer)
    finally:
        for library in libraries:
            library._destroy()
    assert set(tool.failed_names) == {aten_name(kernel)}
    logged = open_run(tmp_path / "op_tools_results").rows("sentinel")
    failed = [row for row in logged if row["verdict"] == "fail"]
    assert int(failed[0]["step"]) >= 20
    assert re.match(r"\(\[?float32\[.*@dipu:0", failed[0]["input"])  # and not where the copies are
    assert failed[0]["forward_name"] == ("GeluBackward0" if kernel == "gelu_backward" else "")
    assert tool.native_sampler.taken < tool.native_sampler.calls / 3


def test_the_training_is_the_same_bit_for_bit_and_a_right_device_is_not_accused() -> None:
    bare = train(12)
    with OpSentinel(refresh=3, budget=0, queue=100_000) as tool:
        watched = train(12)
    assert all(torch.equal(a, b) for a, b in zip(bare, watched, strict=True))
    assert set(tool.counts) <= {"same", "pass"} and tool.counts["same"] > 50


def test_it_needs_no_mode_and_costs_a_call_that_is_not_its_turn_nothing() -> None:
    with op_tools.OpSentinel(refresh=1000) as tool:
        assert not tool.uses_api and torch._C._len_torch_function_stack() == 0


def test_what_does_not_fit_is_dropped_counted_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    tensors = [torch.ones(size, device=D) for size in range(1, 30)]
    with OpSentinel(queue=0, budget=0) as tool:
        for x in tensors:
            torch.neg(x)
    assert tool._background.dropped == tool.native_sampler.taken == 29 and not tool.counts
    said = capsys.readouterr().out
    assert "29 calls dropped: judging did not keep up" in said
    assert "OpSentinel compared nothing: none of 29 calls was judged" in said


def test_a_call_that_is_larger_than_the_memory_is_left_out_and_that_is_said(capsys: Any) -> None:
    small, large = torch.ones(1000, device=D), torch.ones(100_000, device=D)
    with OpSentinel(memory=100_000, budget=0) as tool:
        torch.neg(small)
        torch.neg(large)
        torch.neg(large.to(torch.int64))
    assert [tool.counts, tool._background.too_large] == [{"same": 1}, 3]
    assert "3 calls left out: larger than 97.66 KiB (OP_SENTINEL_MEMORY)" in capsys.readouterr().out


def test_a_spent_budget_closes_it_to_new_signatures_too_and_they_come_later() -> None:
    tensors = [torch.ones(size, device=D) for size in range(1, 30)]
    with OpSentinel(budget=1.0) as tool:
        tool._budget.spend(100.0)
        for x in tensors:
            torch.neg(x)
        assert (tool.native_sampler.taken, tool.native_sampler.signatures) == (0, 29)
        tool._budget.spend(-100.0)
        for _ in range(50):
            torch.neg(tensors[7])
            tool.native_sampler.stepped()
        assert tool.native_sampler.taken in (1, 2)
    assert set(tool.counts) == {"same"}


def test_a_program_without_an_optimizer_has_rounds_too() -> None:
    a = torch.randn(4, 4).to(D)
    with OpSentinel(refresh=2, budget=0, queue=100_000) as tool, torch.no_grad():
        for _ in range(6000):
            torch.mm(a, a)
    assert 2 <= tool.counts["same"] <= 5 and tool.native_sampler.step >= 5


def test_one_of_two_tools_is_sampled_as_if_it_were_alone(capsys: Any) -> None:
    a = torch.randn(4, 4).to(D)
    with op_tools.OpTimeMeasure(level="aten"), OpSentinel(refresh=1000) as tool, torch.no_grad():
        for _ in range(50):
            torch.mm(a, a)
        assert tool.native_sampler.closed_until > 0  # what it spends is noted
    assert tool.counts == {"same": 1}
    assert "looked at 1 of 50 calls of 1 signature," in capsys.readouterr().out


def test_a_process_that_becomes_a_rank_after_the_start_looks_at_other_calls_then(monkeypatch: Any) -> None:
    with OpSentinel() as tool:
        before = tool._share()
        monkeypatch.setattr("op_tools.tools.sentinel.rank_info", lambda: {"rank": 3, "world_size": 4})
        tool.stepped(1)
        taken = []
        for signature in range(400, 440):
            taken += [signature] * tool.native_sampler.takes(signature)
    assert before == (0, 1) and taken == list(range(403, 440, 4))


def test_what_is_recorded_into_a_graph_is_left_alone(monkeypatch: Any) -> None:
    """A copy or an event of ours would be in a CUDA graph for ever, or break its recording."""
    a = torch.randn(4, 4).to(D)
    monkeypatch.setattr(torch.dipu, "is_current_stream_capturing", lambda: True, raising=False)
    with OpSentinel(budget=0) as tool, torch.no_grad():
        torch.mm(a, a)
        assert tool.native_sampler.taken == 1 and tool.results is None
        monkeypatch.setattr(torch.dipu, "is_current_stream_capturing", lambda: False)
        torch.mm(a[:3], a)
    assert tool.counts == {"same": 1}


def test_an_operator_that_the_reference_does_not_have_is_named_and_costs_nothing(capsys: Any) -> None:
    library = torch.library.Library("sentinel_test", "DEF")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "PrivateUse1")
    try:
        with OpSentinel(budget=0) as tool:
            torch.ops.sentinel_test.twice(torch.ones(3, device=D))
    finally:
        library._destroy()
    assert not any("sentinel_test" in row for row in tool.failed_names) and "skipped" not in tool.counts
    assert "not looked at, since cpu has no kernel: sentinel_test.twice.default" in capsys.readouterr().out


def test_of_rows_that_are_alike_few_are_written_and_the_report_counts_all(tmp_path: Any, rows: Any) -> None:
    a = torch.randn(4, 4).to(D)
    with OpSentinel(rate=1.0, budget=0, queue=100_000) as tool, torch.no_grad():
        for _ in range(1234):
            torch.mm(a, a)
    written = rows("op_sentinel_result")
    assert tool.counts == {"same": 1234} and len(written) == 100 + 11 + 1
    assert sum(int(row["count"]) for row in written) == 1234
    summary = collect(open_run(tmp_path / "op_tools_results")).summary()
    assert (summary["compared"], summary["rows"]) == (1234, 112)


def test_its_summary_fits_a_page_and_says_what_it_cost(capsys: Any) -> None:
    with OpSentinel(refresh=3):
        train(8)
    lines = capsys.readouterr().out.splitlines()
    assert any(re.fullmatch(r"    cost \d+\.\d % of the time \(budget 2 %\)", line) for line in lines)
    assert all(len(line) <= 100 for line in lines if "rows:" not in line)
    assert ENGINE.failures.seen == {}


def test_while_it_rests_no_call_is_seen_and_another_tool_sees_all_of_its_own(tmp_path: Any) -> None:
    x = torch.ones(4, device=D)
    with OpSentinel(budget=0) as tool:
        x + x
        seen = tool.native_sampler.calls
        assert seen >= 1
        ENGINE.native.rest(tool, True)
        x + x
        assert tool.native_sampler.calls == seen
        with op_tools.OpObserve(level="aten", list="aten.*"):
            x + x
        rows = open_run(tmp_path / "op_tools_results").rows("observe")
        assert [row["name"] for row in rows] == ["aten.add.Tensor"]
        x + x
        seen = tool.native_sampler.calls
        ENGINE.native.rest(tool, False)
        x + x
        assert tool.native_sampler.calls == seen + 1
    x + x
    with OpSentinel(budget=0) as tool:  # it was not left resting
        x + x
        assert tool.native_sampler.calls == 1
