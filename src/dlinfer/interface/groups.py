"""Arguments that travel together: a parameter annotated with one of these takes all of its fields (`Operator.bind`).

Fields are named as in the schemas; the default of a field is for operators whose schema does not have it.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class MaskParameters(NamedTuple):
    """Which keys a query attends to, beside a mask, and how scores are changed before the softmax."""

    softmax_scale: float
    causal: bool = True
    alibi_slopes: Tensor | None = None
    window_left: int = -1
    window_right: int = -1
    soft_cap: float = 0.0


class CacheQuantisation(NamedTuple):
    """How caches of 8 or 4 bits are read."""

    kv_scales: Tensor | None = None
    kv_zeros: Tensor | None = None
    quant_bits: int = 0

    @property
    def absent(self) -> bool:
        """Whether nothing of it is given."""
        return not self.quant_bits and self.kv_scales is None and self.kv_zeros is None


class FillQuantisation(NamedTuple):
    """How caches of 8 or 4 bits are written."""

    key_scale: Tensor | None
    key_zero: Tensor | None
    value_scale: Tensor | None
    value_zero: Tensor | None
    quant_bits: int

    @property
    def absent(self) -> bool:
        """Whether nothing of it is given."""
        return not self.quant_bits and all(given is None for given in self[:4])


class Routing(NamedTuple):
    """Which experts a token goes to, and which of them are here."""

    topk_weights: Tensor
    topk_ids: Tensor
    renormalize: bool
    first_expert: int
    num_experts: int
