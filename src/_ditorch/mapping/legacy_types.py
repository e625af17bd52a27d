"""The old names of tensor types: `torch.cuda.FloatTensor`, `x.type('torch.cuda.FloatTensor')`.

torch registers these C types only in a build for cuda; elsewhere they are empty shells that raise. Here
each is a class that makes tensors of its dtype on the mapped device and recognises them.
"""

from __future__ import annotations

from typing import Any

import torch

from _ditorch.mapping.patches import Patches
from _ditorch.mapping.translation import RealDevice, Target

__all__ = ["apply"]

_DTYPES: dict[str, torch.dtype] = {
    "BFloat16": torch.bfloat16,
    "Bool": torch.bool,
    "Byte": torch.uint8,
    "Char": torch.int8,
    "ComplexDouble": torch.complex128,
    "ComplexFloat": torch.complex64,
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "Int": torch.int32,
    "Long": torch.int64,
    "Short": torch.int16,
}
_PREFIX = "torch.cuda."


class LegacyTensorType(type):
    """Metaclass: calling the type makes a tensor, isinstance asks for device type and dtype."""

    dtype: torch.dtype
    device_type: str
    layout = torch.strided
    is_cuda = True

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.pop("device", cls.device_type)
        if kwargs:
            raise TypeError(f"{cls!r} takes no argument {', '.join(map(repr, kwargs))}")
        return cls.make(args, device)

    def make(cls, args: tuple[Any, ...], device: Any) -> torch.Tensor:
        """The old constructor: sizes give an uninitialised tensor, data its copy, nothing no elements."""
        if not args:
            return torch.empty(0, dtype=cls.dtype, device=device)
        first = args[0]
        if len(args) == 1 and not isinstance(first, (int, torch.Size)):
            if isinstance(first, torch.Tensor):
                return first.to(device=device, dtype=cls.dtype)
            return torch.tensor(first, dtype=cls.dtype, device=device)
        sizes = tuple(first) if isinstance(first, torch.Size) else args
        return torch.empty(sizes, dtype=cls.dtype, device=device)

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, torch.Tensor)
            and instance.device.type == cls.device_type
            and instance.dtype == cls.dtype
            and instance.layout is cls.layout
        )

    def __repr__(cls) -> str:
        return f"<class '{cls.__module__}.{cls.__name__}'>"


class LegacyStorageType(type):
    """Metaclass of `torch.cuda.FloatStorage` and its like: a typed storage on the device."""

    dtype: torch.dtype
    device_type: str

    def __call__(cls, *args: Any, **kwargs: Any) -> torch.TypedStorage:
        return torch.TypedStorage(*args, dtype=cls.dtype, device=RealDevice(cls.device_type), **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return (
            isinstance(instance, torch.TypedStorage)
            and instance._untyped_storage.device.type == cls.device_type
            and instance.dtype == cls.dtype
        )


class LegacySparseType(LegacyTensorType):
    """Metaclass of `torch.cuda.sparse.FloatTensor` and its like: indices and values, or sizes."""

    layout = torch.sparse_coo

    def make(cls, args: tuple[Any, ...], device: Any) -> torch.Tensor:
        if args and isinstance(args[0], torch.Tensor):
            indices, values, *size = args
            return torch.sparse_coo_tensor(indices, values, *size, dtype=cls.dtype, device=device)
        sizes = args[0] if args and isinstance(args[0], torch.Size) else args or (0,)
        return torch.empty(sizes, dtype=cls.dtype, device=device, layout=cls.layout)


def apply(patches: Patches, target: Target) -> None:
    tensor_types: dict[str, LegacyTensorType] = {}
    for prefix, dtype in _DTYPES.items():
        facts = {"dtype": dtype, "device_type": target.device_type, "__module__": "torch.cuda"}
        tensor_name, storage_name = f"{prefix}Tensor", f"{prefix}Storage"
        if hasattr(torch.cuda, tensor_name):
            tensor_types[tensor_name] = LegacyTensorType(tensor_name, (), dict(facts))
            patches.set(torch.cuda, tensor_name, tensor_types[tensor_name])
        if hasattr(torch.cuda, storage_name):
            patches.set(torch.cuda, storage_name, LegacyStorageType(storage_name, (), dict(facts)))
        if hasattr(torch.cuda.sparse, tensor_name):
            sparse = LegacySparseType(tensor_name, (), facts | {"__module__": "torch.cuda.sparse"})
            patches.set(torch.cuda.sparse, tensor_name, sparse)
    _type_method(patches, target, tensor_types)
    _default_tensor_type(patches, target, tensor_types)


def _type_method(patches: Patches, target: Target, tensor_types: dict[str, LegacyTensorType]) -> None:
    original = torch.Tensor.type
    own_prefix = f"torch.{target.device_type}."

    def type_(self: torch.Tensor, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:
        if dtype is None:
            name = original(self)
            # What a program written for cuda compares this with is the cuda name.
            return _PREFIX + name[len(own_prefix) :] if name.startswith(own_prefix) else name
        wanted = _legacy_type(dtype, tensor_types)
        if wanted is None:
            return original(self, dtype, non_blocking, **kwargs)
        return self.to(device=RealDevice(wanted.device_type), dtype=wanted.dtype, non_blocking=non_blocking)

    patches.wrap(torch.Tensor, type_, "type")


def _default_tensor_type(patches: Patches, target: Target, tensor_types: dict[str, LegacyTensorType]) -> None:
    original = torch.set_default_tensor_type

    def set_default_tensor_type(tensor_type: Any, /) -> None:
        wanted = _legacy_type(tensor_type, tensor_types)
        if wanted is not None:
            torch.set_default_dtype(wanted.dtype)
            torch.set_default_device(wanted.device_type)
            return
        original(tensor_type)
        if torch.get_default_device().type == target.device_type:
            torch.set_default_device(None)

    patches.wrap(torch, set_default_tensor_type)


def _legacy_type(wanted: Any, tensor_types: dict[str, LegacyTensorType]) -> LegacyTensorType | None:
    if isinstance(wanted, LegacyTensorType):
        return wanted
    if isinstance(wanted, str) and wanted.startswith(_PREFIX):
        return tensor_types.get(wanted[len(_PREFIX) :])
    return None
