"""One call that is judged later: its values are copied without waiting for the device, its record lets go of the tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from op_tools import describe, writing
from op_tools.comparison.background import Background, Copies, Job, devices_of
from op_tools.comparison.budget import Look
from op_tools.engine import ENGINE, Call
from op_tools.tool import Tool
from op_tools.transfer import Transfer
from op_tools.trees import flat_results, tensors_of

__all__ = ["INPUT", "Deferred", "wait_for_host_results"]

# What the rows say of the arguments, among the notes of a call that has only copies of them.
INPUT = "input"


class Deferred:
    """Copies of what a call is given and of what it gives back, on their way."""

    def __init__(self, background: Background, reference: str, size: int) -> None:
        self._background = background
        self._reference = reference
        self._size = size
        self._copies = Copies()
        self._default_dtype = torch.get_default_dtype()
        self._whole = True  # all values are among the copies
        self.look: Look | None = None  # where the tool has a budget

    @classmethod
    def of(cls, call: Call, background: Background, reference: str) -> Deferred | None:
        """For a call that is about to run; None where it cannot be looked at, or there is no room."""
        tensors = call.tensors()
        size = _bytes_of(tensors)
        if any(map(_is_recording, devices_of(tensors))) or not background.has_room(size):
            return None
        return cls(background, reference, size)

    def copy_inputs(self, call: Call) -> tuple[Any, Any]:
        """The arguments as the call finds them."""
        inputs: list[Any] = []
        home = self._home()
        self._copies.make(
            devices_of(call.tensors()), lambda: inputs.extend(home.call(call.args, call.kwargs))
        )
        return inputs[0], inputs[1]

    def copy_results(self, call: Call, result: Any) -> tuple[list[Any], dict[int, torch.Tensor | None]]:
        """What the call gives back, and by its index among the tensors what it has left of those that it wrote to."""
        home = self._home()
        values: list[Any] = []
        written = writing.written(call.func, call.name, call.args, call.kwargs)
        left: dict[int, torch.Tensor | None] = {}
        given = tensors_of((result, written))

        def copy() -> None:
            values.extend(home.tree(value) for value in flat_results(result))
            after = {id(tensor): home.tensor(tensor) for tensor in written}
            left.update((index, after.get(id(tensor))) for index, tensor in enumerate(call.tensors()))

        self._whole = not _hosts_later(call, given)
        if self._whole:
            self._size += _bytes_of(given)
            self._copies.make(devices_of(given), copy)
        return values, left

    def submit(self, tool: Tool, call: Call, inputs: tuple[Any, Any], judge: Callable[[], None]) -> None:
        """Hand the call over to the thread, with what is only known now: where it stands."""
        if not self._whole:
            self.ended()
            return
        call.read_site(with_stack=tool.settings.print_stack)
        call.notes[INPUT] = describe.brief_call(call.args, call.kwargs)
        call.detach_to(*inputs)

        def judged() -> None:
            if torch.get_default_dtype() == self._default_dtype:  # else the program is in a part of its own
                ENGINE.guarded(tool, call, judge)

        look = self.look
        done = (None, None) if look is None else (look.copied, look.judged)
        self._background.submit(Job(judged, self._copies, self._size, *done))

    def ended(self) -> None:
        """The call is not judged."""
        if self.look is not None:
            self.look.ended()

    def _home(self) -> Transfer:
        return Transfer(self._reference, non_blocking=True)


def _bytes_of(tensors: list[torch.Tensor]) -> int:
    each = {id(tensor): tensor for tensor in tensors}
    return sum(t.numel() * t.element_size() for t in each.values() if t.layout is torch.strided)


def _is_recording(device: torch.device) -> bool:
    """Whether what is queued on a device now is recorded into a graph: a copy would be in that graph for ever."""
    asked = getattr(torch.get_device_module(device), "is_current_stream_capturing", None)
    return asked is not None and bool(asked())


def _hosts_later(call: Call, tensors: list[torch.Tensor]) -> bool:
    """Whether the call gives values to the host that come when it has long returned: pinned memory that is not waited for.

    When they are there is known; but what the program writes there afterwards is the program's.
    """
    return any(tensor.device.type == "cpu" and tensor.is_pinned() for tensor in tensors) and bool(
        devices_of(call.tensors())
    )


def wait_for_host_results(call: Call, result: Any) -> None:
    """Wait for values that a device is still copying into pinned memory of the host."""
    tensors = tensors_of((result, writing.written(call.func, call.name, call.args, call.kwargs)))
    if _hosts_later(call, tensors):
        for device in devices_of(call.tensors()):
            torch.accelerator.synchronize(device)
