"""Streams and events of the device, in the shape of torch.cuda's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_dipu import _C
from torch_dipu.device_index import Device, device_index

# Subclasses of torch's own classes, as torch.cuda's are: torch.compile recognises them by that. The classes are kept
# here, because a mapping of cuda's names may put others under `torch.Stream` and `torch.device` later.
_TorchStream: Any = torch.Stream
_TorchEvent: Any = torch.Event
_TorchDevice: Any = type(torch.empty(0).device)


def _device(device: Device) -> torch.device:
    made: torch.device = _TorchDevice("dipu", device_index(device))
    return made


class Stream(_TorchStream):  # type: ignore[misc]
    """A queue of work; what is queued on one stream runs in order. A lower `priority` is more urgent."""

    def __new__(cls, device: Device = None, priority: int = 0, **ids: Any) -> Stream:
        if ids:  # from the numbers of another stream
            existing: Stream = super().__new__(cls, **ids)
            return existing
        made: Stream = super().__new__(cls, device=_device(device), priority=priority)
        return made

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the most urgent priority of the current device."""
        return _C.stream_priority_range(_C.current_device())

    @property
    def priority(self) -> int:
        """What the stream was made with, or the nearest that the device has."""
        return _C.stream_priority(self.stream_id)

    @property
    def dipu_stream(self) -> int:
        """The stream as the vendor's own libraries know it, like `torch.cuda.Stream.cuda_stream`."""
        return _C.stream_handle(self.device_index, self.stream_id)

    def add_callback(self, callback: Callable[[], object]) -> None:
        """Calls a Python function when the stream has done what it was given so far, and before what comes later.

        It must not use the device, which waits for it. What it raises is reported by the next synchronisation.
        """
        _C.add_callback(self.device_index, self.stream_id, callback)

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Marks this point of the stream; makes an event if none is given."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __repr__(self) -> str:
        return f"<torch.dipu.Stream device=dipu:{self.device_index} id={self.stream_id}>"


class _OfDevice(type):
    """Recognises torch's own events of this device as instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _TorchEvent) and instance.device.type == "dipu"


class Event(_TorchEvent, metaclass=_OfDevice):  # type: ignore[misc]
    """A mark in a stream that can be waited for and timed.

    Makes objects of torch's own class: `elapsed_time` takes no others.
    """

    def __new__(  # type: ignore[misc]
        cls,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
        external: bool = False,
    ) -> torch.Event:
        if interprocess:
            raise NotImplementedError("dipu: events cannot be shared between processes (interprocess=True)")
        if external:
            raise NotImplementedError(
                "dipu: work is not captured, so no event can come from outside a capture"
            )
        made: torch.Event = _TorchEvent(device=_device(None), enable_timing=enable_timing, blocking=blocking)
        if (
            blocking
        ):  # torch makes the vendor's event when it is recorded first, and tells nothing of this flag
            _C.set_blocking_events(True)
            try:
                made.record(torch.accelerator.current_stream(made.device))
            finally:
                _C.set_blocking_events(False)
        return made


class StreamContext:
    """Context manager: this thread queues its work on the given stream."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._previous: torch.Stream | None = None

    def __enter__(self) -> torch.Stream | None:
        if self.stream is not None:
            self._previous = torch.accelerator.current_stream(self.stream.device)
            torch.accelerator.set_stream(self.stream)
        return self.stream

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            torch.accelerator.set_stream(self._previous)


def stream(stream: torch.Stream | None) -> StreamContext:
    return StreamContext(stream)


def current_stream(device: Device = None) -> Stream:
    """The stream on which this thread queues its work for a device."""
    current = torch.accelerator.current_stream(_device(device))
    return Stream(
        stream_id=current.stream_id, device_index=current.device_index, device_type=current.device_type
    )


def default_stream(device: Device = None) -> Stream:
    """The stream that a device's work is queued on unless another was chosen."""
    current = torch.accelerator.current_stream(_device(device))
    return Stream(stream_id=0, device_index=current.device_index, device_type=current.device_type)


def set_stream(stream: torch.Stream) -> None:
    torch.accelerator.set_stream(stream)


_SYNC_DEBUG_MODES = {"default": 0, "warn": 1, "error": 2}


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """What operators do that wait for the device, in all threads.

    "default" (0): nothing; "warn" (1): a warning at the line that called the operator; "error" (2): they raise instead.
    `synchronize()` and waits for streams and events are never reported.
    """
    mode = _SYNC_DEBUG_MODES.get(debug_mode, -1) if isinstance(debug_mode, str) else int(debug_mode)
    if mode not in _SYNC_DEBUG_MODES.values():
        raise RuntimeError(
            f"invalid value of debug_mode: {debug_mode!r}; expected one of `default`, `warn`, `error` or 0, 1, 2"
        )
    _C.set_sync_debug_mode(mode)


def get_sync_debug_mode() -> int:
    """0, 1 or 2, as in `set_sync_debug_mode`."""
    return _C.sync_debug_mode()
