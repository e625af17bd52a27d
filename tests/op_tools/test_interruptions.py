"""What a signal's handler raises while a tool is at work is the program's, and the tool goes on afterwards as before."""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from op_tools.device_error import DeviceError
from op_tools.engine import ENGINE, native, private

D = "dipu"
_ENGINE = f"{os.sep}op_tools{os.sep}"


class Stop(BaseException):
    """As KeyboardInterrupt."""


def interrupted(work: Callable[[], Any], error: BaseException, at: int) -> int:
    """Run something and raise at the n-th place in the tools where Python looks for signals; how many it came by.

    Python looks when a function begins and when one of C has been called."""
    places = 0

    def look(frame: Any, event: str, _: Any) -> None:
        nonlocal places
        generator = event == "call" and frame.f_code.co_flags & inspect.CO_GENERATOR  # also when it is closed
        if event in {"call", "c_return"} and _ENGINE in frame.f_code.co_filename and not generator:
            places += 1
            if places == at:
                sys.setprofile(None)
                raise error

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return places


def _train(x: torch.Tensor) -> None:
    F.relu((x + 1).exp()).sum().backward()


@pytest.mark.parametrize("form", ["api", "aten", "named", "backward"])
def test_the_program_gets_it_and_the_tool_sees_the_next_calls(probe: Any, form: str) -> None:
    settings = {
        "api": {}, "aten": {"aten": True, "ties": True}, "named": {"list": "torch.Tensor.exp,torch.nn.functional.relu"},
        "backward": {"backward": True},
    }[form]  # fmt: skip
    x = torch.ones(2, device=D, requires_grad=True)
    expected = {"api": 1, "aten": 2, "named": 1, "backward": 1}[form]
    with probe(**settings) as tool:
        _train(x)
        modes = private.function_modes()
        places = interrupted(lambda: _train(x), Stop(), 0)
        assert places > 20
        for at in range(1, places, 1 + places // 150):
            error = Stop(at)
            try:
                # In a callback of torch no error can leave: it comes at the next step of the program.
                assert interrupted(lambda: _train(x), error, at) < at, f"lost at {at}"
            except Stop as caught:
                assert caught is error
            assert not native.is_quiet() and ENGINE.local.api_call is None, at
            assert private.function_modes() == modes, at
            tool.calls.clear()
            x.exp()
            assert len(tool.calls) == expected, at
    assert ENGINE.failures.seen == {}


@pytest.fixture
def alarm() -> Iterator[Callable[[BaseException], None]]:
    """Let a signal's handler raise, at once."""
    before = signal.getsignal(signal.SIGUSR1)

    def raises(error: BaseException) -> None:
        def handler(*_: Any) -> None:
            raise error

        signal.signal(signal.SIGUSR1, handler)
        signal.raise_signal(signal.SIGUSR1)

    yield raises
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("aten", [False, True])
@pytest.mark.parametrize("hook", ["applies", "before", "after", "backward"])
def test_an_error_of_a_handler_is_not_taken_for_one_of_the_tool(
    probe: Any, alarm: Any, hook: str, aten: bool
) -> None:
    error = TimeoutError("of the program")

    def interrupted(self: Any, *_: Any) -> None:
        setattr(type(self), hook, lambda *_: True)
        alarm(error)

    if aten and hook == "backward":
        pytest.skip("gradients are those of calls at API level")
    kind = type("Interrupted", (probe,), {hook: interrupted})
    tool = kind(aten=aten, backward=not aten, list="torch.Tensor.exp", device="cpu")
    x = torch.ones(2, requires_grad=True)  # backward is on this thread: handlers run on the main one
    with tool, pytest.raises(TimeoutError) as caught:
        x.exp().sum().backward()
        sum(range(3))  # where Python looks
    assert caught.value is error and ENGINE.failures.seen == {} and not native.is_quiet()


def test_an_error_of_the_device_met_in_backward_is_raised_by_backward(probe: Any) -> None:
    error = RuntimeError("the device")

    class Meets(probe):  # type: ignore[misc]
        def backward(self, call: Any, *_: Any) -> None:
            raise DeviceError(error)

    x = torch.ones(2, device=D, requires_grad=True)
    with Meets(backward=True):
        y = x.exp().sum()
        with pytest.raises(RuntimeError) as caught:
            y.backward()
    assert caught.value is error and ENGINE.failures.seen == {}


@pytest.mark.parametrize("device", ["dipu", "cpu"])
def test_an_error_met_in_a_callback_is_the_same_object(probe: Any, device: str) -> None:
    error = RuntimeError("the device")
    met = []

    class Meets(probe):  # type: ignore[misc]
        def after(self, call: Any, result: Any) -> None:
            if call.name == "aten.cos.default" and not met:
                met.append(call.name)
                raise DeviceError(error)

    x = torch.ones(2, device=device, requires_grad=True)
    with Meets(aten=True, device=device):
        with pytest.raises(RuntimeError) as caught:
            x.sin().sum().backward()  # cos is in backward: on the device's own thread of autograd, or on this one
            sum(range(3))
        assert caught.value is error
        x.sin().sum().backward()
    assert ENGINE.failures.seen == {} and met == ["aten.cos.default"]


def test_a_deep_recursion_is_as_deep_with_a_tool(probe: Any) -> None:
    x = torch.ones(2, device=D)

    def deep(count: int) -> Any:
        return deep(count - 1) if count else torch.add(x, x)

    used = 0
    frame: Any = sys._getframe()
    while frame is not None:
        used, frame = used + 1, frame.f_back

    def reaches(spare: int) -> bool:
        try:
            deep(sys.getrecursionlimit() - used - spare)
        except RecursionError:
            return False
        return True

    plain = [spare for spare in range(40) if reaches(spare)]
    tool = probe(aten=True)
    tool.uses_api = False
    with tool:
        assert [spare for spare in range(40) if reaches(spare)] == plain
    assert tool.names_seen() == ["aten.add.Tensor"] * len(plain) and ENGINE.failures.seen == {}
