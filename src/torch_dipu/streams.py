"""Streams and events of the device, in the shape of torch.cuda's."""

from __future__ import annotations

from typing import Any

import torch

from torch_dipu.place import Place, index_of


def _device(place: Place) -> torch.device:
    return torch.device("dipu", index_of(place))


class Stream(torch.Stream):
    """A queue of work; what is queued on one stream runs in order."""

    def __new__(cls, device: Place = None, priority: int = 0, **ids: Any) -> Stream:
        if ids:  # made from the numbers of another stream, as torch does in pickles and wrappers
            return super().__new__(cls, **ids)
        return super().__new__(cls, device=_device(device), priority=priority)


class Event(torch.Event):
    """A mark in a stream that can be waited for and timed."""

    def __new__(cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> Event:
        if interprocess:
            raise NotImplementedError("dipu: events cannot be shared between processes")
        return super().__new__(cls, device=_device(None), enable_timing=enable_timing, blocking=blocking)


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
