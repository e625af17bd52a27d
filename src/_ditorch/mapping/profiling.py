"""Profiling: `ProfilerActivity.CUDA`, `use_cuda=True`, nvtx ranges, and what only cuda's own tools can do."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch
import torch.profiler

from _ditorch.mapping.patches import Patches
from _ditorch.mapping.translation import Target
from _ditorch.mapping.unmapped import NotMapped, placeholder

__all__ = ["ProfilerMarkers", "apply"]

_Activity = torch.profiler.ProfilerActivity


def apply(patches: Patches, target: Target) -> None:
    patches.set(torch.cuda.nvtx, "_nvtx", ProfilerMarkers())
    _external(patches, target)
    activity = _activity_of(target)
    if activity is not None:
        _activities(patches, target, activity)
        _old_profiler(patches, target)


def _activity_of(target: Target) -> Any:
    """torch's word for what runs on this device; None where torch has none."""
    if target.is_from_outside:
        return _Activity.PrivateUse1
    return getattr(_Activity, target.device_type.upper(), None)


# What torch's filters call the rows of a device, where a device from outside has other names than cuda.
_FILTERS_FROM_OUTSIDE = {"CUDA_RUNTIME": "PRIVATEUSE1_RUNTIME", "CUDA_DRIVER": "PRIVATEUSE1_DRIVER"}


def _activities(patches: Patches, target: Target, activity: Any) -> None:
    """`profile(activities=[CPU, CUDA])` records this device, in columns that are named as the program named it."""
    filters = _FILTERS_FROM_OUTSIDE if target.is_from_outside else {}

    def translate(given: Any) -> Any:
        if isinstance(given, dict):
            return {
                translate(key): [filters.get(name, name) for name in names]
                if key == _Activity.CUDA
                else names
                for key, names in given.items()
            }
        return activity if given == _Activity.CUDA else given

    def names_cuda(given: Any) -> bool:
        return _Activity.CUDA in given if isinstance(given, dict) else given == _Activity.CUDA

    profiler: ModuleType = torch.profiler.profiler
    supported = profiler.supported_activities
    base = profiler._KinetoProfile
    original = base.__init__

    def init(self: Any, *, activities: Iterable[Any] | None = None, **kwargs: Any) -> None:
        wanted = list(supported_activities() if activities is None else activities)
        if any(map(names_cuda, wanted)):  # torch's own list of what there is names the device twice then
            wanted = [given for given in wanted if given != activity]
        original(self, activities=[translate(given) for given in wanted], **kwargs)
        if any(map(names_cuda, wanted)):
            self.use_device = (
                "cuda"  # given to the profiler below, which translates it and names the columns by it
            )

    patches.wrap(base, init, "__init__")
    toggle = base.toggle_collection_dynamic

    def toggle_collection_dynamic(self: Any, enable: bool, activities: Iterable[Any]) -> None:
        toggle(self, enable, [translate(given) for given in activities])

    patches.wrap(base, toggle_collection_dynamic)

    def supported_activities() -> set[Any]:
        # A program asks `CUDA in supported_activities()` to know whether it may ask for it.
        found = set(supported())
        return found | {_Activity.CUDA} if activity in found else found

    patches.wrap(profiler, supported_activities, also=[torch.profiler])


def _old_profiler(patches: Patches, target: Target) -> None:
    """`torch.autograd.profiler.profile(use_cuda=True)` and its newer `use_device='cuda'`.

    A profile of `cuda` shows `Self CUDA` and `CUDA total`: torch's table takes these titles from the device's name.
    """
    module: ModuleType = torch.autograd.profiler
    original = module.profile.__init__

    def init(self: Any, enabled: bool = True, *, use_cuda: bool = False, **kwargs: Any) -> None:
        if use_cuda:
            kwargs.setdefault("use_device", "cuda")
        self._shown_as_cuda = kwargs.get("use_device") == "cuda"
        if "use_device" in kwargs:
            kwargs["use_device"] = target.translate_type(kwargs["use_device"])
        if kwargs.get("use_device") == target.device_type:
            # The other way of this profiler marks work with events of the driver, which such devices rarely register.
            kwargs["use_kineto"] = True
        original(self, enabled, **kwargs)

    patches.wrap(module.profile, init, "__init__")
    make_events = module.profile._ensure_function_events  # private: all tables and averages come through it

    def ensure_function_events(self: Any) -> None:
        make_events(self)
        events = self._function_events
        if self._shown_as_cuda and events is not None and events._use_device != "cuda":
            events._use_device = "cuda"
            for event in events:
                event.use_device = "cuda"

    patches.wrap(module.profile, ensure_function_events, "_ensure_function_events")


def _external(patches: Patches, target: Target) -> None:
    """Switches of cuda's own tools, which are not there."""
    profiler: ModuleType = torch.cuda.profiler
    for name in ("start", "stop"):
        original = getattr(profiler, name)
        patches.set(profiler, name, placeholder(f"profiler.{name}", original, target.device_type))
    message = (
        f"torch.autograd.profiler.emit_nvtx is not available on '{target.device_type}': the tool that "
        "collects its ranges knows cuda devices only; use torch.profiler.profile."
    )

    def enter(self: Any) -> None:
        if self.enabled:
            raise NotMapped(message)

    patches.wrap(torch.autograd.profiler.emit_nvtx, enter, "__enter__")


# -- ranges and marks of torch.cuda.nvtx, shown by torch's own profiler ----------------------------------------

_Range = AbstractContextManager[Any] | None


class ProfilerMarkers:
    """Takes the place of torch's binding to the marker library; the method names are that binding's."""

    def __init__(self) -> None:
        self._nested = threading.local()
        self._handles = itertools.count(1)
        self._open: dict[Any, _Range] = {}

    def rangePushA(self, message: str) -> int:
        ranges = self._ranges()
        ranges.append(_begin(message))
        return len(ranges) - 1

    def rangePop(self) -> int:
        ranges = self._ranges()
        if not ranges:
            return -1
        _end(ranges.pop())
        return len(ranges)

    def rangeStartA(self, message: str) -> int:
        handle = next(self._handles)
        self._open[handle] = _begin(message)
        return handle

    def rangeEnd(self, handle: int) -> None:
        _end(self._open.pop(handle, None))

    def markA(self, message: str) -> None:
        _end(_begin(message))

    def deviceRangeStart(self, message: str, stream: int) -> int:
        return self.rangeStartA(message)

    def deviceRangeEnd(self, handle: int, stream: int) -> None:
        self.rangeEnd(handle)

    def _ranges(self) -> list[_Range]:
        """This thread's open ranges, the outermost first."""
        found: list[_Range] | None = getattr(self._nested, "ranges", None)
        if found is None:
            found = self._nested.ranges = []
        return found


def _begin(message: str) -> _Range:
    if not torch.autograd._profiler_enabled():  # private; the public classes ask it too
        return None
    shown = torch.profiler.record_function(message)
    shown.__enter__()
    return shown


def _end(shown: _Range) -> None:
    if shown is not None:
        shown.__exit__(None, None, None)
