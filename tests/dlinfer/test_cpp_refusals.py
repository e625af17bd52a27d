"""What cpp's kernels must not take: dtypes that they do not know, and numbers that the reference behind them does not look at."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dlinfer.reference import KERNELS

_cpp: Any = pytest.importorskip("dlinfer._cpp")
pytestmark = pytest.mark.unit

KINDS = (torch.float32, torch.bfloat16, torch.float16)
DTYPES = (*KINDS, torch.float64)


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(17)


# ---- quantised caches ----


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("value_dtype", DTYPES)
@pytest.mark.parametrize("key_dtype", DTYPES)
def test_keys_and_values_of_a_quantised_cache_have_dtypes_of_their_own(
    key_dtype: torch.dtype, value_dtype: torch.dtype, bits: int
) -> None:
    key, value = torch.randn(5, 2, 8, dtype=key_dtype), torch.randn(5, 2, 8, dtype=value_dtype)
    slots = torch.tensor([7, 0, -1, 3, 9])
    scale, zero = torch.tensor([3 / 2**bits]), torch.tensor([2.0 ** (bits - 1)])
    filled = []
    for fill in (_cpp.fill_kv_cache, KERNELS["fill_kv_cache"]):
        caches = [torch.zeros(3, 4, 2, bits, dtype=torch.uint8) for _ in range(2)]
        fill(key, caches[0], value, caches[1], slots, scale, zero, scale, zero, bits)
        filled.append(caches)
    for mine, wanted in zip(*filled, strict=True):
        assert wanted.any() and torch.equal(mine, wanted)


def test_no_kernel_reads_a_dtype_that_it_does_not_know() -> None:
    """Where the interface was gone around: an error, never memory read as another dtype."""
    query, cos = torch.randn(3, 2, 8), torch.randn(3, 8)
    with pytest.raises(RuntimeError, match="take float32, bfloat16 and float16, got Double"):
        _cpp.apply_rotary_pos_emb(query, query.double(), cos, cos)
    key, lengths, output = torch.randn(3, 2, 8), torch.tensor([3]), torch.zeros(3, 2, 8)
    with pytest.raises(RuntimeError, match="take float32, bfloat16 and float16, got Double"):
        _cpp.prefill_attention(query, key, key.double(), lengths, lengths, 3, output, 0.3)
    assert not output.any()
