"""What a tensor shows at one moment, as bytes in host memory.

Made on the caller's thread, because the values may change right after; one copy (device to host, or within the
host) and nothing else is paid there. A view is saved as what it shows and not as the memory behind it.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from op_tools.device_error import DeviceError
from op_tools.storage.pool import Buffer, Pool, capacity_for
from op_tools.trees import SPARSE_PARTS, parts_of

TAG = "__op_tools__"
_PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter)
# What the parts of sparse tensors are called in files, by the name of the layout.
LAYOUT_PARTS: dict[str, tuple[str, ...]] = {
    str(layout).removeprefix("torch."): tuple(part.lstrip("_") for part in parts)
    for layout, parts in SPARSE_PARTS.items()
}


class NotStorable(Exception):
    """A tensor whose values cannot be copied (meta, fake, quantized, ...); the text says which and why."""


class Snapshot:
    """The bytes of one strided tensor and how to read them.

    `stride` is dense: that of the tensor where it was dense or permuted, 0 where it was expanded (stored once), and
    without gaps, in the same order, where the tensor was a slice. `source_stride` is what the tensor itself had.
    """

    # Not a dataclass: msgspec would write its fields into the .pth.json, and not its description.
    __slots__ = (
        "blob", "buffer", "class_name", "device", "dtype", "nbytes", "requires_grad", "shape", "source_stride", "stride"
    )  # fmt: skip

    def __init__(
        self,
        buffer: Buffer,
        nbytes: int,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        source: torch.Tensor,
        source_stride: tuple[int, ...],
    ) -> None:
        self.buffer: Buffer | None = buffer
        self.nbytes = nbytes
        self.shape, self.stride, self.source_stride = shape, stride, source_stride
        self.dtype, self.device = source.dtype, source.device
        self.requires_grad = source.requires_grad
        self.class_name = type(source).__name__
        self.blob: Any = None  # set by the store "blobs"

    @property
    def memory(self) -> memoryview:
        if self.buffer is None:
            raise RuntimeError("the bytes of this snapshot were already written and released")
        return self.buffer.memory[: self.nbytes]

    def description(self) -> dict[str, Any]:
        """The row that goes into the .pth.json file."""
        return {
            "shape": self.shape,
            "stride": self.source_stride,
            "numel": math.prod(self.shape),
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "requires_grad": self.requires_grad,
            "layout": "torch.strided",
            "class": self.class_name,
            "saved_stride": self.stride,
        }


def dense_stride(shape: Sequence[int], stride: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Strides without gaps in the same order, 0 where a dimension is expanded; and the number of elements stored."""
    dense = [0] * len(shape)
    stored = 1
    for d in sorted(range(len(shape)), key=lambda d: (stride[d], shape[d])):
        if stride[d] == 0 and shape[d] > 1:
            continue
        dense[d] = stored
        stored *= shape[d]
    return tuple(dense), stored


@contextlib.contextmanager
def without_graph() -> Iterator[None]:
    """Copies made inside are not recorded by autograd."""
    enabled = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        yield
    finally:
        torch._C._set_grad_enabled(enabled)


def snapshot(tensor: torch.Tensor) -> Snapshot:
    """Copy what a strided tensor shows; raises NotStorable where there are no values or no bytes of them."""
    with without_graph():
        return take(tensor, None)


