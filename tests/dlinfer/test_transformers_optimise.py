"""`optimise` beside plain transformers: the same tokens and scores in every way of generating, and clear words elsewhere."""

from __future__ import annotations

import copy
import importlib
import sys
import warnings
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers")

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM
from transformers_models import SUPPORTED, counted_runs, generated, padded, same, small

from dlinfer.framework import transformers_ext
from dlinfer.framework.transformers_ext import describe, optimise, restore
from dlinfer.framework.transformers_ext.linears import StandIn

pytestmark = pytest.mark.unit
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "beams": {"num_beams": 3},
    "several": {"do_sample": True, "num_return_sequences": 2},
    "chunks": {"prefill_chunk_size": 4},
    "without a cache": {"use_cache": False},
}
CLOSE = {"atol": 5e-5, "rtol": 5e-5}


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    return counted_runs(monkeypatch)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SUPPORTED)
def test_generates_what_transformers_does(name: str, way: str, runs: list[int]) -> None:
    model = small(name)
    expected = generated(model, padded(), **WAYS[way])
    same(generated(optimise(model), padded(), **WAYS[way]), expected)
    if way == "chunks":
        # How the last tokens are divided is another thing in other versions.
        assert runs[:2] == [4, 4] and sum(runs) == 11 + len(expected.scores) - 1
    else:
        assert len(runs) == len(expected.scores)


@pytest.mark.parametrize("name", SUPPORTED)
def test_restored_models_are_transformers_own(name: str, runs: list[int]) -> None:
    model = small(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    expected = generated(model, padded())
    restore(optimise(model))
    assert torch.equal(generated(model, padded()).sequences, expected.sequences)
    assert runs == []
    assert not any("forward" in vars(module) for module in model.modules())
    after = model.state_dict()
    assert before.keys() == after.keys()
    for key, value in after.items():
        assert torch.equal(value, before[key])
        if "proj" in key:
            assert value.untyped_storage().nbytes() == value.nbytes


def test_a_conversation_continues_on_its_cache(runs: list[int]) -> None:
    model = small("qwen2")
    ids = padded()["input_ids"]
    with torch.no_grad():
        expected = model(ids).logits
        optimise(model)
        first = model(ids[:, :5])
        second = model(ids[:, 5:6], past_key_values=first.past_key_values)
        third = model(ids[:, 6:], past_key_values=second.past_key_values)
    torch.testing.assert_close(torch.cat((first.logits, second.logits, third.logits), 1), expected, **CLOSE)
    assert runs == [5, 1, 5]


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_masks_with_holes(name: str, runs: list[int]) -> None:
    """Pages leave hidden tokens out, which a window would count: then transformers' own layers must run."""
    model = small(name)
    ids = padded()["input_ids"]
    mask = torch.ones_like(ids)
    mask[0, 3:6] = 0
    mask[2, 8:] = 0
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).logits[mask == 1]
        found = optimise(model)(ids, attention_mask=mask).logits[mask == 1]
    torch.testing.assert_close(found, expected, **CLOSE)
    assert runs == ([11] if name == "llama" else [])


def test_sequences_of_which_nothing_is_seen() -> None:
    model = optimise(small("llama"))
    inputs = padded()
    with torch.no_grad():
        expected = model(**inputs).logits[1]
        inputs["attention_mask"][0] = 0
        torch.testing.assert_close(model(**inputs).logits[1], expected, **CLOSE)
        inputs["attention_mask"][:] = 0
        assert model(**inputs).logits.isfinite().all()


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_mask_that_changes_its_mind(name: str, runs: list[int]) -> None:
    """Tokens that were stored are hidden later: both paths on one cache."""
    model = small(name)
    ids = padded()["input_ids"]
    mask = torch.ones_like(ids)
    later = torch.cat((mask, torch.ones(3, 1, dtype=mask.dtype)), 1)
    later[1, 2:5] = 0

    def logits() -> torch.Tensor:
        with torch.no_grad():
            first = model(ids, attention_mask=mask)
            return model(ids[:, :1], attention_mask=later, past_key_values=first.past_key_values).logits

    expected = logits()
    optimise(model)
    torch.testing.assert_close(logits(), expected, **CLOSE)
    assert runs == [11]


def test_torch_compile_takes_transformers_own_layers(runs: list[int]) -> None:
    model = small("llama")
    ids = padded()["input_ids"]
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        compiled = torch.compile(optimise(model), backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(ids, use_cache=False).logits, expected, **CLOSE)
    assert runs == []


