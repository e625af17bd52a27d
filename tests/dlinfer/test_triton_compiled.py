"""Kernels of the vendor triton become machine code for a GPU that is not here, at the sizes of real models."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch
from triton_compiler import compiling

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted, not compiled"
    ),
]
SHARED_MEMORY = 227 * 1024


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "size_v"), [(32, 8, 64, 64), (32, 8, 128, 128), (16, 1, 576, 512)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_attention_fits_a_multiprocessor(
    monkeypatch: pytest.MonkeyPatch, heads: int, kv_heads: int, size: int, size_v: int, dtype: torch.dtype
) -> None:
    from dlinfer.vendors.triton import tables
    from dlinfer.vendors.triton.launching import kernel as KERNELS

    monkeypatch.setattr(tables, "PROGRAMS", 64)
    query = torch.zeros(4, heads, size, dtype=dtype)
    key = torch.zeros(8, 64, kv_heads, size, dtype=dtype)
    value, out = key[..., :size_v], torch.zeros(4, heads, size_v, dtype=dtype)
    table, lengths = torch.zeros(4, 64, dtype=torch.int32), torch.ones(4, dtype=torch.int32)
    with compiling() as kernels:
        KERNELS["paged_decode_attention"](query, key, value, table, lengths, 4096, out, 0.1)
        KERNELS["paged_prefill_attention"](query, key, value, table, lengths, lengths, 1, 4096, out, 0.1)
    assert {kernel.name for kernel in kernels} == {"decode_kernel", "sum_kernel", "prefill_kernel"}
    for kernel in kernels:
        assert kernel.metadata.shared <= SHARED_MEMORY, f"{kernel.name}: {kernel.metadata.shared} bytes"


@pytest.mark.parametrize("rows", [1, 32, 64, 4096])
def test_products_fit_a_multiprocessor(rows: int) -> None:
    from dlinfer.vendors.triton.launching import kernel as KERNELS

    x, packed = torch.zeros(rows, 256, dtype=torch.bfloat16), torch.zeros(256, 32, dtype=torch.int32)
    number, scale = torch.zeros(rows, 256, dtype=torch.int8), torch.ones(rows)
    experts = torch.zeros(4, 512, 256, dtype=torch.bfloat16), torch.zeros(4, 256, 256, dtype=torch.bfloat16)
    with compiling() as kernels:
        KERNELS["weight_quant_matmul"](x, packed, torch.ones(2, 256), None, None, 128)
        KERNELS["linear_w8a8"](
            number, torch.zeros(256, 256, dtype=torch.int8), scale, scale[:1], x.dtype, torch.int8
        )
        KERNELS["fused_moe"](x, *experts, torch.ones(rows, 2), torch.zeros(rows, 2, dtype=torch.int64))
    assert {"_w8a8_kernel", "_order_kernel", "_up_kernel", "_down_kernel"} < {
        kernel.name for kernel in kernels
    }
    for kernel in kernels:
        assert kernel.metadata.shared <= SHARED_MEMORY, f"{kernel.name}: {kernel.metadata.shared} bytes"
