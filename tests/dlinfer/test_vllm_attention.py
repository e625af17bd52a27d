"""dlinfer's attention under vLLM: prefill, chunked prefill and decode over vLLM's caches, beside a plain computation."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
import vllm_stand_in as stand_in
from torch import Tensor

pytestmark = pytest.mark.unit
HEADS, KV_HEADS, SIZE, BLOCK, BLOCKS = 4, 2, 8, 4, 24


@pytest.fixture
def attention() -> Iterator[ModuleType]:
    with stand_in.installed():
        from dlinfer.framework.vllm_ext import attention as module

        yield module


class Engine:
    """Sequences with scattered blocks in a cache of vLLM's logical shape, and their keys and values in the clear."""

    def __init__(self, module: ModuleType, token_major: bool = True, **options: object) -> None:
        self.module = module
        self.options = options
        self.layer = module.DlinferAttention(HEADS, SIZE, SIZE**-0.5, KV_HEADS, **options)
        shape = (BLOCKS, BLOCK, KV_HEADS, 2 * SIZE) if token_major else (BLOCKS, KV_HEADS, BLOCK, 2 * SIZE)
        memory = torch.full(shape, float("nan"))
        self.cache = memory.transpose(1, 2) if token_major else memory
        self.random = torch.Generator().manual_seed(0)
        self.table = torch.randperm(BLOCKS, generator=self.random).view(3, -1).int()
        self.cached = [(torch.empty(0, KV_HEADS, SIZE), torch.empty(0, KV_HEADS, SIZE)) for _ in range(3)]

    def _draw(self, tokens: int, heads: int) -> Tensor:
        return torch.randn(tokens, heads, SIZE, generator=self.random)

    def step(self, new: list[int], causal: bool = True, padding: int = 2) -> tuple[Tensor, Tensor]:
        """One step with so many new tokens for each sequence: (what the layer wrote, what is right)."""
        total = sum(new)
        query = self._draw(total + padding, HEADS)
        key, value = self._draw(total + padding, KV_HEADS), self._draw(total + padding, KV_HEADS)
        slots, right, start = [], [], 0
        for sequence, count in enumerate(new):
            rows = slice(start, start + count)
            keys, values = self.cached[sequence]
            positions = range(len(keys), len(keys) + count)
            slots += [
                int(self.table[sequence, position // BLOCK]) * BLOCK + position % BLOCK
                for position in positions
            ]
            self.cached[sequence] = torch.cat((keys, key[rows])), torch.cat((values, value[rows]))
            right.append(self._plain(query[rows], *self.cached[sequence], causal))
            start += count
        metadata = self._metadata(new, torch.tensor(slots + [-1] * padding), causal)
        self.layer.do_kv_cache_update(None, key, value, self.cache, metadata.slots)
        output = torch.full((total + padding, HEADS * SIZE), 7.0)
        result = self.layer.forward(None, query, key, value, self.cache, metadata.step, output)
        assert result is output
        assert (output[total:] == 7.0).all(), "padding was written"
        return output[:total].view(total, HEADS, SIZE), torch.cat(right)

    def _metadata(self, new: list[int], slots: Tensor, causal: bool) -> object:
        ends = torch.tensor([0, *new]).cumsum(0).int()
        lengths = torch.tensor([len(keys) for keys, _ in self.cached], dtype=torch.int32)
        common = stand_in.CommonAttentionMetadata(
            ends, ends, lengths, len(new), sum(new), max(new), int(lengths.max()), self.table, slots, causal
        )
        builder = self.module.DlinferMetadataBuilder(None, ["layer"], None, torch.device("cpu"))
        step = builder.build(0, common)
        return type("Step", (), {"slots": slots, "step": step})

    def _plain(self, query: Tensor, keys: Tensor, values: Tensor, causal: bool) -> Tensor:
        """One query and one head after the other, in float64."""
        window = self.options.get("sliding_window")
        cap = self.options.get("logits_soft_cap")
        slopes = self.options.get("alibi_slopes")
        rows = []
        for position, row in enumerate(query.double(), start=len(keys) - len(query)):
            heads = []
            for head in range(HEADS):
                shared = head * KV_HEADS // HEADS
                scores = keys[:, shared].double() @ row[head] * SIZE**-0.5
                if cap:
                    scores = cap * torch.tanh(scores / cap)
                far = position - torch.arange(len(keys))
                if slopes:
                    scores = scores - slopes[head] * far.abs()
                hidden = (far < 0) if causal else torch.zeros(len(keys), dtype=torch.bool)
                if window:
                    hidden = hidden | (far >= window)
                heads.append(
                    scores.masked_fill(hidden, float("-inf")).softmax(0) @ values[:, shared].double()
                )
            rows.append(torch.stack(heads))
        return torch.stack(rows).float() if rows else torch.empty(0, HEADS, SIZE)


OPTIONS = {
    "plain": {},
    "window": {"sliding_window": 5},
    "soft cap": {"logits_soft_cap": 2.0},
    "alibi": {"alibi_slopes": [0.5, 0.25, 0.125, 0.0625]},
}


@pytest.mark.parametrize("token_major", [True, False])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_prefill_then_chunks_then_decode(
    attention: ModuleType, options: dict[str, object], token_major: bool
) -> None:
    engine = Engine(attention, token_major, **options)
    for new in ([7, 1, 5], [3, 9, 1], [1, 1, 1], [1, 4, 2], [1, 1, 1]):
        found, right = engine.step(new)
        torch.testing.assert_close(found, right, atol=2e-6, rtol=1e-5)


def test_every_key_is_seen_where_vllm_says_not_causal(attention: ModuleType) -> None:
    engine = Engine(attention)
    for new in ([6, 3, 2], [1, 1, 1]):
        found, right = engine.step(new, causal=False)
        torch.testing.assert_close(found, right, atol=2e-6, rtol=1e-5)


def test_which_operator_runs(attention: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    for name in ("_prefill", "_decode"):
        real = getattr(attention, name)
        monkeypatch.setattr(
            attention, name, lambda *args, real=real, name=name: (seen.append(name), real(*args))[1]
        )
    engine = Engine(attention)
    for new in ([4, 1, 1], [1, 1, 1], [1, 2, 1]):
        engine.step(new)
    assert seen == ["_prefill", "_decode", "_prefill"]


def test_before_there_is_a_cache_the_output_is_zero(attention: ModuleType) -> None:
    engine = Engine(attention)
    output = torch.full((2, HEADS * SIZE), float("nan"))
    states = torch.zeros(2, HEADS, SIZE)
    assert engine.layer.forward(None, states, states, states, engine.cache, None, output).eq(0).all()


def test_what_it_cannot_do_is_refused(attention: ModuleType) -> None:
    with pytest.raises(ValueError, match="encoder_only"):
        Engine(attention, attn_type="encoder_only")
    engine = Engine(attention)
    states = torch.zeros(2, HEADS, SIZE)
    with pytest.raises(ValueError, match="output_scale"):
        engine.layer.forward(None, states, states, states, engine.cache, None, states, torch.ones(1))
    with pytest.raises(ValueError, match="in part"):
        engine._metadata([1, 1, 1], torch.zeros(3).long(), torch.tensor([True, False, True]))


def test_a_block_behind_the_cache_names_the_argument(attention: ModuleType) -> None:
    engine = Engine(attention)
    engine.step([5, 5, 5])
    engine.table[1, 0] = BLOCKS
    with pytest.raises(ValueError, match="block_table"):
        engine.step([1, 1, 1])
