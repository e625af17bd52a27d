"""The operators inside graphs: opaque calls with right mutation, and no recompilation for other batch sizes."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Any

import pytest
import torch
from torch import Tensor

from dlinfer import ops

pytestmark = pytest.mark.unit

HEADS, KV_HEADS, SIZE, BLOCK, HIDDEN = 6, 3, 16, 4, 96


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = {"norm": (HIDDEN,), "qkv": ((HEADS + 2 * KV_HEADS) * SIZE, HIDDEN), "up": (4 * HIDDEN, HIDDEN)}
    shapes["down"] = (HIDDEN, 2 * HIDDEN)
    return {name: torch.randn(shape, generator=generator) * 0.1 for name, shape in shapes.items()}


def _layer(
    hidden: Tensor,
    residual: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    table: Tensor,
    kv_lengths: Tensor,
    longest: int,
    slots: Tensor,
    cos: Tensor,
    sin: Tensor,
    weights: dict[str, Tensor],
) -> tuple[Tensor, Tensor]:
    """One decoder layer as LMDeploy 0.18 calls it."""
    hidden, residual = ops.add_rms_norm(hidden, residual, weights["norm"], 1e-6)
    states = ops.linear(hidden, weights["qkv"]).view(-1, HEADS + 2 * KV_HEADS, SIZE)
    query, key, value = states.split([HEADS, KV_HEADS, KV_HEADS], 1)
    query, key = ops.apply_rotary_pos_emb(query, key, cos, sin)
    ops.fill_kv_cache(key, value, key_cache, value_cache, slots)
    ends = torch.arange(1, hidden.shape[0] + 1, dtype=torch.int32)
    out = ops.paged_decode_attention(
        query,
        key_cache,
        value_cache,
        table,
        BLOCK,
        ends,
        kv_lengths,
        longest,
        HEADS,
        KV_HEADS,
        head_size_v=SIZE,
    )
    hidden, residual = ops.add_rms_norm(out.flatten(1), residual, weights["norm"], 1e-6)
    return ops.linear(ops.silu_and_mul(ops.linear(hidden, weights["up"])), weights["down"]), residual


def _inputs(batch: int) -> list[Any]:
    generator = torch.Generator().manual_seed(batch)
    lengths = torch.arange(2, 2 + batch, dtype=torch.int32)
    columns = 8
    blocks = batch * columns
    hidden, residual = (torch.randn(batch, HIDDEN, generator=generator) for _ in range(2))
    caches = [torch.randn(blocks, BLOCK, KV_HEADS, SIZE, generator=generator) for _ in range(2)]
    table = torch.randperm(blocks, generator=generator).view(batch, columns).int()
    last = lengths.long() - 1
    slots = table.gather(1, (last // BLOCK).unsqueeze(1)).flatten() * BLOCK + last % BLOCK
    cos, sin = (torch.randn(batch, SIZE, generator=generator) for _ in range(2))
    return [hidden, residual, *caches, table, lengths, int(lengths.max()), slots, cos, sin]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@torch._dynamo.config.patch(error_on_recompile=True)
def test_one_graph_for_all_batch_sizes(backend: str) -> None:
    weights = _weights()
    compiled = torch.compile(_layer, fullgraph=True, dynamic=True, backend=backend)
    for batch in (5, 7, 12, 25):
        eager, graph = _inputs(batch), _inputs(batch)
        with torch.inference_mode():
            wanted = _layer(*eager, weights)
            got = compiled(*graph, weights)
        for one, other in zip((*wanted, *eager[2:4]), (*got, *graph[2:4]), strict=True):
            assert torch.equal(one, other), "also what was written into the caches"
        assert not torch.equal(_inputs(batch)[2], graph[2])


def test_the_graph_holds_the_operators_as_they_are() -> None:
    seen: list[str] = []

    def backend(module: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
        seen.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module

    with torch.inference_mode():
        torch.compile(_layer, fullgraph=True, dynamic=True, backend=backend)(*_inputs(5), _weights())
    ours = [name for name in seen if name.startswith("dlinfer.")]
    assert [name.split(".")[1] for name in ours] == [
        "add_rms_norm", "linear", "apply_rotary_pos_emb", "fill_kv_cache", "paged_decode_attention", "add_rms_norm", "linear",
        "silu_and_mul", "linear",
    ]  # fmt: skip


def test_a_compiled_call_is_checked_when_it_runs() -> None:
    compiled = torch.compile(_layer, fullgraph=True, dynamic=True, backend="eager")
    inputs = _inputs(5)
    with torch.inference_mode():
        compiled(*inputs, _weights())
        inputs[4] = inputs[4] + 10_000
        with pytest.raises(ops.DlinferArgumentError, match="block_table"):
            compiled(*inputs, _weights())


def test_prefill_in_a_graph_writes_into_the_query() -> None:
    """LMDeploy hands the query over as memory for the output."""

    def prefill(
        states: Tensor, key: Tensor, value: Tensor, lengths: Tensor, ends: Tensor, longest: int
    ) -> Tensor:
        query = states * 2.0
        return ops.prefill_attention(
            query, key, value, key, value, lengths, lengths, longest, HEADS, KV_HEADS, [], attn_output=query[..., :SIZE],
            actual_seq_lengths_cpu=ends,
        )  # fmt: skip

    generator = torch.Generator().manual_seed(3)
    compiled = torch.compile(prefill, fullgraph=True, dynamic=True, backend="aot_eager")
    for lengths in ([7, 4], [5, 9]):
        tokens = sum(lengths)
        given = [
            torch.randn(tokens, heads, SIZE, generator=generator) for heads in (HEADS, KV_HEADS, KV_HEADS)
        ]
        ends = torch.tensor(lengths).cumsum(0)
        args = (*given, torch.tensor(lengths), ends, max(lengths))
        with torch.inference_mode():
            assert torch.equal(prefill(*args), compiled(*args))


def test_bits_may_be_an_enumeration() -> None:
    """As a framework's policies of quantisation are."""

    class Policy(IntEnum):
        NONE = 0

    def fill(key: Tensor, cache: Tensor, slots: Tensor) -> Tensor:
        ops.fill_kv_cache(key, key, cache[0], cache[1], slots, quant_bits=Policy.NONE)
        return cache.sum()

    key, slots = torch.randn(3, KV_HEADS, SIZE), torch.tensor([0, 5, 2])
    plain, compiled = torch.zeros(2, 2, 4, 2, KV_HEADS, SIZE).unbind()
    torch.compile(fill, fullgraph=True, dynamic=True, backend="eager")(key, compiled, slots)
    fill(key, plain, slots)
    assert torch.equal(plain, compiled) and plain.any()
