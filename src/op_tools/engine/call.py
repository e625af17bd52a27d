"""One operator call as the tools see it, and what of it is remembered for backward."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Hashable
from typing import Any

import torch

from op_tools.engine import site
from op_tools.trees import flat_tensors


@dataclasses.dataclass(slots=True, eq=False)
class Origin:
    """What a backward row says of the forward call it belongs to. Holds no tensor."""

    name: str
    call_id: int
    where: site.CallSite
    # What tools leave for the backward of this call, by tool.
    marks: dict[Any, Any] = dataclasses.field(default_factory=dict)


class Call:
    """One call: what is called, with what, where. The call site is read from the stack only when asked for."""

    __slots__ = (
        "_device", "_own", "_tensors", "_tensors_of", "_where", "args", "decomposed", "first_node", "func", "hooked", "id",
        "in_backward", "kwargs", "level", "name", "node", "notes", "observed", "origin", "parent", "step", "subscription",
        "thread", "tools",
    )  # fmt: skip

    def __init__(
        self,
        subscription: Any,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        level: str,
        number: int,
        step: int,
        tensors: list[torch.Tensor] | None = None,
    ) -> None:
        self.subscription = subscription
        self.name: str = subscription.name
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.level = level
        self.id = number
        self.step = step
        self.thread = threading.get_ident()
        self.parent: Call | None = None
        self.in_backward = False
        self.origin: Origin | None = None
        # Whether the ATen calls inside this one are looked at one by one, because it cannot be judged as a whole.
        self.decomposed = False
        # Seen by the observer: what autograd does about the call (a new version of what it wrote) is done when it ends.
        self.observed = False
        self.first_node = 0  # the number of the first autograd node that it can have made
        self.node = ""  # the autograd node in whose backward it runs, where the forward call is not known
        self.tools: Any = ()
        # Whether autograd's nodes have hooks that hold this record.
        self.hooked = False
        # What tools keep from before() to after(), by tool.
        self.notes: dict[Any, Any] = {}
        self._where: site.CallSite | None = None
        self._device: torch.device | None = None
        self._own: Origin | None = None
        self._tensors = tensors
        self._tensors_of: Any = args

    @property
    def device(self) -> torch.device:
        """The device the call works on: that of its first tensor that is not on the CPU."""
        if self._device is None:
            devices = (tensor.device for tensor in self.tensors())
            self._device = next((device for device in devices if device.type not in {"cpu", "meta"}), _CPU)
        return self._device

    def release(self) -> None:
        """Let go of the tensors, before the record lives on in a graph that may hold it as long as it likes.

        An in-place call would otherwise hold its own graph and never be freed.
        """
        self._device = self.device
        self.args, self.kwargs, self._tensors, self._tensors_of = (), {}, None, None

    def detach_to(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Go on with copies of the arguments, so that the record can outlive the call without holding its tensors."""
        self._device = self.device
        self.args, self.kwargs, self._tensors, self._tensors_of = args, kwargs, None, None

    @property
    def where(self) -> site.CallSite:
        """The call site in the program, read from the stack at the first use."""
        if self._where is None:
            self._where = site.read()
        return self._where

    def read_site(self, with_stack: bool) -> None:
        """Read the call site now, for a record that is looked at when the stack is another one."""
        if self._where is None or with_stack:
            self._where = site.read(with_stack)

    def owner_site(self) -> site.CallSite:
        """The call site; in backward, that of the forward call."""
        return self.origin.where if self.in_backward and self.origin is not None else self.where

    def names(self) -> tuple[str, ...]:
        """The names a list may give for this call: its own and that of the call it is part of or comes from."""
        if self.parent is not None:
            return (self.name, self.parent.name)
        return (self.name, self.origin.name) if self.origin is not None else (self.name,)

    def signature(self) -> Hashable:
        """What decides which kernel runs the call."""
        return signature_of(self.name, self.args, self.kwargs)

    def as_origin(self) -> Origin:
        """What backward will remember of this call. `origin` is the call whose backward this one is part of."""
        if self._own is None:
            self._own = Origin(self.name, self.id, self.where)
        return self._own

    def tensors(self) -> list[torch.Tensor]:
        """All tensors among the arguments, in order, each as often as it stands there."""
        # Kept for as long as the arguments are the same: every tool asks, some more than once.
        if self._tensors is None or self._tensors_of is not self.args:
            self._tensors, self._tensors_of = flat_tensors(self.args, self.kwargs), self.args
        return self._tensors


_CPU = torch.device("cpu")
_LONGEST_LIST = 32
# Among the device types of a call: some tensor stands for others (DTensor, a fake one) and has no memory of its own.
WRAPPER = "wrapper"
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))
_ORDINARY = torch.Tensor.__torch_dispatch__


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for others rather than having a memory; a subclass that only adds methods does not."""
    kind = type(tensor)
    return kind not in _PLAIN and kind.__torch_dispatch__ is not _ORDINARY


def device_types(tensors: list[torch.Tensor]) -> set[str]:
    """The device types of tensors, and WRAPPER."""
    # Each device is asked for its type once: a step of an optimizer has many tensors.
    devices = {None if is_wrapper(tensor) else tensor.device for tensor in tensors}
    return {WRAPPER if device is None else device.type for device in devices}


def _signature(value: Any) -> Hashable:
    """Shapes, strides and dtypes of tensors; numbers and words as they are; other objects by type."""
    if type(value) in _PLAIN and value.layout is torch.strided:
        return (value.dtype, value.shape, value.stride(), value.requires_grad)
    if isinstance(value, torch.Tensor):
        if value.is_nested:
            return (value.dtype, "nested", value.layout)
        if value.layout != torch.strided:
            return (value.dtype, value.layout, tuple(value.shape))
        return (value.dtype, value.shape, value.stride(), value.requires_grad)
    if value is None or isinstance(value, (bool, int, str, torch.dtype)):
        return value
    if isinstance(value, float):
        # A loop's own number (a step size) would make every call a new signature; its kind is what matters.
        kind: Hashable = float
        return kind if value == value and abs(value) != float("inf") else repr(value)  # noqa: PLR0124
    if isinstance(value, (tuple, list)):
        if len(value) > _LONGEST_LIST:
            return (len(value), tuple(_signature(item) for item in value[:_LONGEST_LIST]))
        return tuple(_signature(item) for item in value)
    if isinstance(value, dict):
        return tuple((key, _signature(item)) for key, item in value.items())
    if isinstance(value, slice):
        return ("slice", value.start.__class__, value.stop.__class__)
    return type(value).__qualname__


def signature_of(name: str, args: Any, kwargs: Any) -> Hashable:
    """What decides which kernel runs a call. Cheap enough to be taken at every call."""
    return (name, *map(_signature, args), _signature(kwargs) if kwargs else ())
