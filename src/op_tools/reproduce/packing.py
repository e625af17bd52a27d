"""The bytes of tensors for a reproduction file: every content once, views as what they show."""

from __future__ import annotations

import base64
import hashlib
import zlib

import torch

from op_tools.reproduce.runtime import Saved

__all__ = ["Packer", "rounded_up"]

# torch wants the bytes of a value at a multiple of its size; larger steps help nobody.
_ALIGNMENT = 16
# Strides with more than this many times the memory of the values are not made again.
_MOST_EXPANSION = 16
_LINE = 120


class Packer:
    """Collects the bytes of tensors."""

    def __init__(self) -> None:
        self._content = bytearray()
        self._offsets: dict[bytes, int] = {}  # by digest

    def add(
        self,
        tensor: torch.Tensor,
        stride: tuple[int, ...] | None = None,
        *,
        requires_grad: bool = False,
        on_host: bool = False,
    ) -> Saved:
        """Keep a strided tensor; `stride`: what it had when it was captured, where the capture closed its gaps."""
        tensor = tensor.detach().resolve_conj().resolve_neg()
        shape = tuple(tensor.shape)
        stride = stride if stride is not None and _can_be_made(shape, stride) else _plain_stride(tensor)
        slim = tensor
        for dim, (size, step) in enumerate(zip(shape, stride, strict=True)):
            if step == 0 and size > 1:
                slim = slim.narrow(dim, 0, 1)
        return Saved(tensor.dtype, shape, stride, self._stored(slim), requires_grad, on_host)

    def _stored(self, tensor: torch.Tensor) -> int:
        flat = tensor.contiguous().reshape(-1)
        content = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        digest = hashlib.blake2b(content, digest_size=16).digest()
        if digest not in self._offsets:
            self._content += bytes(-len(self._content) % _ALIGNMENT)
            self._offsets[digest] = len(self._content)
            self._content += content
        return self._offsets[digest]

    def bytes(self) -> bytes:
        """All of it; never nothing, which no tensor can be made of."""
        return bytes(self._content) or bytes(_ALIGNMENT)

    def text(self) -> str:
        """All of it as lines that fit into a source file."""
        encoded = base64.b85encode(zlib.compress(self.bytes(), 6)).decode()
        return "\n".join(encoded[start : start + _LINE] for start in range(0, len(encoded), _LINE))

    def tensor(self) -> torch.Tensor:
        """All of it as a tensor of bytes."""
        return torch.frombuffer(bytearray(self.bytes()), dtype=torch.uint8)


def _plain_stride(tensor: torch.Tensor) -> tuple[int, ...]:
    stride = tuple(tensor.stride())
    if _can_be_made(tuple(tensor.shape), stride):
        return stride
    return tuple(torch.empty(tensor.shape, device="meta").stride())


def _can_be_made(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether no two elements overlap, apart from whole dimensions that show one value, and gaps are bounded."""
    if len(shape) != len(stride) or any(step < 0 for step in stride):
        return False
    needed, stored = 1, 1
    for step, size in sorted(zip(stride, shape, strict=True)):
        if size > 1 and step > 0:
            if step < needed:
                return False
            needed, stored = step * (size - 1) + needed, stored * size
    return needed <= _MOST_EXPANSION * max(stored, 64) and 0 not in shape


def rounded_up(values: torch.Tensor) -> torch.Tensor:
    """Bounds with four significant bits, never smaller than given: they compress to a few bits each."""
    if not values.numel():
        return values.float()
    mantissa, exponent = values.double().frexp()
    return torch.ldexp((mantissa * 16).ceil() / 16, exponent).float()