def test_what_the_operators_cannot_give_comes_from_transformers(runs: list[int]) -> None:
    model = small("llama")
    inputs = padded()
    with torch.no_grad():
        expected = model(**inputs, output_hidden_states=True).hidden_states
        found = optimise(model)(**inputs, output_hidden_states=True).hidden_states
    seen = inputs["attention_mask"] == 1
    assert len(found) == len(expected) == 4
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one[seen], other[seen], **CLOSE)
    assert runs == []
    assert isinstance(model.model(inputs["input_ids"][:, :1], return_dict=False), tuple)


def test_autocast_is_transformers_own(runs: list[int]) -> None:
    model = small("llama")
    ids = padded()["input_ids"]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = model(ids).logits
        found = optimise(model)(ids).logits
    assert found.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, atol=0.2, rtol=0.05)
    assert runs == []


def test_gradients_are_transformers_own() -> None:
    model = small("llama")
    ids = padded()["input_ids"]

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        model(ids, labels=ids).loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    expected = gradients()
    optimise(model)
    found = gradients()
    assert len(found) == len(expected) > 20
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_an_optimiser_of_weights_still_reaches_the_joined_ones(runs: list[int]) -> None:
    model, other = small("llama"), small("llama")
    optimise(model)
    for changed in (model, other):
        with torch.no_grad():
            for parameter in changed.parameters():
                parameter.mul_(0.9)
    same(generated(model, padded(), 4), generated(other, padded(), 4))
    assert len(runs) == 4


def test_a_norm_that_was_replaced_is_read_again() -> None:
    model, other = optimise(small("llama")), small("llama")
    for changed in (model, other):
        changed.model.layers[1].input_layernorm.weight = nn.Parameter(torch.linspace(0.5, 1.5, 64))
    same(generated(model, padded(), 4), generated(other, padded(), 4))


def test_a_vocabulary_that_grew_is_no_hindrance() -> None:
    """transformers puts another last layer into the model."""
    model, other = optimise(small("llama")), small("llama")
    for resized in (model, other):
        torch.manual_seed(1)
        resized.resize_token_embeddings(101, mean_resizing=False)
    expected = generated(other, padded(), 4)
    same(generated(model, padded(), 4), expected)
    restore(model)
    assert not any("forward" in vars(module) for module in model.modules())
    same(generated(model, padded(), 4), expected)


def test_a_model_that_no_longer_fits_says_so() -> None:
    model = optimise(small("llama"))
    model.model.layers[1].self_attn.half()
    with (
        pytest.raises(RuntimeError, match=r"changed after optimise.*several kinds.*restore\(model\)"),
        torch.no_grad(),
    ):
        model(padded()["input_ids"])


@pytest.mark.parametrize("weights", [None, "int8"])
def test_weights_that_moved_are_read_again(weights: Any, runs: list[int]) -> None:
    model, other = optimise(small("llama"), weights), small("llama")
    state = {key: value * 1.1 for key, value in other.state_dict().items()}
    model.load_state_dict(state, assign=weights is None)
    other.load_state_dict(state)
    if weights is not None:
        optimise(other, weights)
    same(generated(model, padded(), 4), generated(other, padded(), 4))
    model.to(torch.float64)
    with torch.no_grad():
        assert model(padded()["input_ids"]).logits.dtype == torch.float64
    assert len(runs) == (5 if weights is None else 9)


def test_embeddings_with_gradients_get_them(runs: list[int]) -> None:
    """As in prompt tuning: the model is frozen, its input is not."""
    model = small("llama").requires_grad_(False)
    states = model.get_input_embeddings()(padded()["input_ids"]).requires_grad_()
    (expected,) = torch.autograd.grad(model(inputs_embeds=states).logits.sum(), states)
    optimise(model)
    (found,) = torch.autograd.grad(model(inputs_embeds=states).logits.sum(), states)
    torch.testing.assert_close(found, expected)
    assert runs == []
    model(inputs_embeds=states.detach())
    assert runs == [11]


def test_what_does_not_fit_is_refused_as_by_transformers() -> None:
    """The kernels are called unchecked: nothing that they cannot read may come so far."""
    model = optimise(small("llama"))
    ids = padded()["input_ids"]
    states = model.get_input_embeddings()(ids).detach()
    for wrong in (states.double(), states[..., :32], states[0]):
        with pytest.raises((RuntimeError, ValueError, IndexError)), torch.no_grad():
            model(inputs_embeds=wrong)
    with pytest.raises(RuntimeError), torch.no_grad():
        model(ids, position_ids=torch.arange(5)[None])
    with torch.no_grad():
        cache = model(ids).past_key_values
        with pytest.raises(ValueError, match=r"holds 3 sequences.*the input is 1"):
            model(ids[:1], past_key_values=cache)
        model.double()
        with pytest.raises(ValueError, match=r"torch\.float32.*torch\.float64.*new cache"):
            model(ids, past_key_values=cache)


