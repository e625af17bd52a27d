"""`torch.device`, `torch.Generator`, `torch.Stream` and `torch.Event` that understand 'cuda'.

These are C types: their constructors cannot be patched, so the name in `torch` is replaced by a class that
builds the real thing. Its metaclass makes the replacement indistinguishable where it counts: isinstance and
issubclass answer for the real type, and the two compare and hash equal, so that every set or table of torch
keyed by `torch.device` (the compiler's rules, fx's builtins, the allow-list of weights_only) finds the one
under the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from _ditorch.mapping.patches import Patches
from _ditorch.mapping.translation import Target, translate_leading

__all__ = ["apply", "stand_in"]

_Build = Callable[..., Any]


class StandInType(type):
    """Metaclass of a class that stands for `_real` and builds its instances with `_build`."""

    _real: type
    _build: _Build

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> Any:
        if any(isinstance(base, StandInType) for base in bases):
            # `class MyStream(torch.Stream)`: inherit from the type that has the behaviour.
            real_bases = tuple(base._real if isinstance(base, StandInType) else base for base in bases)
            return type(real_bases[0])(name, real_bases, namespace, **kwargs)
        return super().__new__(mcs, name, bases, namespace, **kwargs)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._build(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls._real)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return subclass is cls or issubclass(subclass, cls._real)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls._real

    def __hash__(cls) -> int:
        return hash(cls._real)

    def __getattr__(cls, name: str) -> Any:
        # Unbound methods and attributes: torch.Generator.manual_seed, torch.device.type.
        return getattr(cls._real, name)

    def __dir__(cls) -> list[str]:
        return dir(cls._real)

    def __repr__(cls) -> str:
        return repr(cls._real)


def stand_in(real: type, public_name: str, build: _Build) -> type:
    """A class to put in place of `real` under `torch.<public_name>`."""
    namespace = {
        "_real": real,
        "_build": staticmethod(build),
        "__doc__": real.__doc__,
        # pickle stores a class by module and name; these lead back to whatever `torch` holds when it is read.
        "__module__": "torch",
        "__qualname__": public_name,
        "__slots__": (),
    }
    return StandInType(public_name, (), namespace)


def apply(patches: Patches, target: Target) -> None:
    """Replace the four classes."""
    real_device: type = torch.device
    real_generator: type = torch.Generator

    def build_device(*args: Any, **kwargs: Any) -> torch.device:
        # The real constructor parses every notation and words the errors; only its answer is translated.
        return target.translate(real_device(*args, **kwargs))

    def build_generator(device: Any = "cpu") -> torch.Generator:
        return real_generator(target.translate(device))

    patches.set(torch, "device", stand_in(real_device, "device", build_device))
    patches.set(torch, "Generator", stand_in(real_generator, "Generator", build_generator))
    for name in ("Stream", "Event"):
        real = getattr(torch, name)
        patches.set(torch, name, stand_in(real, name, translate_leading(real, target.translate)))
