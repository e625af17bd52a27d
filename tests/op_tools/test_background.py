"""Judging later: which calls, with the very values that the kernel had, on a device that works on its own, and to the end of the
program."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

import op_tools
from op_tools.comparison.background import Background, Job
from op_tools.comparison.budget import Budget, Look
from op_tools.comparison.thinning import Thinned
from op_tools.engine import ENGINE, native
from op_tools.tools.autocompare import OpAutoCompare
from op_tools.tools.sentinel import OpSentinel
from op_tools.transfer import Transfer, copy_tensor
from op_tools.trees import tensors_of

pytestmark = pytest.mark.device
D = "dipu"
SLOW = {"async": 1, "delay_us": 3000}

# -- which calls ---------------------------------------------------------------------------------------------------


def looks(sampler: Any, steps: int, calls: int, signature: int = 12345) -> list[tuple[int, int]]:
    """Which calls of a signature are taken: step and number in it."""
    taken = []
    for step in range(steps):
        taken += [(step, call) for call in range(calls) if sampler.takes(signature)]
        sampler.stepped()
    return taken


def test_a_mistake_that_keeps_time_with_the_steps_does_not_hide_between_looks() -> None:
    found = looks(native.sampler(0, 10), 2000, 6)
    assert 180 <= len(found) <= 220
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(found)]
    assert min(gaps) >= 5 and max(gaps) <= 16
    by_call, by_step = Counter(call for _, call in found), Counter(step % 7 for step, _ in found)
    assert min(by_call.values()) >= 15 and set(by_call) == set(range(6))
    assert min(by_step.values()) >= 12 and set(by_step) == set(range(7))


def test_runs_repeat_and_ranks_know_a_signature_by_the_same_number(run_python: Any) -> None:
    code = """
        import torch, torch_dipu, op_tools
        from op_tools.engine import native
        x = torch.ones(4, 6, device="dipu")
        with op_tools.OpSentinel() as tool:
            torch.neg(x); first = tool.native_sampler.asked()
            torch.nn.functional.softmax(x, 0)
            print("asked", first, tool.native_sampler.asked())
    """
    asked = {run_python(code).split("asked")[1].split("\n")[0] for _ in range(2)}
    assert len(asked) == 1 and len(set(asked.pop().split())) == 2


def test_ranks_come_back_to_a_signature_at_other_steps() -> None:
    starts = []
    for share in range(4):
        [(step, _), *_] = looks(native.sampler(0, 40, share, 4), 80, 1, signature=2)
        starts.append(step)
    assert starts[2] == 0  # whose turn it is at once
    others = sorted(starts[:2] + starts[3:])
    assert len(set(others)) == 3 and others[-1] - others[0] >= 15 and others[-1] <= 41


def test_what_costs_more_comes_round_less_often() -> None:
    sampler = native.sampler(0, 10)
    looks(sampler, 1, 1)
    sampler.set_rounds(12345, 5.0)
    assert 35 <= len(looks(sampler, 2000, 1)) <= 45


def test_shapes_that_never_come_again_do_not_fill_the_memory() -> None:
    sampler = native.sampler(0, 5)
    sampler.closed_until = 1
    for signature in range(450_000):
        sampler.takes(signature)
    assert sampler.signatures <= 200_001 and sampler.step > 0


def test_a_budget_closes_the_sampler_and_sets_how_often_signatures_come_round() -> None:
    sampler = native.sampler(0, 10)
    budget = Budget(2.0, 10, sampler)
    budget.spend(0.1)
    assert sampler.takes(1)  # half a second is there at the start
    budget.spend(10.0)
    assert not sampler.takes(2) and not sampler.takes(1)
    ahead = (sampler.closed_until - time.monotonic_ns()) / 1e9
    assert 450 < ahead < 490  # (10.1 - 0.5) / 2 %
    budget.spend(-10.0)
    assert sampler.takes(3)
    began = time.perf_counter()
    for _ in range(30):
        looks(sampler, 1, 1)
    time.sleep(0.03)
    look = Look(budget, 12345)
    look.took(1e-4)
    look.judged(1.0)
    seconds = (time.perf_counter() - began) / 30
    # One signature a round, a second each: it may come once in 1 / (2 % of a step) steps.
    assert sampler.refresh >= 0.5 / (0.02 * seconds) > 10


def test_without_a_limit_nothing_is_closed() -> None:
    sampler = native.sampler(0, 10)
    Budget(0.0, 10, sampler).spend(1e6)
    assert sampler.closed_until == 0 and sampler.takes(1)


# -- the thread ----------------------------------------------------------------------------------------------------


def job(judge: Callable[[], None], size: int = 0) -> Job:
    return Job(judge, native.queued_copies(), size)


def test_a_full_queue_drops_or_waits_and_keeps_the_order() -> None:
    go_on, done = threading.Event(), []
    dropping = Background(2, 100)
    dropping.submit(job(lambda: go_on.wait(20) and None, 60))
    assert not dropping.has_room(60) and dropping.has_room(40) and not dropping.has_room(101)
    dropping.submit(job(lambda: done.append(1), 40))
    assert not dropping.has_room(0)
    assert (dropping.dropped, dropping.too_large) == (2, 1)
    go_on.set()
    dropping.close()
    assert done == [1] and dropping.lost == 0
    waiting = Background(2, 100, waits=True)
    for number in range(50):
        assert waiting.has_room(300)
        waiting.submit(job(lambda number=number: done.append(number), 300))  # type: ignore[misc]
    waiting.close(None)
    assert done[1:] == list(range(50)) and waiting.dropped == 0


def test_an_end_that_does_not_wait_any_longer_ends_what_is_under_way_and_counts_it() -> None:
    background, started = Background(9, 9), threading.Event()

    def endless() -> None:
        started.set()
        while True:
            time.sleep(0.001)

    for _ in range(3):
        background.submit(job(endless))
    assert started.wait(20)
    background.close(0.01)
    assert background.lost == 3 and background._ended.is_set()


def test_the_thread_computes_alone_and_no_other_does() -> None:
    seen: list[int] = []
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        background = Background(9, 9)
        background.submit(job(lambda: seen.append(torch.get_num_threads())))
        background.close()
        later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        later.start()
        later.join()
        assert [*seen, torch.get_num_threads()] == [1, 3, 3]
    finally:
        torch.set_num_threads(before)


def test_an_error_in_judging_is_reported_once_and_costs_only_that_call(monkeypatch: Any) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("judging broke")

    x = torch.ones(4, device=D)
    with OpSentinel(budget=0) as tool:
        monkeypatch.setattr(tool, "_judge_results", broken)
        torch.neg(x)
        tool._background.close()
    assert ENGINE.failures.seen == {("OpSentinel", "aten.neg.default", "RuntimeError"): 1}


def test_a_sample_of_autocompare_is_judged_by_the_same_thread_and_none_is_dropped(monkeypatch: Any) -> None:
    threads: list[str] = []
    judge = OpAutoCompare._judge_results

    def noting(self: Any, *args: Any) -> None:
        threads.append(threading.current_thread().name)
        judge(self, *args)

    monkeypatch.setattr(OpAutoCompare, "_judge_results", noting)
    tensors = [torch.ones(size, device=D) for size in range(1, 400)]
    with OpAutoCompare(mode="sampled", rate=0.0) as tool:
        for x in tensors:
            torch.neg(x)
    assert tool.counts == {"same": 399} and set(threads) == {"op_tools background"}


# -- the very values ----------------------------------------------------------------------------------------------


def program(which: str) -> None:
    for i in range(1, 6):
        if which == "overwritten":
            x = torch.full((100 + i,), float(i), device=D)
            y = x * 2
            x.add_(1).mul_(5).zero_()
            del y
            torch.empty(100 + i, device=D).fill_(7).sub_(x)
        elif which == "streams":
            side, x = torch.dipu.Stream(), torch.full((100 + i,), float(i), device=D)
            side.wait_stream(torch.dipu.current_stream())
            with torch.dipu.stream(side):
                y = x.exp().add_(1)
                x.record_stream(side)
            del x
            torch.empty(100 + i, device=D).fill_(9)
            torch.dipu.current_stream().wait_stream(side)
            y.mul_(2).zero_()
        elif which == "two devices":
            a = torch.full((250 + i,), float(i), device="dipu:0")
            b = (a * 3).to("dipu:1")
            torch.empty(250 + i, device="dipu:1").copy_(a).add_(b)
        elif which == "pinned host":
            x = torch.full((300 + i,), float(i), device=D) * 2
            x.to("cpu", non_blocking=True)
            torch.zeros(300 + i).pin_memory().copy_(x, non_blocking=True)
            torch.full((300 + i,), float(i)).pin_memory().to(D, non_blocking=True).add_(1)
            torch.dipu.synchronize()
        elif which == "views":
            x = torch.arange(60.0).reshape(10, 6).to(D)[:, :i]
            x.t() * 2, x[::2].sum(0), x.expand(3, 10, i) + 1
            x[1:].add_(x[0])
            c = torch.view_as_complex(torch.arange(2.0 * i).reshape(i, 2).to(D))
            c.conj() * c, c.conj().imag * 2, c.imag + c.real


@pytest.mark.parametrize("which", ["overwritten", "streams", "two devices", "pinned host", "views"])
@pytest.mark.parametrize("tool_class", [OpSentinel, OpAutoCompare])
def test_what_is_judged_is_what_the_kernel_had(which: str, tool_class: Any, quiet_device: None) -> None:
    settings = {"budget": 0, "queue": 10_000} if tool_class is OpSentinel else {}
    torch.dipu.configure(**SLOW)
    with tool_class(**settings) as tool, torch.no_grad():
        program(which)
    assert set(tool.counts) == {"same"} and tool.counts["same"] >= 10 and not ENGINE.failures.seen


def test_a_look_does_not_wait_for_the_device(quiet_device: None) -> None:
    x = torch.arange(60.0).reshape(10, 6).to(D)
    with OpSentinel(budget=0, queue=10_000) as tool, torch.no_grad():
        torch.dipu.configure(**{"async": 1, "delay_us": 60_000})
        y = x.t() * x[:6, :1].expand(6, 10)
        x.mul_(y.sum())
        pending = len(tool._background._on_the_way)
        torch.dipu.configure(delay_us=0)
    assert pending >= 3 and tool.counts == {"same": tool.native_sampler.taken}


def test_every_form_of_a_tensor_is_copied_without_waiting_as_it_is_with(quiet_device: None) -> None:
    x = torch.randn(4, 3, 5)
    forms: list[Callable[[torch.Tensor], torch.Tensor]] = [
        lambda v: v.transpose(0, 2), lambda v: v[:, ::2], lambda v: v[:1].expand(7, 3, 5),
        lambda v: v[0, 0].expand(2, 3, 5).transpose(0, 2), lambda v: v[None].to(memory_format=torch.channels_last),
        lambda v: v[0, 0, 0], lambda v: v[:0], lambda v: v.reshape(-1).unfold(0, 5, 2), lambda v: v[:, :1].transpose(1, 2),
    ]  # fmt: skip
    on_device = [form(x.to(D)) for form in forms]
    torch.dipu.configure(**SLOW)
    copies = [copy_tensor(tensor, "cpu", non_blocking=True) for tensor in on_device]
    assert all(copy.is_pinned() for copy in copies if copy.numel())
    torch.dipu.synchronize()
    for form, tensor, copy in zip(forms, on_device, copies, strict=True):
        assert torch.equal(copy, form(x)) and copy.stride() == copy_tensor(tensor, "cpu").stride()


def shared(copies: list[torch.Tensor]) -> list[int]:
    """For each tensor the first one that shows the same memory."""
    memories = [copy.untyped_storage().data_ptr() for copy in copies]
    return [memories.index(memory) for memory in memories]


def test_a_whole_call_is_copied_at_once_as_python_copies_it_tensor_by_tensor(quiet_device: None) -> None:
    x, y = torch.randn(4, 6, 5).to(D), torch.arange(12).reshape(3, 4).to(D)
    grad, host = torch.randn(3, device=D, requires_grad=True), torch.randn(2, 3).t()
    args = (
        [x, y, x], grad, host, x[1:, ::2].transpose(0, 2), y.t(), y[:1].expand(5, 4), y[2, 1], y[:0],
        (None, True, 3, 2.5, torch.float16, torch.device(D), "dipu:0", "mean"), [[y.reshape(-1).unfold(0, 5, 2)]],
    )  # fmt: skip
    kwargs = {
        "generator": torch.Generator(D),
        "out": x,
        "other": torch.arange(6.0, device=D)[2:].reshape(2, 2),
    }
    home, copies = Transfer("cpu", non_blocking=True), native.queued_copies(timed=True)
    torch.dipu.configure(**SLOW)
    made = copies.call(args, kwargs, home.leaf)
    copies.wait()
    assert copies.arrived() and copies.seconds() > 0
    expected = home.call(args, kwargs)
    torch.dipu.synchronize()
    found, right = tensors_of(made), tensors_of(expected)
    assert len(found) == len(right) == 13 and found[0] is found[2] is made[1]["out"]
    for one, other in zip(found, right, strict=True):
        assert torch.equal(one, other) and one.dtype is other.dtype and not one.requires_grad
        assert one.stride() == other.stride() and one.device.type == "cpu"
    assert shared(found) == shared(right)
    assert (
        made[0][8]
        == expected[0][8]
        == (None, True, 3, 2.5, torch.float16, torch.device("cpu"), "cpu", "mean")
    )
    assert made[1]["generator"] is None and set(made[1]) == set(kwargs)
    found[0].fill_(7)  # as its call does: what shows the same memory has it, and nothing else
    assert bool((found[5] == 7).all()) and not bool((found[1] == 7).all()) and not bool((x == 7).any())


def test_a_call_with_a_tensor_of_another_kind_is_left_to_python_as_a_whole() -> None:
    x = torch.arange(6.0, device=D)
    others = [
        x.as_subclass(WithMethods), torch.view_as_complex(x.reshape(3, 2)).conj(), torch.ones(3, 3).to_sparse(),
        torch.empty(3, device="meta"), torch._efficientzerotensor((3,)),
    ]  # fmt: skip
    copies = native.queued_copies()
    for other in others:
        assert copies.call(([x, other],), {}, None) is None and copies.results([other], [], []) is None
    assert copies.call((x,), {"size": torch.Size((2, 3))}, None) is None
    [[again], left] = copies.results([x], [x], [x, x[:2]])
    assert torch.equal(again, x.cpu()) and left == [again, None] and left[0] is again


def test_the_thread_is_woken_for_a_step_and_not_for_each_call(monkeypatch: Any) -> None:
    monkeypatch.setattr("op_tools.comparison.background._LONGEST_UNSEEN", 1e9)
    background, done = Background(1000, 0), []
    background._looked = time.monotonic()
    for number in range(31):
        background.submit(job(lambda number=number: done.append(number)))  # type: ignore[misc]
    assert len(background._on_the_way) == 31 and not background._ready and not done
    background.submit(job(lambda: done.append(31)))
    assert not background._on_the_way
    background.submit(job(lambda: done.append(32)))
    assert len(background._on_the_way) == 1
    background.look()
    assert not background._on_the_way
    background.close()
    assert done == list(range(33))


def test_where_no_memory_can_be_pinned_a_copy_is_waited_for(monkeypatch: Any) -> None:
    x, empty = torch.arange(5.0, device=D), torch.empty

    def refusing(*args: Any, **kwargs: Any) -> torch.Tensor:
        if kwargs.get("pin_memory"):
            raise RuntimeError("CUDA error: out of memory")
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", refusing)
    copy = copy_tensor(x, "cpu", non_blocking=True)
    assert copy.tolist() == [0, 1, 2, 3, 4] and not copy.is_pinned()


class WithMethods(torch.Tensor):
    """A tensor of the program's own class."""