def test_tools_of_torch_see_the_operators() -> None:
    model = optimise(small("llama"))
    ids = padded()["input_ids"]
    with torch.no_grad(), Seen() as seen:
        cache = model(ids).past_key_values
        seen.names.clear()
        model(ids[:, :1], past_key_values=cache)
    layer = {
        "add_rms_norm": 2, "linear": 4, "apply_rotary_pos_emb": 1, "fill_kv_cache": 1, "paged_decode_attention": 1,
        "silu_and_mul": 1,
    }  # fmt: skip
    expected = Counter({name: 3 * count for name, count in layer.items()})
    # The first norm has nothing to add, the last is behind the layers; the head is one more linear layer.
    expected.update({"rms_norm": 1, "linear": 1})
    assert seen.names == expected


class Seen(TorchDispatchMode):
    """Counts dlinfer's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace == "dlinfer":
            self.names[function._opname] += 1
        return function(*args, **(kwargs or {}))


def test_a_copy_is_a_model_of_its_own(runs: list[int]) -> None:
    model = optimise(small("llama"))
    expected = generated(model, padded(), 4)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    same(generated(other, padded(), 4), expected)
    assert len(runs) == 8


def test_a_saved_model_is_the_model(tmp_path: Path) -> None:
    model = optimise(small("qwen2"))
    expected = generated(model, padded())
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="dlinfer")
    same(generated(loaded, padded()), expected)


def test_an_unknown_model_gets_attention_and_is_told() -> None:
    model = small("gemma2")
    model.set_attn_implementation("eager")
    expected = generated(model, padded())
    with pytest.warns(UserWarning, match=r"Gemma2ForCausalLM gets dlinfer's attention only.*Llama, Mistral"):
        optimise(model)
    assert describe(model) == "attention on dlinfer"
    same(generated(model, padded()), expected)
    restore(model)
    assert model.config._attn_implementation == "eager"


class Adapted(nn.Linear):
    """Stands for a layer of a library of adapters."""


def _adapt(model: Any) -> None:
    model.model.layers[1].mlp.up_proj = Adapted(64, 96)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_adapt, r"layers\.1\.mlp\.up_proj is a .*Adapted"),
        (lambda m: m.model.layers[0].register_forward_hook(lambda *_: None), r"layers\.0 has hooks"),
        (
            lambda m: setattr(m.model, "forward", partial(m.model.forward)),
            "model: it has a forward of its own",
        ),
        (lambda m: m.model.layers[2].half(), "weights are of several kinds"),
        (lambda m: setattr(m.config, "hidden_act", "gelu"), "activation is 'gelu'"),
    ],
)
def test_a_known_model_that_was_changed_is_left_alone(change: Any, said: str) -> None:
    model = small("llama")
    change(model)
    with pytest.warns(UserWarning, match=said):
        optimise(model)
    assert not isinstance(vars(model.model).get("forward"), StandIn)
    assert "as in transformers" in describe(model)


def test_hidden_states_asked_for_before_leave_no_hooks_that_matter() -> None:
    model = small("llama")
    with torch.no_grad():
        model(padded()["input_ids"], output_hidden_states=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimise(model)
    assert describe(model).splitlines() == [
        "attention on dlinfer",
        "model: 3 layers on dlinfer, weights as they were",
        "lm_head: on dlinfer, weights as they were",
    ]


def test_a_version_that_cannot_work_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # transformers may have put another module in its place since it was imported here.
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.51.3")
    with pytest.raises(ImportError, match=r"needs transformers 4\.57 or newer, found 4\.51\.3: pip install"):
        importlib.reload(transformers_ext)


def test_wrong_use_is_named() -> None:
    model = small("llama")
    with pytest.raises(ValueError, match="weights is 'int7', expected None, 'int8' or 'int4'"):
        optimise(model, "int7")
    with pytest.raises(TypeError, match="not a Linear"):
        optimise(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match="not optimised"):
        restore(model)
    with pytest.raises(RuntimeError, match="optimised already"):
        optimise(optimise(model))
    with pytest.raises(ValueError, match="either input_ids or inputs_embeds"), torch.no_grad():
        model.model()
