"""`optimise(model, weights, keep_originals=False)`: memory falls, tokens are those of the kept form, and nothing else lies."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers_models import SHAPE, counted_runs, draw_weights, generated, padded, same, small

from dlinfer.framework.transformers_ext import decoder, describe, optimise, restore
from dlinfer.framework.transformers_ext.linears import PackedLinear

pytestmark = pytest.mark.unit


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return counted_runs(monkeypatch)


def tied() -> Any:
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True))
    draw_weights(model, seed=2)
    return model.eval()


def _bytes(model: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def _needed(model: nn.Module, weights: str, head: Any) -> int:
    """Bytes of what stays and of what is rounded, from the shapes of a plain model."""
    total = _bytes(model)
    for module in model.modules():
        if isinstance(module, nn.Linear) and module is not head:
            outputs, inputs = module.weight.shape
            bits = 8 if weights == "int8" or module is model.get_output_embeddings() else 4
            scales = outputs if bits == 8 else 2 * outputs * (inputs // 32)
            total += inputs * outputs * bits // 8 + 4 * scales - module.weight.nbytes
    return total


@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "tied"])
def test_memory_falls_and_tokens_stay(name: str, weights: Any, runs: list[int]) -> None:
    make: Callable[[], Any] = tied if name == "tied" else lambda: small(name)
    model = make()
    expected = generated(optimise(make(), weights), padded())
    needed = _needed(model, weights, model.lm_head if name == "tied" else None)
    originals = [
        weakref.ref(module.weight)
        for module in model.modules()
        if isinstance(module, nn.Linear) and not (name == "tied" and module is model.lm_head)
    ]
    before = _bytes(model)
    optimise(model, weights, keep_originals=False)
    assert _bytes(model) == needed < before / 2
    assert len(originals) >= 21 and all(weight() is None for weight in originals)
    found = generated(model, padded())
    assert torch.equal(found.sequences, expected.sequences)
    assert all(torch.equal(one, other) for one, other in zip(found.scores, expected.scores, strict=True))
    assert len(runs) == 2 * len(expected.scores)
    # Transformers' own layers, which run for other caches, go through the packed ones.
    same(generated(model, padded(), cache_implementation="static", disable_compile=True), expected)
    assert f"weights in {weights}" in describe(model) and "kept" not in describe(model)


def test_a_layer_goes_before_the_next_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small("llama")
    originals = [
        weakref.ref(module.weight) for module in model.model.modules() if isinstance(module, nn.Linear)
    ]
    alive = []
    layer_of = decoder.layer_of

    def counted(*args: Any) -> Any:
        alive.append(sum(weight() is not None for weight in originals))
        return layer_of(*args)

    monkeypatch.setattr(decoder, "layer_of", counted)
    optimise(model, "int8", keep_originals=False)
    assert alive == [21, 14, 7]


def test_the_file_of_a_checkpoint_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers maps it: parameters that stay, an embedding, would keep all of it in memory."""
    small("llama").save_pretrained(tmp_path)
    maps = Path("/proc/self/maps")
    kept = optimise(AutoModelForCausalLM.from_pretrained(tmp_path).eval(), "int8")
    if str(tmp_path) not in maps.read_text():
        pytest.skip("these versions of transformers and safetensors do not map files")
    del kept
    gc.collect()
    model = optimise(AutoModelForCausalLM.from_pretrained(tmp_path).eval(), "int8", keep_originals=False)
    assert str(tmp_path) not in maps.read_text()

    def refresh(self: Any) -> None:
        raise AssertionError("parameters that were moved must not be taken for changed ones")

    monkeypatch.setattr(decoder.DecoderForward, "refresh", refresh)
    generated(model, padded(), 2)


def test_what_cannot_be_any_more_is_refused(tmp_path: Path) -> None:
    model = optimise(small("llama"), "int8", keep_originals=False)
    with pytest.raises(RuntimeError, match=r"let go by optimise.*keep_originals=False.*load the model again"):
        restore(model)
    with pytest.raises(RuntimeError, match="optimised already: load it again"):
        optimise(model, "int4")
    for saved in (model, model.model):
        with pytest.raises(RuntimeError, match=r"save the model before optimise, or use torch\.save"):
            saved.save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(
        RuntimeError, match=r"no gradients: call the model under torch\.no_grad\(\), or load it"
    ):
        model(padded()["input_ids"])
    with pytest.raises(AttributeError, match=r"weight of this layer was let go.*must be done before"):
        model.resize_token_embeddings(101)
    with pytest.raises(RuntimeError, match="Missing key"):
        small("llama").load_state_dict(model.state_dict())
    with pytest.raises(ValueError, match="give weights='int8' or 'int4' too"):
        optimise(small("llama"), keep_originals=False)
    model.model.layers[1].mlp.up_proj = nn.Linear(64, 96)
    with pytest.raises(RuntimeError, match="beside packed ones is new"), torch.no_grad():
        model(padded()["input_ids"])


def _saved(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


def _loaded(model: Any, assign: bool = False) -> Any:
    other = optimise(tied(), "int4", keep_originals=False)
    with torch.no_grad():
        for tensor in (*other.parameters(), *other.model.layers.buffers()):
            tensor.zero_()
    other.load_state_dict(copy.deepcopy(model.state_dict()), assign=assign)
    if assign:
        other.tie_weights()
    return other


@pytest.mark.parametrize(
    "copied",
    [
        copy.deepcopy,
        lambda model: pickle.loads(pickle.dumps(model)),
        _saved,
        _loaded,
        lambda model: _loaded(model, assign=True),
        lambda model: copy.deepcopy(model).double().float(),
    ],
    ids=["deepcopy", "pickle", "torch.save", "state_dict", "assigned", "to"],
)
def test_copies_are_models_of_their_own(copied: Any, runs: list[int]) -> None:
    model = optimise(tied(), "int4", keep_originals=False)
    expected = generated(model, padded(), 4)
    other = copied(model)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    same(generated(other, padded(), 4), expected)
    assert len(runs) == 8
    assert other.lm_head.weight is other.model.embed_tokens.weight
    parts = [other.model.layers[0].self_attn.get_submodule(f"{name}_proj").packed for name in "qkv"]
    assert len({part.untyped_storage().data_ptr() for part in parts}) == 1, "joined again, stored once"


def test_a_dtype_is_for_activations() -> None:
    model = optimise(small("llama"), "int8", keep_originals=False).to(torch.bfloat16)
    packed = [module for module in model.modules() if isinstance(module, PackedLinear)]
    assert len(packed) == 22
    assert {module.scale.dtype for module in packed} == {torch.float32}
    other = optimise(small("llama").to(torch.bfloat16), "int8", keep_originals=False)
    with torch.no_grad():
        found, expected = (each(padded()["input_ids"]).logits for each in (model, other))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, atol=0.3, rtol=0.1)


def test_a_tied_embedding_is_read_again_when_it_changes() -> None:
    model, other = tied(), optimise(tied(), "int8")
    optimise(model, "int8", keep_originals=False)
    generated(model, padded(), 2)
    for changed in (model, other):
        assert changed.lm_head.weight is changed.model.embed_tokens.weight
        with torch.no_grad():
            changed.model.embed_tokens.weight.mul_(1.25)
    same(generated(model, padded(), 4), generated(other, padded(), 4))
