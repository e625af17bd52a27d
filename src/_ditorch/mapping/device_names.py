"""`x.device.type == 'cuda'`: programs that ask a device for its name are told the one they know.

The class behind `torch.device` is a C type: it can be neither subclassed nor wrapped, and every function of
torch wants the real thing. What can be replaced is the attribute `type` alone, in the dictionary of the
class. Python code outside torch then reads 'cuda' for the mapped device; torch itself, and the packages of
this house, go on reading the device's own name, because their code for cuda would call functions that only
a build for cuda has. What is read equals both names, so that code which knows the device still works.

`DITORCH_SHOW_DEVICE_AS_CUDA=0` leaves the attribute alone. See docs/decisions/016-*.md for what was measured.
"""

from __future__ import annotations

import codecs
import sys
from types import GetSetDescriptorType
from typing import Any

import torch

from _ditorch.mapping.patches import Patches, set_c_attribute
from _ditorch.mapping.translation import RealDevice, Target
from _ditorch.settings import SHOW_DEVICE_AS_CUDA

__all__ = ["SHOWN", "ShownName", "apply", "knows_the_device", "wanted"]

SHOWN = "cuda"
_TEXT_TO_TEXT = "rot_13"
# Top-level packages whose code is written for every device and must know the true one.
_INSIDERS = frozenset(("torch", "ditorch", "_ditorch", "op_tools", "diopi", "dicp", "dlinfer"))


def wanted() -> bool:
    """The setting, read when the mapping is made."""
    return bool(SHOW_DEVICE_AS_CUDA.get_or_default())


class ShownName(str):
    """A name that also equals a second one: `shown == 'cuda'` and `shown == 'dipu'` are both true.

    As a key of a table it is the first one: a text has one hash. Copied, or loaded from a file, it is plain text.
    """

    __slots__ = ("also",)
    also: str

    def __new__(cls, shown: str, also: str) -> ShownName:
        made = super().__new__(cls, shown)
        made.also = also
        return made

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) or str.__eq__(self.also, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __reduce__(self) -> tuple[Any, ...]:
        # A file with this name must load where ditorch is not, also by `torch.load(weights_only=True)`. Of the few functions
        # that this calls, one can answer with text; and of its codecs one makes text of text, by turning letters round.
        return codecs.encode, (codecs.encode(str(self), _TEXT_TO_TEXT), _TEXT_TO_TEXT)


class _Insiders(dict[str, bool]):
    """Module name -> whether it must know the device; filled as modules ask."""

    def __init__(self, package: str) -> None:
        super().__init__()
        self._packages = _INSIDERS | {package}

    def __missing__(self, module: str) -> bool:
        answer = self[module] = module.partition(".")[0] in self._packages
        return answer


def knows_the_device(module_name: str, target: Target) -> bool:
    """Whether code of that module reads the device's own name."""
    return _Insiders(_package_of(target))[module_name]


def _package_of(target: Target) -> str:
    return target.module.__name__.partition(".")[0]


def apply(patches: Patches, target: Target) -> None:
    if not wanted():
        return
    original = vars(RealDevice).get("type")
    if not isinstance(original, GetSetDescriptorType):
        return  # another Python, or somebody was here before: better no name than a broken device
    set_c_attribute(patches, RealDevice, "type", property(_reader(original, target), doc=original.__doc__))


def _reader(original: Any, target: Target) -> Any:
    read = original.__get__
    own_name = target.device_type
    shown = ShownName(SHOWN, also=own_name)
    insiders = _Insiders(_package_of(target))
    caller = sys._getframe

    def type_(self: torch.device) -> str:
        name: str = read(self)
        if name != own_name:
            return name
        try:
            module = caller(1).f_globals.get("__name__", "")
        except ValueError:  # asked by C code in a thread without Python
            return name
        return name if insiders[module] else shown

    return type_
