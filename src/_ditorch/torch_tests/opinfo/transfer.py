"""Move samples to a device without changing what they are.

``tensor.to(device)`` makes strided views dense, gives two views of one buffer a buffer each, and drops the
bytes outside a view, which ``as_strided`` may legally reach. Here the storage travels, once, and every tensor
is rebuilt on top of it with its own offset, sizes and strides; conjugate and negative bits stay bits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

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
        known = self._tensors.get(id(source))
        if known is None:
            with torch.no_grad():
                copy = self._copy(source.detach()).detach()
            copy.requires_grad_(source.requires_grad)
            known = self._tensors[id(source)] = (source, copy)  # the source is kept: its id stays its own
        return known[1]

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
        known = self._storages.get(source._cdata)
        if known is None:
            size = source.nbytes()
            read = torch.empty(0, dtype=torch.uint8).set_(source, 0, (size,), (1,))
            known = torch.empty(size, dtype=torch.uint8, device=self.device).copy_(read).untyped_storage()
            self._storages[source._cdata] = known
        return known
