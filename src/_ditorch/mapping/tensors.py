"""Methods of tensors, storages and modules that take, or ask for, a cuda device."""

from __future__ import annotations

from typing import Any

import torch
import torch.library
import torch.utils.dlpack

from _ditorch.mapping.patches import Patches
from _ditorch.mapping.translation import (
    Target,
    own_name,
    translate_first,
    translate_keyword,
    translate_leading,
)
from _ditorch.mapping.unmapped import NotMappedAttribute

__all__ = ["apply"]

_NEW_METHODS = ("new", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")
_DEVICE_FIRST_METHODS = ("to", "pin_memory", "is_pinned")
_OPERATOR = "_has_compatible_shallow_copy_type"
_KEY = "PrivateUse1"


def apply(patches: Patches, target: Target) -> None:
    _tensor_methods(patches, target)
    _cuda_method(patches, target)
    _is_cuda(patches, target)
    _exchange_with_other_libraries(patches, target)
    _modules(patches, target)
    _storages(patches, target)
    _lazy_parameters(patches)
    _shallow_copies(patches, target)


def _tensor_methods(patches: Patches, target: Target) -> None:
    ways = dict.fromkeys(_NEW_METHODS, translate_keyword) | dict.fromkeys(
        _DEVICE_FIRST_METHODS, translate_first
    )
    for name, way in ways.items():
        patches.wrap(torch.Tensor, way(getattr(torch.Tensor, name), target), name)


def _cuda_method(patches: Patches, target: Target) -> None:
    def cuda(
        self: torch.Tensor,
        device: Any = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> torch.Tensor:
        where = target.device() if device is None else target.translate(device)
        return self.to(device=where, non_blocking=non_blocking, memory_format=memory_format)

    # nn.Module.cuda needs no patch: it calls this method on every parameter and buffer.
    patches.wrap(torch.Tensor, cuda)


def _is_cuda(patches: Patches, target: Target) -> None:
    device_type = target.device_type

    def is_cuda(self: Any) -> bool:
        return own_name(self.device) == device_type

    for owner in (torch.Tensor, torch.UntypedStorage, torch.TypedStorage):
        patches.set(owner, "is_cuda", property(is_cuda, doc=owner.is_cuda.__doc__))


def _exchange_with_other_libraries(patches: Patches, target: Target) -> None:
    """Protocols by which other libraries take a tensor's memory without a copy."""
    array_interface = torch.Tensor.__cuda_array_interface__
    dlpack_device = torch.Tensor.__dlpack_device__

    def __cuda_array_interface__(self: torch.Tensor) -> Any:
        if self.device.type == target.device_type:
            # An AttributeError, by which such libraries notice that this is none of their tensors.
            raise NotMappedAttribute(
                "Tensor.__cuda_array_interface__: the memory belongs to a "
                f"'{target.device_type}' device, which cuda libraries cannot read; pass x.cpu()"
            )
        return array_interface.__get__(self)

    def __dlpack_device__(self: torch.Tensor) -> Any:
        if self.device.type == target.device_type and target.is_from_outside:
            # torch's own answer knows such devices only under the name they have before they get one.
            return torch.utils.dlpack.DLDeviceType.kDLExtDev, self.device.index or 0
        return dlpack_device(self)

    shown = property(__cuda_array_interface__, doc=array_interface.__doc__)
    patches.set(torch.Tensor, "__cuda_array_interface__", shown)
    patches.wrap(torch.Tensor, __dlpack_device__)


def _lazy_parameters(patches: Patches) -> None:
    """`nn.LazyLinear(3).cuda()`: a parameter without a shape allows a list of methods, by identity."""
    lazy: Any = torch.nn.UninitializedParameter
    allowed = lazy._allowed_methods
    for patch in list(patches.attributes()):
        if patch.owner is torch.Tensor and getattr(torch.Tensor, patch.name) in allowed:
            patches.insert(allowed, patch.replacement, len)


def _modules(patches: Patches, target: Target) -> None:
    # nn.Module.to and PackedSequence.to read their arguments with this one function.
    parse = translate_leading(torch._C._nn._parse_to, target.translate)
    patches.wrap(torch._C._nn, parse, "_parse_to")


def _storages(patches: Patches, target: Target) -> None:
    # storage.cuda() and .to() build a torch.device first and so need nothing; only the constructor reads
    # names.
    new = translate_keyword(torch.UntypedStorage.__new__, target)
    patches.set(torch.UntypedStorage, "__new__", staticmethod(new))


def _shallow_copies(patches: Patches, target: Target) -> None:
    """A parameter stays the same object when its module moves: `model.cuda()`, `parameter.data = parameter.data.cuda()`.

    torch keeps a parameter and exchanges what is in it when the two kinds of tensor are compatible. Of devices that are
    registered from outside it says they are not, and makes new parameters: weights that two layers share are then two
    weights, and an optimizer made before the move trains the old ones. Programs written for cuda rely on neither.
    """
    # Private, but the only way to ask whether the device answers by itself.
    answers = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_OPERATOR}", _KEY)
    if answers or not target.is_from_outside:
        return
    library: list[Any] = []  # with the device's answer to torch's question, as long as the mapping is there

    def follow() -> None:
        if patches.installed and not library:
            library.append(torch.library.Library("aten", "IMPL"))
            library[0].impl(_OPERATOR, _is_compatible, _KEY)
        elif not patches.installed and library:
            library.pop()._destroy()

    patches.after_change(follow)


def _is_compatible(tensor: torch.Tensor, source: torch.Tensor) -> bool:
    """As for cuda: one dense tensor can take over the content of another, wherever that is."""
    return tensor.layout is torch.strided and source.layout is torch.strided
