"""Streams and events of the device, in the shape of torch.cuda's."""

from __future__ import annotations

from typing import Any

import torch

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

    priority: int = 0

    def __new__(cls, device: Device = None, priority: int = 0, **ids: Any) -> Stream:
        if ids:  # from the numbers of another stream
            existing: Stream = super().__new__(cls, **ids)
            return existing
        made: Stream = super().__new__(cls, device=_device(device), priority=priority)
        made.priority = priority
        return made

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the most urgent priority. Vendors do not tell theirs: 0 is the one that all have."""
        return 0, 0

    @property
    def dipu_stream(self) -> int:
        """The stream as the vendor's own libraries know it."""
        handle: Any = getattr(self, "native_handle", self.stream_id)  # torch 2.11 has no native_handle
        return int(handle)

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
            raise NotImplementedError("dipu: events cannot be shared between processes")
        if external:
            raise NotImplementedError(
                "dipu: work is not captured, so no event can come from outside a capture"
            )
        made: torch.Event = _TorchEvent(device=_device(None), enable_timing=enable_timing, blocking=blocking)
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
