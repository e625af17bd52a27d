"""Capability: streams with priorities, events with flags, host callbacks, and the debug mode for synchronisations."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator

import pytest
import torch

import torch_dipu

IS_HOST = torch_dipu.dipu.vendor_name() == "host"


@pytest.fixture(params=["as it is", "asynchronous"])
def queue(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether work is certainly still queued when a call returns."""
    if request.param == "as it is":
        yield False
        return
    if not IS_HOST:
        pytest.skip("the simulated chip alone can be told to be slow")
    torch.dipu.configure(**{"async": True, "delay_us": 2000})
    yield True
    torch.dipu.configure(**{"async": False, "delay_us": 0})


def test_a_stream_keeps_its_priority() -> None:
    least, greatest = torch.dipu.Stream.priority_range()
    assert least == 0 >= greatest
    if IS_HOST:
        assert (least, greatest) == (0, -2)
    usual, urgent = torch.dipu.Stream(), torch.dipu.Stream(priority=greatest)
    assert (usual.priority, urgent.priority) == (0, greatest)
    assert torch.dipu.Stream(priority=greatest - 5).priority == greatest  # the nearest there is
    assert torch.dipu.default_stream().priority == 0
    with torch.dipu.stream(urgent):
        assert torch.dipu.current_stream() == urgent
        assert torch.dipu.current_stream().priority == greatest
        assert torch_dipu.current_stream().dipu_stream == urgent.dipu_stream
        x = torch.ones(8, device="dipu") * 3
    urgent.synchronize()
    assert x.tolist() == [3] * 8
    with pytest.raises(ValueError, match="priority is 0 or, for more urgent ones, below; got 1"):
        torch.dipu.Stream(priority=1)


def test_streams_are_told_apart_by_their_handles() -> None:
    default, other = torch.dipu.default_stream(), torch.dipu.Stream()
    assert torch.dipu.current_stream().dipu_stream == default.dipu_stream != 0
    assert other.dipu_stream not in (0, default.dipu_stream)
    if torch.dipu.device_count() > 1:
        assert torch.dipu.current_stream("dipu:1").dipu_stream not in (
            default.dipu_stream,
            other.dipu_stream,
        )


@pytest.mark.parametrize("blocking", [False, True])
def test_events_with_and_without_timing(blocking: bool, queue: bool) -> None:
    start = torch.dipu.Event(enable_timing=True, blocking=blocking)
    end = torch.dipu.Event(enable_timing=True, blocking=blocking)
    x = torch.zeros(64, device="dipu")
    torch.dipu.synchronize()
    start.record()
    for _ in range(3):
        x.add_(1)
    end.record()
    assert end.query() is not queue or not IS_HOST
    end.synchronize()
    assert end.query() and start.elapsed_time(end) >= (6 if queue else 0)
    plain = torch.dipu.Event(blocking=blocking)
    plain.record()
    plain.synchronize()
    with pytest.raises(ValueError, match="enable_timing=True"):
        plain.elapsed_time(end)


def test_events_between_processes_are_refused() -> None:
    with pytest.raises(
        NotImplementedError, match=r"cannot be shared between processes \(interprocess=True\)"
    ):
        torch.dipu.Event(interprocess=True)


def test_a_stream_waits_for_an_event_of_another(queue: bool) -> None:
    side, x = torch.dipu.Stream(), torch.zeros(256, device="dipu")
    torch.dipu.synchronize()
    for _ in range(4):
        x.add_(1)
    mark = torch.dipu.current_stream().record_event()
    with torch.dipu.stream(side):
        side.wait_event(mark)
        y = x * 2
        x.record_stream(side)
    side.synchronize()
    assert y.tolist() == [8] * 256


