"""The paged layer beside transformers' own layer: any series of calls gives the same keys, values and lengths."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache, StaticCache
from transformers.cache_utils import DynamicLayer
from transformers_models import small

from dlinfer.framework.transformers_ext.cache import BLOCK, PagedLayer, adopt

pytestmark = pytest.mark.unit
HEADS, SIZE = 2, 4
ACTIONS = st.one_of(
    st.tuples(st.just("update"), st.integers(1, 2 * BLOCK)),
    st.tuples(st.just("crop"), st.integers(-5, 0)),
    st.tuples(st.just("repeat"), st.integers(1, 2)),
    st.tuples(st.just("select"), st.lists(st.integers(0, 7), min_size=1, max_size=3)),
    st.tuples(st.just("reset"), st.none()),
)


def _act(layer: Any, action: str, argument: Any, states: Any) -> Any:
    batch = layer.keys.shape[0] if layer.is_initialized and layer.get_seq_length() else 2
    if action == "update":
        key, value = states(batch, argument)
        return layer.update(key, value)
    if action == "crop":
        layer.crop(max(argument, -layer.get_seq_length() + 1) if layer.get_seq_length() else 0)
    elif action == "repeat":
        layer.batch_repeat_interleave(argument)
    elif action == "select":
        layer.reorder_cache(torch.tensor([index % batch for index in argument]))
    else:
        layer.reset()
        if type(layer) is DynamicLayer and layer.get_seq_length():
            # Older versions of transformers write zeros, and go on behind them.
            layer.__init__()
    return None


@given(st.lists(ACTIONS, max_size=6))
@settings(max_examples=40, deadline=None)
def test_it_does_what_transformers_layer_does(actions: list[tuple[str, Any]]) -> None:
    ours, theirs = PagedLayer(), DynamicLayer()
    for step, (action, argument) in enumerate(actions):

        def states(batch: int, new: int, step: int = step) -> torch.Tensor:
            generator = torch.Generator().manual_seed(step)
            return torch.randn(2, batch, HEADS, new, SIZE, generator=generator).unbind()

        found, expected = (_act(layer, action, argument, states) for layer in (ours, theirs))
        assert ours.get_seq_length() == theirs.get_seq_length()
        # transformers 4 asks with positions.
        asked = 3 if hasattr(theirs, "get_max_length") else torch.arange(3)
        assert ours.get_mask_sizes(asked) == theirs.get_mask_sizes(asked)
        if expected is not None:
            assert torch.equal(found[0], expected[0])
            assert torch.equal(found[1], expected[1])


def test_hidden_tokens_are_not_stored_but_counted() -> None:
    layer = PagedLayer()
    kept = torch.tensor([[False, True, True], [True, True, True]])
    layer.reserve(2, 3, torch.empty(0), HEADS, SIZE)
    assert layer.keys is not None
    layer.keys[0, :2] = torch.tensor([1.0, 2.0]).view(2, 1, 1)
    layer.keys[1, :3] = torch.tensor([3.0, 4.0, 5.0]).view(3, 1, 1)
    layer.advance(3, kept)
    assert layer.lengths() == [2, 3]
    key, _ = layer.update(torch.full((2, HEADS, 1, SIZE), 9.0), torch.zeros(2, HEADS, 1, SIZE))
    assert key[0, 0, 1:, 0].tolist() == [1, 2, 9]
    assert key[1, 0, :, 0].tolist() == [3, 4, 5, 9]
    assert layer.keys[0, :3, 0, 0].tolist() == [1, 2, 9]
    layer.crop(-1)
    layer.reorder_cache(torch.tensor([1, 1, 0]))
    assert layer.get_seq_length() == 3
    assert layer.lengths() == [3, 3, 2]


def test_pages_are_views() -> None:
    layer = PagedLayer()
    layer.reserve(2, 3 * BLOCK, torch.empty(0), HEADS, SIZE)
    assert layer.pages is not None
    pages, _ = layer.pages
    pages[layer.capacity // BLOCK + 1, 5] = 7.0
    assert layer.keys is not None
    assert layer.keys[1, BLOCK + 5].eq(7).all()
    before = pages.clone()
    layer.reserve(2, layer.capacity + 1, torch.empty(0), HEADS, SIZE)
    grown, _ = layer.pages
    assert grown.shape[0] > before.shape[0]
    assert layer.keys[1, BLOCK + 5].eq(7).all()
    assert layer.keys.sum() == before.sum()


def test_only_an_empty_dynamic_cache_is_adopted() -> None:
    config = small("llama").config
    cache = DynamicCache(config=config)
    assert adopt(cache, 3)
    assert [type(layer) for layer in cache.layers] == [PagedLayer] * 3
    assert adopt(cache, 3)
    assert not adopt(cache, 4)
    used = DynamicCache(config=config)
    used.update(torch.zeros(1, HEADS, 1, SIZE), torch.zeros(1, HEADS, 1, SIZE), 0)
    assert not adopt(used, 3)
    assert not adopt(StaticCache(config, max_cache_len=8), 3)


def test_crop_takes_what_is_to_be_forgotten() -> None:
    """Positive numbers mean what they mean to transformers: nothing any more, in older versions the length to be left."""
    layer, theirs = PagedLayer(), DynamicLayer()
    for each in (layer, theirs):
        each.update(torch.zeros(1, HEADS, 5, SIZE), torch.zeros(1, HEADS, 5, SIZE))
    try:
        theirs.crop(3)
    except ValueError:
        with pytest.raises(ValueError, match="as -n"):
            layer.crop(3)
    else:
        layer.crop(3)
        assert layer.get_seq_length() == theirs.get_seq_length() == 3
    layer.crop(-layer.get_seq_length())
    assert layer.keys is None, "what comes next may have another number of sequences"
