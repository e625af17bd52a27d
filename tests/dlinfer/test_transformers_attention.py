"""`attn_implementation="dlinfer"` beside transformers' own attention: masks, windows, soft caps, caches, gradients."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from torch import nn
from transformers import StaticCache
from transformers_models import generated, padded, same, small

from dlinfer.framework.transformers_ext import NAME, dlinfer_attention
from dlinfer.vendors import Vendor
from dlinfer.vendors.dispatch import using
from dlinfer.vendors.ref import VENDOR as REFERENCE

pytestmark = pytest.mark.unit
MODELS = ("llama", "mistral", "qwen2", "gemma2")


def counting(calls: dict[str, int]) -> Vendor:
    """The reference, counting who is called."""

    def counted(name: str, kernel: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] = calls.get(name, 0) + 1
            return kernel(*args, **kwargs)

        return call

    kernels = {name: counted(name, kernel) for name, kernel in REFERENCE.kernels.items()}
    return Vendor(name="counting", version="1", kernels=kernels)


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static", "disable_compile": True}])
@pytest.mark.parametrize("name", MODELS)
def test_generates_what_transformers_does(name: str, options: dict[str, Any]) -> None:
    model = small(name)
    model.set_attn_implementation("eager")
    expected = generated(model, padded(), **options)
    model.set_attn_implementation(NAME)
    calls: dict[str, int] = {}
    with using(counting(calls)):
        same(generated(model, padded(), **options), expected)
    # Three layers in every step, and nothing but attention.
    assert sum(calls.values()) == 3 * len(expected.scores)
    assert set(calls) <= {"paged_prefill_attention", "paged_decode_attention"}


def test_decode_without_padding_needs_no_mask() -> None:
    model = small("llama")
    inputs = {key: value[1:2] for key, value in padded().items()}
    expected = generated(model, inputs)
    model.set_attn_implementation(NAME)
    calls: dict[str, int] = {}
    with using(counting(calls)):
        same(generated(model, inputs), expected)
    assert calls == {"paged_prefill_attention": 3, "paged_decode_attention": 3 * (len(expected.scores) - 1)}


@pytest.mark.parametrize("name", MODELS)
def test_prompts_in_chunks(name: str) -> None:
    model = small(name)
    ids = padded()["input_ids"][1:2]
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = model(ids).logits
        model.set_attn_implementation(NAME)
        torch.testing.assert_close(model(ids).logits, expected, atol=5e-5, rtol=5e-5)
        first = model(ids[:, :4])
        rest = model(ids[:, 4:], past_key_values=first.past_key_values)
        torch.testing.assert_close(rest.logits, expected[:, 4:], atol=5e-5, rtol=5e-5)


def test_a_static_cache_longer_than_the_prompt() -> None:
    model = small("llama")
    ids = padded()["input_ids"][1:2]
    with torch.no_grad():
        expected = model(ids).logits
        model.set_attn_implementation(NAME)
        found = model(ids, past_key_values=StaticCache(model.config, max_cache_len=40)).logits
    torch.testing.assert_close(found, expected, atol=5e-5, rtol=5e-5)


def test_gradients_are_those_of_sdpa() -> None:
    model = small("llama")
    inputs = padded()
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    expected = gradients()
    model.set_attn_implementation(NAME)
    found = gradients()
    assert len(found) == len(expected) > 20
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_training_with_a_soft_cap_is_refused() -> None:
    model = small("gemma2").train()
    model.set_attn_implementation(NAME)
    with pytest.raises(ValueError, match=r"has no gradients.*attn_implementation='eager'"):
        model(padded()["input_ids"])


@pytest.mark.parametrize("name", ["s_aux", "position_bias"])
def test_what_no_operator_has_is_refused(name: str) -> None:
    states = torch.zeros(1, 2, 3, 8)
    with pytest.raises(ValueError, match=f"no operator for {name}"):
        dlinfer_attention(nn.Module(), states, states, states, None, **{name: torch.zeros(2)})


def test_masks_for_each_head_are_refused() -> None:
    states = torch.zeros(1, 2, 3, 8)
    with pytest.raises(ValueError, match="one mask for all heads"):
        dlinfer_attention(nn.Module(), states, states, states, torch.zeros(1, 2, 3, 3))


def test_an_encoder_sees_everything() -> None:
    query, key, value = torch.randn(3, 2, 4, 5, 8).unbind()
    expected = nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
    found, _ = dlinfer_attention(nn.Module(), query, key, value, None, is_causal=False)
    torch.testing.assert_close(found, expected)


def test_numbers_in_a_mask_are_added() -> None:
    query, key, value = torch.randn(3, 2, 4, 5, 8).unbind()
    mask = torch.randn(2, 1, 5, 5)
    expected = nn.functional.scaled_dot_product_attention(query, key, value, mask).transpose(1, 2)
    found, _ = dlinfer_attention(nn.Module(), query, key, value, mask)
    torch.testing.assert_close(found, expected)
