"""Weights in 8 and 4 bits beside transformers with rounded weights, and models on the device beside the CPU."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from torch import nn
from transformers_models import SUPPORTED, counted_runs, generated, padded, same, small

from dlinfer.framework.transformers_ext import optimise, restore
from dlinfer.framework.transformers_ext.kernels import kernels
from dlinfer.framework.transformers_ext.projections import quantised

pytestmark = pytest.mark.unit


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return counted_runs(monkeypatch)


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("name", SUPPORTED)
def test_few_bits_are_the_rounded_weights(name: str, weights: Any, runs: list[int]) -> None:
    """Beside transformers with each weight rounded by another account of the same rule."""
    model, other = small(name), small(name)
    for module in other.modules():
        if isinstance(module, nn.Linear):
            bits = 8 if weights == "int8" or module is other.lm_head else 4
            module.weight = nn.Parameter(_rounded(module.weight.detach(), bits), requires_grad=False)
    expected = generated(other, padded())
    optimise(model, weights)
    same(generated(model, padded()), expected)
    assert len(runs) == len(expected.scores)
    # Transformers' own layers, which run for other caches, have the same rounded weights.
    same(
        generated(model, padded(), use_cache=True, cache_implementation="static", disable_compile=True),
        expected,
    )
    restore(model)
    assert not any("forward" in vars(module) for module in model.modules())


def _rounded(weight: torch.Tensor, bits: int) -> torch.Tensor:
    rows = weight.double()
    if bits == 8:
        step = rows.abs().amax(1, keepdim=True) / 127
        return ((rows / step).round() * step).float()
    groups = rows.reshape(rows.shape[0], -1, 32)
    low = groups.amin(-1, keepdim=True)
    step = (groups.amax(-1, keepdim=True) - low) / 15
    return (((groups - low) / step).round() * step + low).reshape(rows.shape).float()


def test_what_fits_no_groups_gets_eight_bits() -> None:
    assert quantised([torch.randn(16, 64)], None, "int4").weight.dtype == torch.int32
    assert quantised([torch.randn(16, 48)], None, "int4").weight.dtype == torch.int8
    assert quantised([torch.randn(12, 64)], None, "int4").weight.dtype == torch.int8


def test_rows_of_zeros_stay_zeros() -> None:
    for weights in ("int8", "int4"):
        assert quantised([torch.zeros(8, 32)], None, weights)(torch.ones(1, 32), kernels("cpu")).eq(0).all()


def test_few_bits_have_no_gradients() -> None:
    model = optimise(small("llama"), "int8")
    with pytest.raises(RuntimeError, match=r"no gradients: call the model under torch\.no_grad\(\)"):
        model(padded()["input_ids"])


def test_a_model_made_in_inference_mode(runs: list[int]) -> None:
    """torch does not count how often such weights are written."""
    with torch.inference_mode():
        model = optimise(small("llama"), "int8")
        answer = generated(model, padded())
    beside = generated(optimise(small("llama"), "int8"), padded())
    assert runs and torch.equal(answer.sequences, beside.sequences)
    restore(model)


@pytest.mark.device
@pytest.mark.parametrize("weights", [None, "int8"])
def test_on_the_device_as_on_the_cpu(weights: Any, runs: list[int]) -> None:
    pytest.importorskip("torch_dipu")
    expected = generated(optimise(small("qwen2"), weights), padded(), 6)
    model = optimise(small("qwen2").to("dipu"), weights)
    found = generated(model, {name: value.to("dipu") for name, value in padded().items()}, 6)
    assert found.sequences.device.type == "dipu"
    same(found, expected)
    assert len(runs) == 12
