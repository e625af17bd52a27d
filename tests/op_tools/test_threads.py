"""Threads the program starts after start(): seen like the first one, nothing lost, nothing mixed."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import op_tools
from op_tools.engine import ENGINE, private

D = "dipu"


def test_threads_started_after_start_are_seen(probe: Any) -> None:
    x = torch.ones(2, device=D)

    class Own(threading.Thread):
        def run(self) -> None:
            x.exp()

    with probe(aten=True) as tool:
        for thread in (threading.Thread(target=x.neg), Own(), threading.Timer(0, x.sin)):
            thread.start()
            thread.join()
            assert "run" not in vars(thread)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda _: x.abs(), range(4)))
    assert (
        tool.names_seen("api")
        == ["torch.Tensor.neg", "torch.Tensor.exp", "torch.Tensor.sin"] + ["torch.Tensor.abs"] * 4
    )
    assert (
        tool.names_seen("aten")
        == ["aten.neg.default", "aten.exp.default", "aten.sin.default"] + ["aten.abs.default"] * 4
    )
    assert threading.get_ident() not in {place["thread"] for place in tool.locations}


def test_an_error_in_a_thread_is_the_threads_and_its_modes_go(probe: Any) -> None:
    before = len(ENGINE._modes)  # one that a library started under a tool of another test may go on
    error = KeyError("mine")
    caught = []
    left = []

    def fail() -> None:
        raise error

    class Own(threading.Thread):
        def run(self) -> None:
            try:
                fail()
            except KeyError as found:
                caught.append(found)

    with probe():
        thread = Own()
        thread.start()
        thread.join()
        with pytest.raises(RuntimeError, match="threads can only be started once"):
            thread.start()
        other = threading.Thread(target=lambda: left.append(len(private.function_modes())))
        other.start()
        other.join()
    assert caught == [error] and left == [1]
    assert len(ENGINE._modes) == before


def test_stop_while_threads_run(probe: Any) -> None:
    before = len(ENGINE._modes)
    x = torch.ones(2, device=D)
    running, go_on, done = threading.Event(), threading.Event(), []

    def work() -> None:
        x.neg()
        running.set()
        go_on.wait()
        done.append((x.exp() + 1).shape)
        second.start() if second is not tool else None
        x.abs()

    tool = second = probe()
    tool.start()
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    running.wait()
    while len(tool.calls) < 3:
        pass
    tool.stop()
    # Threads that still have modes are looked after: what keeps those out of the compiler's way stays until the last is gone.
    patches = ENGINE._patches
    assert patches._for_modes._undo and not patches._for_tools._undo
    go_on.set()
    for thread in threads:
        thread.join()
    assert tool.names_seen() == ["torch.Tensor.neg"] * 3 and len(done) == 3
    assert len(ENGINE._modes) == before and bool(patches._for_modes._undo) == bool(before)


def test_a_thread_that_ends_with_modes_takes_them_along(probe: Any) -> None:
    """One that was there before the tools: nothing is done for it when it ends."""
    before = len(ENGINE._modes)
    go_on = threading.Event()
    tool = probe()

    def work() -> None:
        tool.start()
        torch.ones(2, device=D).neg()
        go_on.set()

    thread = threading.Thread(target=work)
    thread.start()
    go_on.wait()
    thread.join()
    tool.stop()
    gc.collect()
    assert tool.names_seen() == ["torch.Tensor.neg"] and len(ENGINE._modes) == before
    ENGINE.sync_thread()
    assert bool(ENGINE._patches._for_modes._undo) == bool(before)


def test_start_in_one_thread_and_stop_in_another(probe: Any) -> None:
    x = torch.ones(2, device=D)
    tool = probe(aten=True)
    tool.start()
    stopper = threading.Thread(target=tool.stop)
    stopper.start()
    stopper.join()
    x.neg()
    assert tool.calls == []
    with tool:
        x.abs()
    assert tool.names_seen("api") == ["torch.Tensor.abs"]
    assert private.function_modes() == private.dispatch_modes() == []


def test_four_threads_at_once_lose_and_mix_nothing(rows: Any) -> None:
    count = 60
    tools = [
        op_tools.OpObserve(max_cache_size=7), op_tools.OpTimeMeasure(max_cache_size=5), op_tools.OpOverflowCheck()
    ]  # fmt: skip
    wrong = []

    def work(number: int) -> None:
        w = torch.full((number + 1, number + 1), float(number), device=D, requires_grad=True)
        for step in range(count):
            y = (w * float(step)).sum()
            y.backward()
            if w.grad.flatten()[0].item() != step:
                wrong.append((number, step))
            w.grad = None
        torch.log(torch.full((number + 1,), 0.0, device=D))

    for tool in tools:
        tool.start()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for tool in tools:
        tool.stop()
    assert wrong == [] and ENGINE.failures.seen == {}
    for folder in ("op_observe_result", "op_time_measure_result"):
        table = rows(folder)
        for number in range(4):
            shape = f"[{number + 1}, {number + 1}]"
            mine = [row for row in table if row["name"] == "torch.Tensor.mul" and shape in row["input"]]
            assert len(mine) == count
            assert sorted(float(row["input"].rsplit(", ", 1)[1].rstrip(")")) for row in mine) == list(
                map(float, range(count))
            )
            assert all(shape in row["output"] for row in mine)
            if folder == "op_time_measure_result":
                assert all(float(row["backward_elasped"]) > 0 and shape in row["grad_inputs"] for row in mine)
    births = rows("op_overflow_check_result")
    assert len([row for row in births if row["kind"] == "Inf"]) == 4
    assert tools[2].births == 4


def test_the_guard_of_one_thread_does_not_blind_another(probe: Any) -> None:
    x = torch.ones(2, device=D)
    inside, go_on = threading.Event(), threading.Event()

    class Slow(probe):  # type: ignore[misc]
        def before(self, call: Any) -> None:
            super().before(call)
            if call.name == "torch.Tensor.neg":
                inside.set()
                go_on.wait()

    with Slow() as tool:
        thread = threading.Thread(target=x.neg)
        thread.start()
        inside.wait()
        x.abs()
        go_on.set()
        thread.join()
    assert tool.names_seen() == ["torch.Tensor.neg", "torch.Tensor.abs"]
