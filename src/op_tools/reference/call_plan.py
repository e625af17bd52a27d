"""What must be known of a function before it can be run again safely: what it writes to, draws, or asks of a device.

Found out once per function and kept, so that a recomputation pays a dictionary lookup for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from op_tools import writing
from op_tools.categories import IN_PLACE_OPERATORS, base_name, may_draw

Arguments = Sequence[Any]
Named = Mapping[str, Any]

_CONVERSIONS = frozenset(("float", "half", "bfloat16", "double"))
_WRITING_OPERATORS = frozenset(f"__i{name}__" for name in IN_PLACE_OPERATORS) | {"__setitem__", "__set__"}
# They may write to inputs which neither their names nor their schemas give away.
_NORMALISATIONS = ("batch_norm", "instance_norm")
# Positions of `half_to_float`: softmax of half inputs in single precision.
_HALF_TO_FLOAT = {"_softmax": 2, "_log_softmax": 2}


# Kernels of GradScaler that write without counting a version.
_UNCOUNTED = frozenset({"_amp_foreach_non_finite_check_and_unscale", "_amp_update_scale"})


class CallPlan:
    """How to run one function on a reference device."""

    def __init__(self, func: Callable[..., Any], reference: str) -> None:
        self.name = _name_of(func)
        self.overload = func if isinstance(func, torch._ops.OpOverload) else None
        self._last = self.name.rpartition(".")[2] if self.overload is None else base_name(self.name)
        self._base = base_name(self.name)
        self._reference = torch.device(reference)
        self.func = self._function(func)
        self.draws = self._may_draw(func)
        self.is_factory = self._makes_tensors()
        self.writes = self._writing_rule()
        # The cheap way suits functions that neither draw nor look at defaults.
        self.needs_care = self.draws or self.is_factory
        self._devices_matter = self.overload is None or "device" in _parameter_names(self.overload)
        self.is_composite = self.overload is None and inspect.isfunction(func)
        self._upcast: CallPlan | None = None

    @property
    def upcast(self) -> CallPlan:
        """The plan of the same function when everything is float64: a conversion to another float is none."""
        if self._upcast is None:
            converts = self.overload is None and self._base in _CONVERSIONS
            self._upcast = plan_for(torch.Tensor.double, str(self._reference)) if converts else self
        return self._upcast

    def _without_half_to_float(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The CPU has no kernel that reads a half dtype and writes float32: reading floats is the same."""
        position = _HALF_TO_FLOAT[self._base]
        if len(args) <= position or not args[position]:
            return args
        source = args[0].float() if args[0].dtype in (torch.float16, torch.bfloat16) else args[0]
        return (source, *args[1:position], False, *args[position + 1 :])

    def on_reference(self, args: Arguments, kwargs: Named) -> tuple[Arguments, Named]:
        """The same arguments with requests for another device redirected to the reference."""
        if self._base in _HALF_TO_FLOAT and self.overload is not None:
            return self._without_half_to_float(tuple(args)), kwargs
        if not self._devices_matter:
            return args, kwargs
        if kwargs and ("device" in kwargs or "pin_memory" in kwargs):
            kwargs = dict(kwargs)
            if kwargs.get("device") is not None:
                kwargs["device"] = self._reference
            kwargs.pop("pin_memory", None)
        devices = (torch.device, str) if self._last == "to" else torch.device
        if any(isinstance(value, devices) for value in args):
            args = tuple(self._reference if isinstance(value, devices) else value for value in args)
        return args, kwargs

    def targets(self, args: Arguments, kwargs: Named) -> Iterator[torch.Tensor]:
        """The tensors that the call may write to."""
        if self.overload is not None:
            chosen = _schema_targets(self.overload, args, kwargs)
            chosen += self._written_statistics(args, kwargs) if self._statistics else []
        elif self._writes_first(args, kwargs):
            chosen = [args[0] if args else kwargs.get("input"), kwargs.get("out")]
        elif self._statistics:
            chosen = self._written_statistics(args, kwargs)
        elif kwargs.get("out") is not None:
            chosen = [kwargs["out"]]
        else:
            chosen = [*args, *kwargs.values()]
        for value in chosen:
            yield from _tensors(value)

    def writes_only_first(self, args: Arguments, kwargs: Named) -> bool:
        if not args or not isinstance(args[0], torch.Tensor):
            return False
        if any(isinstance(value, (list, tuple)) for value in args) or "out" in kwargs:
            return False
        return self._only_first if self.overload is not None else self._writes_first(args, kwargs)

    def has_written(self, clone: torch.Tensor, original: torch.Tensor) -> bool:
        # Inside a dispatch mode versions are not counted; schemas say what is written. Running statistics are written
        # without counting a version, also where they stay as they were.
        counts = not self._statistics and self._base not in _UNCOUNTED
        return self.overload is not None or not counts or clone._version > 0

    def _written_statistics(self, args: Arguments, kwargs: Named) -> list[Any]:
        return list(writing.written_statistics(self.func, self.name, args, kwargs))

    def _writes_statistics(self, args: Arguments, kwargs: Named) -> bool:
        return bool(self._written_statistics(args, kwargs))

    def _function(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """`x.<device>()` is a copy to that device; on the reference it is a copy to the reference."""
        accelerator = torch.accelerator.current_accelerator()
        if self.overload is None and accelerator is not None and self._last == accelerator.type:
            reference = self._reference
            return lambda tensor, *_args, **_kwargs: tensor.to(reference)
        return func

    def _may_draw(self, func: Callable[..., Any]) -> bool:
        if self.overload is not None:
            return torch.Tag.nondeterministic_seeded in self.overload.tags
        # torch's own functions are known by name; anybody else's may call anything.
        return may_draw(func, self.name) or not _is_torchs(func)

    def _makes_tensors(self) -> bool:
        """Takes no tensor and has a dtype: zeros, arange, hann_window."""
        if self.overload is not None:
            return _takes_no_tensor(self.overload)
        packet = getattr(torch.ops.aten, self._base, None)
        if ".Tensor." in self.name or not isinstance(packet, torch._ops.OpOverloadPacket):
            return False
        return any(_takes_no_tensor(getattr(packet, name)) for name in packet.overloads())

    def _writing_rule(self) -> Callable[[Arguments, Named], bool]:
        """Whether a call may write to its inputs: in-place, out=, item assignment, running statistics.

        A wrong yes costs a copy. A wrong no shows up where the inputs after the call are compared.
        """
        self._statistics = False
        self._inplace: int | None = None
        self._always_first = False
        self._only_first = False
        if self.overload is not None:
            written = [
                a.alias_info is not None and a.alias_info.is_write for a in self.overload._schema.arguments
            ]
            self._only_first = written[:1] == [True] and not any(written[1:])
            if self.overload._schema.is_mutable:
                return _always
            # No schema of a normalisation mentions the statistics that it keeps.
            self._statistics = self._base.endswith(_NORMALISATIONS)
            return self._writes_statistics if self._statistics else _never
        last = self._last
        self._always_first = last in _WRITING_OPERATORS
        self._always_first |= last.endswith("_") and not last.endswith("__") and "fused" not in last
        if self._always_first or not _is_torchs(self.func) or (last.endswith("_") and "fused" in last):
            return _always
        names = _parameter_names(self.func)
        self._statistics = self._base.endswith(_NORMALISATIONS)
        if self._statistics:
            return self._writes_statistics
        if "inplace" in names:
            self._inplace = names.index("inplace")
            return self._writes_first
        if self._base in ("embedding", "embedding_bag"):
            return _always_with_max_norm
        return _with_out

    def _writes_first(self, args: Arguments, kwargs: Named) -> bool:
        if self._always_first:
            return True
        if self._inplace is None:
            return False
        return bool(args[self._inplace] if len(args) > self._inplace else kwargs.get("inplace", False))


@lru_cache(maxsize=8192)
def plan_for(func: Callable[..., Any], reference: str) -> CallPlan:
    return CallPlan(func, reference)


def _always(args: Arguments, kwargs: Named) -> bool:
    return True


def _never(args: Arguments, kwargs: Named) -> bool:
    return False


def _with_out(args: Arguments, kwargs: Named) -> bool:
    return bool(kwargs) and kwargs.get("out") is not None


def _always_with_max_norm(args: Arguments, kwargs: Named) -> bool:
    # embedding(input, weight, padding_idx, max_norm): renormalises the weight in place.
    return kwargs.get("max_norm") is not None or (len(args) > 3 and args[3] is not None)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)