def test_memory_that_a_copy_does_not_find_is_no_error_of_the_program(monkeypatch: Any) -> None:
    def refusing(*_: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("no room for a contiguous copy")

    x = torch.ones(4, device=D).as_subclass(WithMethods)  # of a class that the compiled part leaves to Python
    monkeypatch.setattr("op_tools.transfer._copy", refusing)
    for tool in (OpSentinel(budget=0), OpAutoCompare()):
        with tool:
            assert torch.neg(x).tolist() == [-1, -1, -1, -1]
    names = ("aten.neg.default", "aten._to_copy.default", "torch.neg", "torch.Tensor.tolist")
    assert {name: kind for _, name, kind in ENGINE.failures.seen} == dict.fromkeys(names, "OutOfMemoryError")


def test_conjugates_and_negatives_of_one_memory_stay_what_they_are() -> None:
    c = torch.view_as_complex(torch.arange(6.0).reshape(3, 2).to(D))
    copies, _ = Transfer("cpu").call((c, c.conj(), c.conj().imag), {})
    assert torch.equal(copies[1].resolve_conj(), copies[0].conj().resolve_conj())
    assert torch.equal(copies[2].resolve_neg(), -copies[0].imag)
    copies[0].zero_()
    assert not copies[1].resolve_conj().any()


# -- rows ------------------------------------------------------------------------------------------------------------


def test_rows_that_are_kept_stand_for_those_that_are_not() -> None:
    thinned, kept = Thinned(), []
    for number in range(1000):
        error = 0.5 if number == 555 else 0.1
        kept += thinned.rows("mm", {"verdict": "pass", "error_over_bound": error, "step": number})
    kept += thinned.rows("mm", {"verdict": "fail", "step": 1000})
    rest = thinned.rest()
    assert sum(row["count"] for row in kept + rest) == 1001
    assert [row["step"] for row in kept[100:]] == [199, 299, 399, 499, 555, 599, 699, 799, 899, 999, 1000]
    assert rest == [] and kept[100]["count"] == 100


# -- the end of the program ------------------------------------------------------------------------------------------

QUEUED = """
    import os, signal, sys, threading, time, torch, torch_dipu, op_tools
    library = torch.library.Library("aten", "IMPL")
    library.impl("exp", lambda x: (x.cpu().exp() * 1.01).to("dipu"), "PrivateUse1", allow_override=True)
    tool = op_tools.OpSentinel(budget=0, queue=10000).start()
    for size in range(2, 90):
        (torch.ones(size, 40, device="dipu") * 0.5).exp()
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('mine')", 1),
        (
            "threading.Thread(target=lambda: (time.sleep(0.2), torch.ones(7, 7, device='dipu').exp())).start()",
            0,
        ),
    ],
)
def test_a_program_that_does_not_stop_the_tool_ends_as_it_would_and_what_waits_is_judged(
    ending: str, code: int, run_python: Any, tmp_path: Any
) -> None:
    run_python(QUEUED + f"    {ending}\n", expect=code)
    failed = [row for row in logged(tmp_path) if row["verdict"] == "fail"]
    assert len(failed) >= 88 and {row["name"] for row in failed} == {"aten.exp.default output"}


def logged(tmp_path: Any) -> list[dict[str, Any]]:
    from op_tools.runs import open_run

    return list(open_run(tmp_path / "op_tools_results").rows("sentinel"))


def test_ctrl_c_while_the_end_waits_gives_up_what_is_not_judged_and_says_so(run_python: Any) -> None:
    slow = "    judge = tool._judge_results; tool._judge_results = lambda *args: (time.sleep(0.2), judge(*args))\n"
    started, calls = QUEUED.split("    for size", 1)
    said = run_python(
        f"{started}{slow}    for size{calls}"
        + """
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        tool.stop()
    except KeyboardInterrupt:
        print("interrupted")
    """
    )
    assert "calls not judged any more: the program ended" in said and "op_tools: OpSentinel judged" in said
    assert said.splitlines()[-1] == "interrupted"


def test_a_forked_child_has_a_thread_of_its_own(run_python: Any) -> None:
    said = run_python(
        QUEUED
        + """
    child = os.fork()
    if child == 0:
        tool.say = lambda text: None
        (torch.ones(500, 2, device="dipu") * 0.5).exp()
        tool.stop()
        os._exit(7)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    tool.stop()
    """
    )
    assert "child 7" in said and "judged" in said


def test_a_whole_run_under_ditorch_run(tmp_path: Any, run_python: Any) -> None:
    (tmp_path / "program.py").write_text(
        "import torch\nx = torch.ones(4, device='cuda')\nfor _ in range(3): x = (x * 2).exp().log()\nassert x.sum() > 0\n"
    )
    said = run_python(
        """
        import sys
        from _ditorch.cli import app
        sys.argv = ["ditorch", "run", "--always-on", "--gate", "sentinel", "program.py"]
        app()
        """
    )
    assert "op_tools: OpSentinel judged" in said and "ditorch: results are in op_tools_results" in said
    assert "about once in 50 steps" in said and op_tools.OpSentinel.command_name == "sentinel"
