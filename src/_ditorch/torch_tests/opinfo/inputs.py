"""The inputs of both sides: samples moved to the device without changing what they are, seeds, weights, tolerances.

``tensor.to(device)`` makes strided views dense, gives two views of one buffer a buffer each, and drops the
bytes outside a view, which ``as_strided`` may legally reach. Here the storage travels, once, and every tensor
is rebuilt on top of it with its own offset, sizes and strides; conjugate and negative bits stay bits.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from _ditorch.torch_tests.opinfo.compare import Tolerance, declared_tolerance
from _ditorch.torch_tests.opinfo.pairs import NO_DTYPE, dtype_named
from _ditorch.torch_tests.outcomes import OpInfoOptions, Pair

__all__ = ["SEED", "Draws", "device_function", "is_factory", "random_like", "seed_both", "tolerance_for"]

_COMPRESSED_ROWS = (torch.sparse_csr, torch.sparse_bsr)
_COMPRESSED = (*_COMPRESSED_ROWS, torch.sparse_csc, torch.sparse_bsc)


class Transfer:
    """Copies of the tensors of one sample; tensors that shared memory share it afterwards."""

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        self._storages: dict[int, torch.UntypedStorage] = {}
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __call__(self, tree: Any) -> Any:
        return tree_map(self._leaf, tree)

    @property
    def source_storages(self) -> frozenset[int]:
        """Identities of the storages read so far: tells whether a CPU result is a view of an argument."""
        return frozenset(self._storages)

    @property
    def device_storages(self) -> frozenset[int]:
        """The same for the copies."""
        return frozenset(storage._cdata for storage in self._storages.values())

    def _leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self._tensor(leaf) if leaf.device.type == "cpu" else leaf  # some wrong inputs are on meta
        if isinstance(leaf, torch.device) and leaf.type == "cpu":
            return self.device
        if isinstance(leaf, str) and leaf == "cpu":
            return str(self.device)
        return leaf

    def _tensor(self, source: torch.Tensor) -> torch.Tensor:
        copied = self._tensors.get(id(source))
        if copied is None:
            with torch.no_grad():
                copy = self._copy(source.detach()).detach()
            copy.requires_grad_(source.requires_grad)
            copied = self._tensors[id(source)] = (source, copy)  # the source is kept: its id stays its own
        return copied[1]

    def _copy(self, source: torch.Tensor) -> torch.Tensor:
        if source.layout == torch.sparse_coo:
            indices, values = self._strided(source._indices()), self._strided(source._values())
            built = torch.sparse_coo_tensor(indices, values, source.shape, check_invariants=False)
            return built._coalesced_(source.is_coalesced())
        if source.layout in _COMPRESSED:
            return self._compressed(source)
        if source.layout != torch.strided:
            return source.to(self.device)
        if source.is_neg():
            return torch._neg_view(self._copy(torch._neg_view(source)))
        if source.is_conj():
            return self._copy(source.conj()).conj()
        return self._strided(source)

    def _compressed(self, source: torch.Tensor) -> torch.Tensor:
        if source.layout in _COMPRESSED_ROWS:
            outer, inner = source.crow_indices(), source.col_indices()
        else:
            outer, inner = source.ccol_indices(), source.row_indices()
        return torch.sparse_compressed_tensor(
            self._strided(outer),
            self._strided(inner),
            self._strided(source.values()),
            source.shape,
            layout=source.layout,
            check_invariants=False,
        )

    def _strided(self, source: torch.Tensor) -> torch.Tensor:
        storage = self._storage(source.untyped_storage())
        target = torch.empty(0, dtype=source.dtype, device=self.device)
        return target.set_(storage, source.storage_offset(), source.size(), source.stride())

    def _storage(self, source: torch.UntypedStorage) -> torch.UntypedStorage:
        copied = self._storages.get(source._cdata)
        if copied is None:
            size = source.nbytes()
            read = torch.empty(0, dtype=torch.uint8).set_(source, 0, (size,), (1,))
            copied = torch.empty(size, dtype=torch.uint8, device=self.device).copy_(read).untyped_storage()
            self._storages[source._cdata] = copied
        return copied


# -- seeds, weights, tolerances --------------------------------------------------------------------------------

SEED = 1234


def seed_both(device: str) -> None:
    """Not `torch.manual_seed`: with CUDA compiled in but absent it formats a traceback at every call."""
    torch.default_generator.manual_seed(SEED)
    device_function(device, "manual_seed_all")(SEED)


class Draws(TorchDispatchMode):
    """Whether what runs inside draws random numbers from the default generator.

    The state of the generator does not tell: many entries of the database put it back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags and given.get("generator") is None
        return func(*args, **given)


@functools.cache
def device_function(device: str, name: str) -> Callable[..., Any]:
    """``torch.<device>.<name>``; one that does nothing where there is none, as on the CPU."""
    namespace = getattr(torch, torch.device(device).type, None)
    found: Callable[..., Any] = getattr(namespace, name, lambda *_: None)
    return found


@functools.cache
def is_factory(aten_name: str) -> bool:
    """Does the operator make tensors on a device named by an argument, and not on that of a tensor?"""
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{aten_name}")
    names = [[argument.name for argument in schema.arguments] for schema in schemas if not schema.is_mutable]
    return bool(names) and all("device" in found and found[0] != "self" for found in names)


def random_like(output: torch.Tensor, seed: int, rounded_to: torch.dtype | None = None) -> torch.Tensor:
    """Fixed random weights for the backward pass; a sparse output is its own weight: the pattern stays.

    `rounded_to`: an upcast run must be given the weights of the narrow one.
    """
    if output.layout != torch.strided:
        return output.detach().clone()
    generator = torch.Generator().manual_seed(seed)
    upcast = torch.complex128 if output.is_complex() else torch.float64
    weights = torch.randn(output.shape, dtype=upcast, generator=generator)
    if rounded_to is not None:
        weights = weights.to(rounded_to.to_complex() if output.is_complex() else rounded_to.to_real())
    return weights.to(output.dtype).to(output.device)


def tolerance_for(op: Any, pair: Pair, options: OpInfoOptions) -> Tolerance:
    """The widest of what the operator and the device's file declare; torch's default for the dtype holds besides."""
    if pair.dtype == NO_DTYPE:
        return Tolerance()
    found = declared_tolerance(op, dtype_named(pair.dtype), torch.device(options.device).type)
    for rule in options.tolerances:
        fits = rule.dtypes is None or pair.dtype in rule.dtypes
        fits = fits and (rule.checks is None or pair.check in rule.checks)
        if fits and re.fullmatch(rule.op, pair.op):
            found = found.or_wider(rule.rtol, rule.atol)
    return found
