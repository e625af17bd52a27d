"""What only a GPU shows of the vendor triton: nothing waits for the device, and graphs hold the kernels."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from dlinfer import ops
from dlinfer.vendors import served_by, using

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted, not compiled"
    ),
]
BATCH, HEADS, KV_HEADS, SIZE, BLOCK, COLUMNS = 4, 8, 2, 64, 16, 40


class _Step:
    """One layer of a decode, with everything on the GPU."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        options = {"device": "cuda", "dtype": torch.bfloat16}
        self.hidden = torch.randn(BATCH, 128, **options)
        self.residual = torch.randn(BATCH, 128, **options)
        self.norm = torch.randn(128, **options)
        self.projection = torch.randn((HEADS + 2 * KV_HEADS) * SIZE, 128, **options)
        self.caches = torch.randn(2, BATCH * COLUMNS, BLOCK, KV_HEADS, SIZE, **options)
        self.table = torch.randperm(BATCH * COLUMNS, device="cuda").view(BATCH, COLUMNS).to(torch.int32)
        self.lengths = torch.tensor([1, 17, 300, 640], device="cuda", dtype=torch.int32)
        angles = torch.rand(BATCH, SIZE, device="cuda")
        self.cos, self.sin = angles.cos(), angles.sin()
        self.experts = torch.randn(4, 64, 128, **options), torch.randn(4, 128, 32, **options)

    def run(self) -> Tensor:
        hidden, _ = ops.add_rms_norm(self.hidden, self.residual, self.norm, 1e-6)
        rows = ops.linear(hidden, self.projection).view(BATCH, -1, SIZE)
        query, key, value = rows.split([HEADS, KV_HEADS, KV_HEADS], 1)
        query, key = ops.apply_rotary_pos_emb(query, key, self.cos, self.sin)
        last = self.lengths.long() - 1
        slots = self.table.gather(1, (last // BLOCK).unsqueeze(1)).squeeze(1).long() * BLOCK + last % BLOCK
        ops.fill_kv_cache(key, value, *self.caches, slots)
        seen = ops.paged_decode_attention(
            query, *self.caches, self.table, BLOCK, None, self.lengths, COLUMNS * BLOCK, HEADS, KV_HEADS
        )
        weights, ids = torch.softmax(hidden[:, :4].float(), -1).topk(2, -1)
        mixed = torch.ops.dlinfer.fused_moe(hidden, *self.experts, weights, ids)
        return torch.cat((seen.flatten(1), mixed), 1)


@pytest.fixture(autouse=True)
def chosen() -> Iterator[None]:
    with using("triton"):
        yield


def test_it_is_the_first_choice_on_a_gpu() -> None:
    assert served_by("paged_decode_attention", "cuda").name == "triton"


def test_nothing_waits_for_the_device() -> None:
    step = _Step()
    step.run()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_graph_sees_new_lengths_and_new_blocks() -> None:
    step = _Step()
    step.run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step.run()
    step.lengths.copy_(torch.tensor([33, 1, 639, 64]))
    step.table.copy_(step.table.flip(0))
    step.hidden.normal_()
    graph.replay()
    torch.testing.assert_close(captured, step.run(), rtol=0, atol=0)


@pytest.mark.parametrize("size", [64, 128])
def test_long_contexts_agree_with_the_reference(size: int) -> None:
    lengths = torch.tensor([5000, 1, 8192, 77], dtype=torch.int32, device="cuda")
    caches = torch.randn(2, 4 * 128, 64, 8, size, device="cuda", dtype=torch.bfloat16)
    table = torch.randperm(512, device="cuda").view(4, 128).to(torch.int32)
    query = torch.randn(4, 32, size, device="cuda", dtype=torch.bfloat16)
    arguments = (query, *caches, table, 64, None, lengths, 8192, 32, 8)
    got = ops.paged_decode_attention(*arguments)
    with using("ref"):
        expected = ops.paged_decode_attention(*arguments)
    torch.testing.assert_close(got, expected, rtol=2e-2, atol=4e-3)


def test_long_prompts_agree_with_sdpa() -> None:
    lengths = [1000, 1, 2048]
    query, key, value = (
        torch.randn(sum(lengths), heads, 128, device="cuda", dtype=torch.bfloat16) for heads in (32, 8, 8)
    )
    sizes = torch.tensor(lengths, device="cuda")
    out = torch.empty_like(query)
    torch.ops.dlinfer.prefill_attention(query, key, value, sizes.cumsum(0), sizes, 2048, out, 128**-0.5)
    parts = zip(*(states.split(lengths) for states in (query, key, value, out)), strict=True)
    for q, k, v, got in parts:
        expected = torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(0, 1).unsqueeze(0) for x in (q, k, v)), is_causal=True, enable_gqa=True
        )
        torch.testing.assert_close(got, expected[0].transpose(0, 1), rtol=2e-2, atol=1e-2)