def test_a_callback_comes_between_what_is_queued_before_and_after(queue: bool) -> None:
    seen: list[tuple[str, float]] = []
    x = torch.zeros(4).pin_memory()
    y = torch.zeros(4, device="dipu")
    torch.dipu.synchronize()
    stream = torch.dipu.current_stream()
    for value in (1.0, 2.0):
        y.fill_(value)
        x.copy_(y, non_blocking=True)
        stream.add_callback(lambda: seen.append((threading.current_thread().name, x[0].item())))
    if queue:
        assert seen == []
    stream.synchronize()
    assert [value for _, value in seen] == [1, 2]


def test_what_a_callback_raises_is_reported_by_the_next_synchronisation(queue: bool) -> None:
    def fail() -> None:
        raise ValueError("the callback's own words")

    with pytest.raises(RuntimeError, match="ValueError: the callback's own words"):
        torch.dipu.current_stream().add_callback(fail)
        torch.dipu.synchronize()
    torch.dipu.synchronize()  # once
    assert (torch.ones(2, device="dipu") + 1).tolist() == [2, 2]


def test_a_callback_is_let_go_after_its_call(queue: bool) -> None:
    class Callback:
        def __call__(self) -> None:
            time.sleep(0)

        def __del__(self) -> None:
            gone.set()

    gone = threading.Event()
    torch.dipu.current_stream().add_callback(Callback())
    torch.dipu.synchronize()
    assert gone.wait(10)


@pytest.fixture
def debug_mode() -> Iterator[None]:
    yield
    torch.dipu.set_sync_debug_mode("default")


SYNCHRONISING = {
    "item": lambda x: x[1].item(),
    "to the host": lambda x: x.cpu(),
    "to the device": lambda x: x.copy_(torch.ones(4)),
    "a condition": lambda x: bool((x > 0).all()),
    "a size that depends on the data": lambda x: x.nonzero(),
}


@pytest.mark.parametrize("what", SYNCHRONISING)
def test_a_synchronising_operator_is_warned_of_at_its_line_or_raises(what: str, debug_mode: None) -> None:
    act = SYNCHRONISING[what]
    x = torch.arange(4.0, device="dipu")
    torch_dipu.set_sync_debug_mode("warn")
    assert torch.dipu.get_sync_debug_mode() == 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act(x)
    told = [
        warning for warning in caught if "called a synchronizing dipu operation: " in str(warning.message)
    ]
    assert told and told[0].filename == __file__
    assert told[0].lineno == act.__code__.co_firstlineno
    torch.dipu.set_sync_debug_mode(2)
    with pytest.raises(RuntimeError, match="called a synchronizing dipu operation: ") as raised:
        act(x)
    assert raised.traceback[-1].path.name == "test_streams.py"
    torch.dipu.set_sync_debug_mode(0)
    act(x)


def step(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = torch.nn.functional.gelu(layer(x @ x.t())).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss


def test_what_does_not_wait_is_not_reported(debug_mode: None) -> None:
    x, pinned = torch.randn(64, 64, device="dipu"), torch.ones(64).pin_memory()
    layer = torch.nn.Linear(64, 64, device="dipu")
    torch.dipu.reset_op_counts()
    step(layer, x)
    if copied := [name for name, calls in torch.dipu.op_counts().items() if calls["copy"]]:
        pytest.skip(f"the vendor lacks what a step needs, and copies wait: {', '.join(copied)}")
    torch.dipu.set_sync_debug_mode("error")
    loss = step(layer, x)
    on_device = pinned.to("dipu", non_blocking=True)
    with torch.dipu.stream(torch.dipu.Stream()):
        on_device.add_(1)
    torch.dipu.synchronize()
    torch.dipu.current_stream().synchronize()
    torch.dipu.set_sync_debug_mode("default")
    assert on_device.sum().item() == 128 and loss.item() > 0


def test_a_wrong_debug_mode_is_refused() -> None:
    for wrong in ("loud", 3, -1):
        with pytest.raises(RuntimeError, match="expected one of `default`, `warn`, `error` or 0, 1, 2"):
            torch.dipu.set_sync_debug_mode(wrong)
    assert torch.dipu.get_sync_debug_mode() == 0
