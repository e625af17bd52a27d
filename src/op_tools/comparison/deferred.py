"""One call that is judged later: its values are copied without waiting for the device, its record lets go of the tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from op_tools import describe, writing
from op_tools.comparison.background import Background, Job
from op_tools.comparison.budget import Look
from op_tools.engine import ENGINE, Call, native
from op_tools.tool import Tool
from op_tools.transfer import Transfer
from op_tools.trees import flat_results, tensors_of

__all__ = ["INPUT", "Deferred", "wait_for_host_results"]

# What the rows say of the arguments, among the notes of a call that has only copies of them.
INPUT = "input"


class Deferred:
    """Copies of what a call is given and of what it gives back, on their way."""

    def __init__(self, background: Background, reference: str, size: int, *, timed: bool = False) -> None:
        self._background = background
        self._reference = reference
        self._size = size
        self._copies = native.queued_copies(timed)
        self._default_dtype = torch.get_default_dtype()
        self._whole = True  # all values are among the copies
        self.look: Look | None = None  # where the tool has a budget

    @classmethod
    def of(
        cls, call: Call, background: Background, reference: str, *, timed: bool = False
    ) -> Deferred | None:
        """For a call that is about to run; None where it cannot be looked at, or there is no room.

        `timed`: how long the devices take for the copies is to be known."""
        size, devices, _ = native.extent(call.tensors())
        if any(map(_is_recording, devices)) or not background.has_room(size):
            return None
        return cls(background, reference, size, timed=timed)

    def copy_inputs(self, call: Call) -> tuple[Any, Any]:
        """The arguments as the call finds them."""
        home = Transfer(self._reference, non_blocking=True)
        made = self._copies.call(call.args, call.kwargs, home.leaf) if self._to_host else None
        if made is not None:
            return made  # type: ignore[no-any-return]
        with self._queueing(call.tensors()):
            return home.call(call.args, call.kwargs)

    def copy_results(self, call: Call, result: Any) -> tuple[list[Any], Sequence[Any]]:
        """What the call gives back, and by its index among the tensors what it has left of those that it wrote to."""
        written = writing.written(call.func, call.name, call.args, call.kwargs)
        values = flat_results(result)
        given = tensors_of((values, written))
        size, _, on_host = native.extent(given)
        self._whole = not (on_host and _hosts_later(call, given))
        if not self._whole:
            return [], []
        self._size += size
        made = self._copies.results(values, written, call.tensors()) if self._to_host else None
        if made is not None:
            return made  # type: ignore[no-any-return]
        home = Transfer(self._reference, non_blocking=True)
        with self._queueing(given):
            copies = [home.tree(value) for value in values]
            after = {id(tensor): home.tensor(tensor) for tensor in written}
        return copies, [after.get(id(tensor)) for tensor in call.tensors()]

    @contextlib.contextmanager
    def _queueing(self, tensors: list[torch.Tensor]) -> Iterator[None]:
        self._copies.begin(tensors)
        yield
        self._copies.end()

    @property
    def _to_host(self) -> bool:
        return self._reference == "cpu"

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


def _is_recording(device: torch.device) -> bool:
    """Whether what is queued on a device now is recorded into a graph: a copy would be in that graph for ever."""
    asked = getattr(torch.get_device_module(device), "is_current_stream_capturing", None)
    return asked is not None and bool(asked())


def _hosts_later(call: Call, tensors: list[torch.Tensor]) -> bool:
    """Whether the call gives values to the host that come when it has long returned: pinned memory that is not waited for.

    When they are there is known; but what the program writes there afterwards is the program's.
    """
    return any(tensor.device.type == "cpu" and tensor.is_pinned() for tensor in tensors) and bool(
        _accelerators(call.tensors())
    )


def _accelerators(tensors: list[torch.Tensor]) -> set[torch.device]:
    return {tensor.device for tensor in tensors if tensor.device.type not in {"cpu", "meta"}}


def wait_for_host_results(call: Call, result: Any) -> None:
    """Wait for values that a device is still copying into pinned memory of the host."""
    tensors = tensors_of((result, writing.written(call.func, call.name, call.args, call.kwargs)))
    if _hosts_later(call, tensors):
        for device in _accelerators(call.tensors()):
            torch.accelerator.synchronize(device)