def _takes_no_tensor(overload: torch._ops.OpOverload) -> bool:
    tensors = any("Tensor" in str(argument.type) for argument in overload._schema.arguments)
    return "dtype" in _parameter_names(overload) and not tensors


def _schema_targets(overload: torch._ops.OpOverload, args: Arguments, kwargs: Named) -> list[Any]:
    chosen = []
    for position, argument in enumerate(overload._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            chosen.append(args[position] if position < len(args) else kwargs.get(argument.name))
    return chosen


@lru_cache(maxsize=8192)
def _parameter_names(func: Callable[..., Any]) -> tuple[str, ...]:
    if isinstance(func, torch._ops.OpOverload):
        return tuple(argument.name for argument in func._schema.arguments)
    try:
        return tuple(inspect.signature(func).parameters)
    except (TypeError, ValueError):
        return ()


def _is_torchs(func: Callable[..., Any]) -> bool:
    module = getattr(func, "__module__", None) or ""
    return not module or module.partition(".")[0] == "torch" or inspect.ismethoddescriptor(func)


def _name_of(func: Callable[..., Any]) -> str:
    if isinstance(func, torch._ops.OpOverload):
        return str(func)
    return f"{getattr(func, '__module__', None) or ''}.{getattr(func, '__qualname__', repr(func))}"
