"""How long calls take on their device, forward and backward.

A pair of device events brackets each call, and its backward from the first gradient that reaches the call to the last that leaves
it; nothing waits before the times are read. A device without events, and a clock that is to wait, have the host's time.

The compiled part has such clocks (`csrc/op_tools/call_clock.cpp`), whose hooks in backward run no Python. The ones here are for
an installation without it, for who waits, and for who prints the gradients as they come.
"""

from __future__ import annotations

import math
import time
from typing import Any, Protocol

import torch

from op_tools import describe
from op_tools.device_error import DeviceError
from op_tools.engine import native

# (began_us, milliseconds, texts of the gradients of inputs, of outputs)
Backward = tuple[float, float, list[str | None], list[str | None]]

# From this process's own clock to the time of day, fixed so that calls keep their order and ranks their distance.
_SINCE_1970_NS = time.time_ns() - time.perf_counter_ns()


class CallClock(Protocol):
    """How long one call takes."""

    def stop(self, result: Any) -> None:
        """The call has returned this."""

    @property
    def waits(self) -> bool:
        """Whether backward of the call may come."""

    @property
    def on_host(self) -> bool:
        """Whether the host's time is taken."""

    @property
    def began_us(self) -> float:
        """When the host started it, in microseconds since 1970."""

    def read(self) -> tuple[float, Backward | str | None]:
        """Milliseconds, and backward if there was one or why it was not measured, for the last time: waits for the device."""


class Clocks(Protocol):
    """The clocks of one run of a tool."""

    def start(self, tensors: list[torch.Tensor], backward: bool) -> CallClock:
        """A call with these tensors begins. backward: measure that as well."""

    def end(self) -> None:
        """The tool is off: what its graphs still do is not measured."""


class _Span:
    """Start and end of one stretch of work on one device. Its events come from `spare` and go back there."""

    __slots__ = ("began", "device", "end", "on_host", "spare", "start")

    def __init__(self, device: torch.device, sync: bool, spare: list[Any]) -> None:
        self.device = device
        self.on_host = sync or device.type == "cpu"
        self.spare = spare
        # Where a trace puts the call: an event cannot say when it was recorded. Read before, so that a call never
        # seems to reach into the next one.
        self.began = time.perf_counter_ns()
        self.start: Any = self._mark()
        self.end: Any = None

    def _mark(self) -> Any:
        if self.on_host:
            if self.device.type != "cpu":
                self._wait()
            return time.perf_counter_ns()
        try:
            event = self.spare.pop()
        except IndexError:
            event = torch.Event(self.device, enable_timing=True)
        event.record()
        return event

    def _wait(self) -> None:
        try:
            if self.on_host:
                torch.accelerator.synchronize(self.device)
            else:
                self.end.synchronize()
        except RuntimeError as error:  # of work the program has queued
            raise DeviceError(error) from error

    def stop(self) -> None:
        self.end = self._mark()

    def milliseconds(self) -> float:
        if self.on_host:
            return float((self.end - self.start) / 1e6)
        self._wait()
        return float(self.start.elapsed_time(self.end))

    def began_us(self) -> float:
        began = self.start if self.on_host else self.began
        return float((began + _SINCE_1970_NS) / 1000)

    def give_back(self) -> None:
        if not self.on_host:
            self.spare += (self.start, self.end)
            self.start = self.end = None


class HookedClock:
    """A clock that the tool's hooks tell when gradients reach the call and when they have left it."""

    __slots__ = ("_backward", "_begun", "_clocks", "_closed", "_device", "_forward", "_gradients", "waits")

    def __init__(self, clocks: HookedClocks, device: torch.device) -> None:
        self._clocks = clocks
        self._device = device
        self.waits = False
        self._closed = False
        # A backward that may not reach all inputs of the call: it may never end.
        self._begun: _Span | None = None
        self._backward: _Span | None = None
        self._gradients: tuple[list[str | None], list[str | None]] = ([], [])
        self._forward = clocks.span(device)

    def stop(self, result: Any) -> None:
        self._forward.stop()

    def arrives(self) -> None:
        """The first gradient has reached the call."""
        if not self._closed:
            self._begun = self._clocks.span(self._device)

    def passed(self, of_inputs: list[Any], of_outputs: list[Any]) -> bool:
        """The last gradient has left it; whether that was measured."""
        if self._closed or self._begun is None:
            return False
        self._begun.stop()
        self._backward, self._begun = self._begun, None
        self._gradients = _texts(of_inputs), _texts(of_outputs)
        self.waits = False
        return True

    @property
    def on_host(self) -> bool:
        return self._forward.on_host

    @property
    def began_us(self) -> float:
        return self._forward.began_us()

    def milliseconds(self) -> float:
        """Of the call alone, so far as it is known; nothing is given back."""
        return self._forward.milliseconds()

    def backward_milliseconds(self) -> float:
        """Of the last backward."""
        return math.nan if self._backward is None else self._backward.milliseconds()

    def read(self) -> tuple[float, Backward | str | None]:
        self._closed = True
        forward = self._forward.milliseconds()
        self._forward.give_back()
        if self._backward is None:
            return forward, None
        backward = self._backward.began_us(), self._backward.milliseconds(), *self._gradients
        self._backward.give_back()
        return forward, backward


class HookedClocks:
    """Clocks without the compiled part: the tool asks the engine for the hooks."""

    def __init__(self, sync: bool) -> None:
        self._sync = sync
        self._spare: dict[torch.device, list[Any]] = {}

    def start(self, tensors: list[torch.Tensor], backward: bool) -> HookedClock:
        devices = (tensor.device for tensor in tensors)
        return HookedClock(self, next((one for one in devices if one.type not in {"cpu", "meta"}), _CPU))

    def span(self, device: torch.device) -> _Span:
        return _Span(device, self._sync, self._spare.setdefault(device, []))

    def end(self) -> None:
        pass  # the engine asks whether the tool still runs


_CPU = torch.device("cpu")


def _texts(tensors: list[Any]) -> list[str | None]:
    return [None if tensor is None else describe.brief(tensor) for tensor in tensors]


def make_clocks(sync: bool, hooked: bool) -> Clocks:
    """`hooked`: those that hooks are needed for; without the compiled part, and with `sync`, there are no others."""
    return HookedClocks(sync) if hooked else native.clocks()
