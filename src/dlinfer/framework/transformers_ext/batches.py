"""What a call of a decoder means to the operators: which tokens run, where their keys go, how long sequences are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from dlinfer.framework.transformers_ext.cache import BLOCK, PagedLayer


@dataclass(frozen=True, slots=True)
class Batch:
    """The tokens of one call, sequence after sequence, without those that the mask hides."""

    shape: tuple[int, int]
    """Of the input: sequences, tokens of each."""
    rows: Tensor | None
    """Which tokens of the flattened input run; None: all do."""
    lengths: list[int]
    """Keys of each sequence after this call."""
    kv_lengths: Tensor
    cu_seqlens_q: Tensor
    """Cumulative lengths of the tokens that run, from 0."""
    max_new: int
    max_kv: int
    fresh: bool
    """Nothing came before: the keys of these tokens are all there are."""
    steps: bool
    """One new token for each sequence."""
    kept: Tensor | None
    """[sequences, tokens seen] of bool: what the cache holds after this call; None: everything."""
    starts: list[int]
    """Keys of each sequence before this call."""

    def packed(self, states: Tensor) -> Tensor:
        """[sequences, tokens, ...] as [tokens that run, ...]."""
        flat = states.reshape(-1, states.shape[-1])
        return flat if self.rows is None else flat[self.rows]

    def unpacked(self, states: Tensor) -> Tensor:
        """[tokens that run, features] as [sequences, tokens, features]; hidden tokens get zeros."""
        if self.rows is not None:
            whole = states.new_zeros([self.shape[0] * self.shape[1], states.shape[-1]])
            states = whole.index_copy_(0, self.rows, states)
        return states.view(*self.shape, -1)

    def slots(self, capacity: int, device: torch.device) -> Tensor:
        """Where keys go in the pages, when each sequence has `capacity` slots."""
        if self.steps:
            slots = [row * capacity + start for row, start in enumerate(self.starts)]
            return torch.tensor(slots, dtype=torch.int64, device=device)
        runs = [
            torch.arange(row * capacity + start, row * capacity + length)
            for row, (start, length) in enumerate(zip(self.starts, self.lengths, strict=True))
        ]
        return torch.cat(runs).to(device)

    def table(self, capacity: int, device: torch.device) -> Tensor:
        """The pages of each sequence, which has its own run of them."""
        blocks = torch.arange(self.shape[0] * (capacity // BLOCK), dtype=torch.int32, device=device)
        return blocks.view(self.shape[0], -1)


def plan(states: Tensor, mask: Tensor | None, layer: PagedLayer | None, windowed: bool) -> Batch | None:
    """The batch of a call; None: this mask cannot be had without masks, transformers' own way must be gone.

    `states` are the embeddings [sequences, tokens, features]; `mask` is transformers' 2-D mask over all tokens so far.
    """
    batch, new = states.shape[0], states.shape[1]
    seen = 0 if layer is None else layer.seen
    kept = None if layer is None else layer.kept
    if batch == 0 or new == 0:
        return None
    if layer is not None and layer.keys is not None:
        held = layer.keys
        if held.shape[0] != batch or held.dtype != states.dtype or held.device != states.device:
            raise ValueError(
                f"past_key_values holds {held.shape[0]} sequences in {held.dtype} on {held.device}, but the input is"
                f" {batch} in {states.dtype} on {states.device}: start with a new cache"
            )
    if mask is not None and (mask.dim() != 2 or mask.shape[0] != batch or mask.shape[1] != seen + new):
        return None
    shown = None if mask is None or bool(mask.all()) else mask.to(states.device, torch.bool)
    if shown is None and kept is None:
        return _even(states, seen)
    if shown is None:
        shown = torch.ones([batch, seen + new], dtype=torch.bool, device=states.device)
    before = torch.ones_like(shown[:, :seen]) if kept is None else kept
    # What was stored cannot be hidden later, nor be shown if it was not stored.
    if not torch.equal(shown[:, :seen], before):
        return None
    if not bool(shown[:, seen:].any()):
        return None
    # A window counts hidden tokens between others; the pages do not hold them. In front they make no difference.
    if windowed and bool((shown[:, :-1] & ~shown[:, 1:]).any()):
        return None
    return _uneven(states, shown, seen)


def _even(states: Tensor, seen: int) -> Batch:
    batch, new, _ = states.shape
    device = states.device
    return Batch(
        shape=(batch, new),
        rows=None,
        lengths=[seen + new] * batch,
        kv_lengths=torch.full([batch], seen + new, dtype=torch.int32, device=device),
        cu_seqlens_q=torch.arange(0, batch * new + 1, new, dtype=torch.int32, device=device),
        max_new=new,
        max_kv=seen + new,
        fresh=seen == 0,
        steps=new == 1,
        kept=None,
        starts=[seen] * batch,
    )


def _uneven(states: Tensor, shown: Tensor, seen: int) -> Batch:
    batch, new, _ = states.shape
    device = states.device
    fresh = shown[:, seen:]
    starts = shown[:, :seen].sum(1).tolist()
    added = fresh.sum(1)
    counts = added.tolist()
    lengths = [start + count for start, count in zip(starts, counts, strict=True)]
    everything = sum(counts) == batch * new
    return Batch(
        shape=(batch, new),
        rows=None if everything else fresh.reshape(-1).nonzero().squeeze(1),
        lengths=lengths,
        kv_lengths=torch.tensor(lengths, dtype=torch.int32, device=device),
        cu_seqlens_q=pad(added.cumsum(0), (1, 0)).to(torch.int32),
        max_new=max(counts),
        max_kv=max(lengths),
        fresh=seen == 0,
        steps=everything and new == 1,
        kept=shown,
        starts=starts,
    )
