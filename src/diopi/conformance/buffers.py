"""Device buffers that notice what happens around them.

Every tensor of a case gets a buffer of its own: guard bytes in front, the storage, guard bytes behind. What lies between the
elements of a strided tensor holds the same pattern as the guards. After the call nothing but the elements of written tensors
may have changed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from dicore.console import counted
from diopi.library import LibraryMemory, Made, Tensor
from diopi.library.errors import writes_out_of_bounds

GUARD = 128
PATTERN = 0x5A
# An offset counts elements of a storage that is not copied: kept as far as the guards stay small.
_LARGEST_OFFSET = 4096


class GuardedBuffer:
    """The device memory of one tensor. `poison` fills its elements instead of the tensor's values."""

    def __init__(self, memory: LibraryMemory, like: torch.Tensor, poison: int | None = None) -> None:
        like = like.detach().resolve_conj().resolve_neg()
        self._memory = memory
        self._poison = poison
        self._shape = tuple(like.shape)
        self._stride = like.stride()
        self._dtype = like.dtype
        self._size = like.element_size()
        self._offset = int(like.storage_offset()) % _LARGEST_OFFSET
        self._begin = GUARD + self._offset * self._size
        span = span_of(self._shape, self._stride) * self._size
        self._before = torch.full((self._begin + span + GUARD,), PATTERN, dtype=torch.uint8)
        if poison is not None:
            _elements(self._before, self._shape, self._stride, self._begin, self._size).fill_(poison)
        else:
            self._fill(like, span)
        self._pointer = memory.allocate(self._before.numel())
        memory.write(self._pointer, self._before.data_ptr(), self._before.numel())
        self._after: torch.Tensor | None = None

    def _fill(self, like: torch.Tensor, span: int) -> None:
        bytes_ = torch.empty(0, dtype=torch.uint8).set_(like.untyped_storage())
        start = int(like.storage_offset()) * self._size
        if overlapping(self._shape, self._stride):
            self._before[self._begin : self._begin + span] = bytes_[start : start + span]
        else:
            source = _elements(bytes_, self._shape, self._stride, start, self._size)
            _elements(self._before, self._shape, self._stride, self._begin, self._size).copy_(source)

    def handle(self) -> Tensor:
        """What the library is given."""
        storage = self._pointer + GUARD
        return Tensor(
            self._pointer + self._begin,
            self._shape,
            self._stride,
            str(self._dtype).removeprefix("torch."),
            storage_pointer=storage,
            storage_offset=self._offset,
            storage_nbytes=self._before.numel() - 2 * GUARD,
        )

    def read(self) -> None:
        """Fetches what the device's memory holds now."""
        self._after = torch.empty_like(self._before)
        self._memory.read(self._pointer, self._after.data_ptr(), self._after.numel())

    def free(self) -> None:
        self._memory.free(self._pointer)

    def values(self) -> torch.Tensor:
        """The elements after the call, contiguous."""
        assert self._after is not None, "read() comes first"
        taken = _elements(self._after, self._shape, self._stride, self._begin, self._size)
        return typed(taken, self._dtype)

    def fault(self, name: str, *, written: bool, finished: bool = True) -> str:
        """What was changed that must not be; empty if all is well. A call that did not finish need not have written."""
        assert self._after is not None, "read() comes first"
        after = self._after
        if torch.equal(after, self._before):
            # Booleans come first of all: read as values, what the memory was filled with is True.
            return self._no_boolean(name) if written and finished else ""
        if written:
            after = after.clone()
            kept = _elements(self._before, self._shape, self._stride, self._begin, self._size)
            _elements(after, self._shape, self._stride, self._begin, self._size).copy_(kept)
        changed = (after != self._before).nonzero().flatten()
        if not changed.numel():
            return self._no_boolean(name) if finished else ""
        return self._described(name, changed)

    def _described(self, name: str, changed: torch.Tensor) -> str:
        end = int(self._before.numel()) - GUARD
        around = writes_out_of_bounds(name, int(changed.lt(self._begin).sum()), int(changed.ge(end).sum()))
        if around:
            return "; ".join(around)
        mask = torch.zeros_like(self._before)
        _elements(mask, self._shape, self._stride, self._begin, self._size).fill_(1)
        inside = int(mask[changed].sum())
        if inside:
            return f"changed {counted(-(-inside // self._size), 'element')} of {name}, which is only read"
        return f"wrote {counted(changed.numel(), 'byte')} between the elements of {name}"

    def _no_boolean(self, name: str) -> str:
        """Bytes of written booleans that no boolean has; those of the filling were never written."""
        assert self._after is not None
        if self._dtype != torch.bool:
            return ""
        taken = _elements(self._after, self._shape, self._stride, self._begin, self._size)
        wrong = int((taken > 1).sum())
        if wrong and self._poison is not None and wrong == int((taken == self._poison).sum()):
            return f"left {wrong} of {taken.numel()} elements of {name} unwritten"
        return f"{wrong} bytes of {name} are neither 0 nor 1, as booleans are" if wrong else ""


def span_of(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last one of a strided tensor."""
    if 0 in shape:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def overlapping(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether two elements may lie on the same memory; True where that cannot be excluded."""
    reach = 0
    for step, count in sorted((s, n) for n, s in zip(shape, stride, strict=True) if n > 1):
        if step <= reach:
            return True
        reach += (count - 1) * step
    return False


def typed(taken: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The bytes of elements, the last dimension one element -> a contiguous tensor."""
    taken = taken.clone(memory_format=torch.contiguous_format)  # also the strides of dimensions of length 1
    if dtype == torch.bool:
        return (taken != 0).squeeze(-1)
    if not taken.numel():
        return torch.empty(taken.shape[:-1], dtype=dtype)
    return taken.view(dtype).squeeze(-1)


def _elements(
    bytes_: torch.Tensor, shape: tuple[int, ...], stride: Sequence[int], begin: int, size: int
) -> torch.Tensor:
    """The bytes of the elements of a strided tensor: its shape and one more dimension."""
    return bytes_.as_strided((*shape, size), (*(s * size for s in stride), 1), begin)


def read_made(memory: LibraryMemory, made: Made) -> torch.Tensor:
    """A tensor that the library has made itself, as a contiguous tensor of torch."""
    dtype = getattr(torch, made.dtype)
    size = torch.empty(0, dtype=dtype).element_size()
    span = span_of(made.shape, made.stride) * size
    bytes_ = torch.empty(span, dtype=torch.uint8)
    if span and made.on_host:
        ctypes.memmove(bytes_.data_ptr(), made.pointer, span)
    elif span:
        memory.read(made.pointer, bytes_.data_ptr(), span)
    return typed(_elements(bytes_, tuple(made.shape), tuple(made.stride), 0, size), dtype)
