"""The memory of tensors, told apart without holding it.

`tensor.untyped_storage()` makes an object that shares in the storage for as long as the tensor lives, and autograd adds
gradients in place only where nobody shares: looking must not be the reason why other kernels run.
"""

from __future__ import annotations

import contextlib
import importlib
import weakref
from typing import Any, Generic, TypeVar

import torch

_native: Any = None
with contextlib.suppress(ImportError):  # `op_tools.engine.native` says it
    _native = importlib.import_module("op_tools._native")

Value = TypeVar("Value")


def storage_id(tensor: torch.Tensor) -> int:
    """A number that two tensors have in common when they show the same memory; 0 where a tensor has none of its own."""
    if _native is not None:
        return int(_native.storage_id(tensor))
    storage = _storage(tensor)
    return 0 if storage is None else int(storage._cdata)


def _storage(tensor: torch.Tensor) -> Any:
    try:
        return tensor.untyped_storage()
    except (RuntimeError, NotImplementedError):  # sparse and wrapped tensors have none of their own
        return None


class StorageMap(Generic[Value]):
    """Values by the memory of tensors, for as long as it lives."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[Any, Value]] = {}
        self._full = 1024

    def get(self, tensor: torch.Tensor) -> Value | None:
        """What is kept for the memory of a tensor."""
        entry = self._kept.get(storage_id(tensor))
        return None if entry is None or _is_gone(entry[0]) else entry[1]

    def put(self, tensor: torch.Tensor, value: Value) -> None:
        """Keep a value for the memory of a tensor that has one."""
        number = storage_id(tensor)
        if not number:
            return
        entry = self._kept.get(number)
        # While a weak reference is held the number cannot come to stand for another storage.
        weak = entry[0] if entry is not None and not _is_gone(entry[0]) else _weak(tensor)
        self._kept[number] = (weak, value)
        if len(self._kept) >= self._full:
            self._kept = {key: entry for key, entry in self._kept.items() if not _is_gone(entry[0])}
            self._full = max(1024, 2 * len(self._kept))


def _weak(tensor: torch.Tensor) -> Any:
    return _native.WeakStorage(tensor) if _native is not None else weakref.ref(_storage(tensor))


def _is_gone(weak: Any) -> bool:
    return weak() is None if isinstance(weak, weakref.ref) else bool(weak.expired())


def fills_its_storage(tensor: torch.Tensor) -> bool:
    """Whether a tensor shows all of its memory."""
    if _native is not None:
        return bool(_native.storage_nbytes(tensor) == tensor.numel() * tensor.element_size())
    storage = _storage(tensor)
    return storage is not None and storage.nbytes() == tensor.numel() * tensor.element_size()
