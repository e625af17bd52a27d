"""A layer of transformers' caches that lies in pages, as the operators of dlinfer read it.

It stands in the `layers` of a `DynamicCache`, so `generate` and everything around it work as ever. Each sequence has its
own run of pages. Tokens that the attention mask hides (padding) are not stored: the operators need no mask.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import transformers
from packaging.version import Version
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicLayer

BLOCK = 64
"""Tokens in a page."""


def _smallest_length() -> float:
    """From which number on `crop` of transformers takes the length that is to stay, not the tokens to forget.

    0 in transformers 4, 1 before 5.18; newer versions refuse such numbers.
    """
    layer = DynamicLayer()
    layer.update(torch.zeros(1, 1, 2, 1, device="cpu"), torch.zeros(1, 1, 2, 1, device="cpu"))
    layer.crop(0)
    if not layer.get_seq_length():
        return 0
    # To try it would write a warning.
    return 1 if Version(transformers.__version__) < Version("5.18") else math.inf


_SMALLEST_LENGTH = _smallest_length()


class PagedLayer(CacheLayerMixin):
    """Keys and values of one layer: [batch, capacity, heads, size], where `capacity` is a whole number of pages."""

    is_sliding = False
    is_croppable = True
    keys: Tensor | None
    values: Tensor | None

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self.seen = 0
        """Tokens that went by, hidden ones included: the length that transformers knows."""
        self.kept: Tensor | None = None
        """[batch, seen] of bool: which of them are stored; None: all are."""
        self.pages: tuple[Tensor, Tensor] | None = None
        """Keys and values as paged caches [blocks, BLOCK, heads, size]: views, page after page of each sequence."""

    # ---- what the decoder uses ----

    @property
    def capacity(self) -> int:
        return 0 if self.keys is None else self.keys.shape[1]

    def reserve(self, batch: int, tokens: int, like: Tensor, heads: int, size: int) -> None:
        """Room for `tokens` in each sequence. Grows by half at least, so that growing costs little for each token."""
        if self.keys is None:
            shape = [batch, _pages(tokens + BLOCK) * BLOCK, heads, size]
            self._hold(like.new_zeros(shape), like.new_zeros(shape))
            self.dtype, self.device = like.dtype, like.device
            self.is_initialized = True
        elif tokens > self.capacity and self.values is not None:
            capacity = _pages(max(tokens, self.capacity * 3 // 2)) * BLOCK
            self._hold(_grown(self.keys, capacity), _grown(self.values, capacity))

    def _hold(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values
        self.pages = keys.view(-1, BLOCK, *keys.shape[2:]), values.view(-1, BLOCK, *values.shape[2:])

    def advance(self, tokens: int, kept: Tensor | None) -> None:
        """Counts tokens whose keys are in the pages now."""
        self.seen += tokens
        self.kept = kept

    def lengths(self) -> list[int] | None:
        """Stored tokens of each sequence; None: `seen` for all."""
        return None if self.kept is None else self.kept.sum(1).tolist()

    # ---- what transformers calls ----

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        batch, heads, tokens, size = key_states.shape
        self.reserve(batch, tokens, key_states, heads, size)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Stores [batch, heads, new, size], and gives all keys and values so far in that form."""
        batch, heads, new, size = key_states.shape
        lengths = self.lengths() or [self.seen] * batch
        self.reserve(batch, max(lengths) + new, key_states, heads, size)
        assert self.keys is not None and self.values is not None
        for row, length in enumerate(lengths):
            self.keys[row, length : length + new] = key_states[row].transpose(0, 1)
            self.values[row, length : length + new] = value_states[row].transpose(0, 1)
        if self.kept is not None:
            self.kept = torch.cat((self.kept, self.kept.new_ones(batch, new)), 1)
        self.seen += new
        return self._padded(self.keys), self._padded(self.values)

    def _padded(self, stored: Tensor) -> Tensor:
        if self.kept is None:
            return stored[:, : self.seen].transpose(1, 2)
        # Hidden tokens get what is at hand: the mask hides them.
        index = (self.kept.cumsum(1) - 1).clamp_(min=0)
        return stored.gather(1, index[:, :, None, None].expand(-1, -1, *stored.shape[2:])).transpose(1, 2)

    def get_seq_length(self) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        """The name of `get_max_length` in transformers 4."""
        return -1

    def get_mask_sizes(self, query_length: int | Tensor) -> tuple[int, int]:
        """transformers 4 gives the positions of the new tokens, not their number."""
        new = query_length.shape[0] if isinstance(query_length, Tensor) else query_length
        return self.seen + new, 0

    def reset(self) -> None:
        self.keys = self.values = self.kept = self.pages = None
        self.is_initialized = False
        self.seen = 0

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the newest tokens; the number is negative, as in transformers' own layers."""
        if tokens_to_remove >= _SMALLEST_LENGTH:
            self.seen = min(self.seen, tokens_to_remove)
        elif tokens_to_remove > 0:
            raise ValueError(f"crop({tokens_to_remove}): give the number of tokens to forget as -n")
        else:
            self.seen = max(self.seen + tokens_to_remove, 0)
        self.kept = None if self.kept is None else self.kept[:, : self.seen]
        if not self.seen:
            # Nothing says any more how many sequences there are.
            self.reset()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self._each(lambda held: held[indices.to(held.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._each(lambda held: held.repeat_interleave(repeats, 0))

    def _each(self, change: Any) -> None:
        if self.keys is not None and self.values is not None:
            self._hold(change(self.keys), change(self.values))
        self.kept = None if self.kept is None else change(self.kept)


def _pages(tokens: int) -> int:
    return -(-tokens // BLOCK)


def _grown(stored: Tensor, capacity: int) -> Tensor:
    batch, length, *rest = stored.shape
    grown = stored.new_zeros([batch, capacity, *rest])
    grown[:, :length] = stored
    return grown


def adopt(cache: Cache, layers: int) -> bool:
    """Makes an empty `DynamicCache` a paged one; False: it is something else, and must be used as it is."""
    # A subclass has its own idea of what the layers are.
    if type(cache) is not DynamicCache or cache.offloading:
        return False
    held = cache.layers
    if held and all(type(layer) is PagedLayer for layer in held):
        return len(held) >= layers
    if cache.get_seq_length() or any(layer.is_initialized for layer in held):
        return False
    cache.layers = [PagedLayer() for _ in range(layers)]
    cache.layer_class_to_replicate = None
    return True