def take(tensor: torch.Tensor, pool: Pool | None) -> Snapshot:
    """snapshot() into a buffer of the pool, for callers that are inside without_graph() already."""
    if type(tensor) not in _PLAIN_CLASSES:
        _refuse_wrappers(tensor)
    if tensor.is_quantized or tensor.is_nested or tensor.layout is not torch.strided or tensor.is_meta:
        raise NotStorable(_why_not(tensor))
    source = tensor
    shape, source_stride = source.shape, source.stride()
    if source.is_contiguous():
        stride, stored = source_stride, source.numel()
    else:
        stride, stored = dense_stride(shape, source_stride)
        for d, step in enumerate(stride):
            if step == 0 and shape[d] > 1:
                source = source.narrow(d, 0, 1)
    nbytes = stored * source.element_size()
    buffer = Buffer(capacity_for(nbytes)) if pool is None else pool.take(nbytes)
    if nbytes:
        # The only call into torch: each one lets another thread take the interpreter lock, and waiting for it to come
        # back costs more than the call. Hence no detach() here but a switch that is thrown for the whole put().
        try:
            buffer.seen_as(source.dtype, source.shape, stride).copy_(source)
        except NotImplementedError:
            raise
        except RuntimeError as error:
            # What an asynchronous device has to complain about comes out where the host waits for it.
            raise (error if tensor.device.type == "cpu" else DeviceError(error)) from error
    return Snapshot(buffer, nbytes, tuple(shape), stride, tensor, source_stride)


def _refuse_wrappers(tensor: torch.Tensor) -> None:
    """Raise for tensors that only describe values. A plain subclass is read like its base."""
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    if fake is not None and isinstance(tensor, fake.FakeTensor):
        raise NotStorable("a fake tensor has no values")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise NotStorable(f"{type(tensor).__name__} keeps its values in other tensors")


def _why_not(tensor: torch.Tensor) -> str:
    if tensor.is_meta:
        return "a meta tensor has no values"
    if tensor.is_quantized:
        return "quantized tensors are not saved"
    if tensor.is_nested:
        return "nested tensors are not saved"
    return f"tensors of layout {tensor.layout} are not saved"


def tensor_tree(tensor: torch.Tensor, pool: Pool | None = None) -> Snapshot | dict[str, Any]:
    """A Snapshot; for sparse tensors a tagged dict of components; for anything unreadable an opaque description.

    To be called inside without_graph().
    """
    try:
        if type(tensor) in _PLAIN_CLASSES and tensor.layout is torch.strided:
            return take(tensor, pool)
        with torch._C.DisableTorchFunctionSubclass():
            if tensor.layout is not torch.strided and (type(tensor) in _PLAIN_CLASSES):
                return _sparse_tree(tensor.detach(), pool)
            return take(tensor, pool)
    except DeviceError:
        raise
    except NotStorable as refusal:
        return describe_only(tensor, str(refusal))
    except Exception as error:  # a subclass, a functorch wrapper, a device out of memory: capture must go on
        return describe_only(tensor, f"{type(error).__name__}: {error}"[:200])


def _sparse_tree(tensor: torch.Tensor, pool: Pool | None) -> dict[str, Any]:
    layout = str(tensor.layout).removeprefix("torch.")
    if layout not in LAYOUT_PARTS:
        raise NotStorable(_why_not(tensor))
    tree: dict[str, Any] = {TAG: "sparse", "layout": layout, "shape": tuple(tensor.shape)}
    tree |= {
        name: take(part, pool) for name, part in zip(LAYOUT_PARTS[layout], parts_of(tensor), strict=True)
    }
    if tensor.layout is torch.sparse_coo:
        tree["coalesced"] = tensor.is_coalesced()
    return tree


def describe_only(tensor: torch.Tensor, reason: str) -> dict[str, Any]:
    """What can be said about a tensor without its values. Never raises."""
    kind = type(tensor)
    tree: dict[str, Any] = {TAG: "opaque", "type": f"{kind.__module__}.{kind.__qualname__}", "repr": reason}
    readers: dict[str, Any] = {
        "shape": lambda: tuple(int(extent) for extent in tensor.shape),
        "dtype": lambda: str(tensor.dtype).removeprefix("torch."),
        "device": lambda: str(tensor.device),
        "layout": lambda: str(tensor.layout),
        "requires_grad": lambda: bool(tensor.requires_grad),
    }
    for name, read in readers.items():
        try:
            tree[name] = read()
        except Exception:  # a symbolic shape, a broken subclass
            tree[name] = None
    return tree
