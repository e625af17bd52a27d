"""Streams and events of the device, in the shape of torch.cuda's."""

from __future__ import annotations

from typing import Any

import torch

from torch_dipu.place import Place, index_of


def _device(place: Place) -> torch.device:
    return torch.device("dipu", index_of(place))


class _OfDevice(type):
    """torch knows its own stream and event classes only; ours make such objects, and isinstance recognises them."""

    made: type[Any]

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.made) and instance.device.type == "dipu"


class Stream(metaclass=_OfDevice):
    """A queue of work; what is queued on one stream runs in order."""

    made = torch.Stream

    def __new__(cls, device: Place = None, priority: int = 0, **ids: Any) -> torch.Stream:  # type: ignore[misc]
        if ids:  # from the numbers of another stream
            return torch.Stream(**ids)
        return torch.Stream(device=_device(device), priority=priority)


class Event(metaclass=_OfDevice):
    """A mark in a stream that can be waited for and timed."""

    made = torch.Event

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:  # type: ignore[misc]
        if interprocess:
            raise NotImplementedError("dipu: events cannot be shared between processes")
        return torch.Event(device=_device(None), enable_timing=enable_timing, blocking=blocking)


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


def current_stream(place: Place = None) -> torch.Stream:
    return torch.accelerator.current_stream(_device(place))


def default_stream(place: Place = None) -> torch.Stream:
    current = current_stream(place)
    return torch.Stream(stream_id=0, device_index=current.device_index, device_type=current.device_type)


def set_stream(stream: torch.Stream) -> None:
    torch.accelerator.set_stream(stream)
