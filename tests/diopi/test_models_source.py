"""Cases captured from models."""

import json
import random
from pathlib import Path

import pytest
import torch

from diopi.conformance import capture, models
from diopi.conformance.capture import Capture
from diopi.conformance.model_source import ModelSource, model_names
from diopi.conformance.recorded_calls import decoded, decoded_result, encoded, encoded_result
from diopi.conformance.references import evaluate
from diopi.table import load

NEEDED = [
    "llama",
    "qwen2",
    "qwen3_moe",
    "internlm2",
    "deepseek_v3",
    "resnet50",
    "mobilenet_v2",
    "vit",
    "bert",
    "stable_diffusion_unet",
]


def _again(tensor, seed=0):
    text = json.loads(json.dumps(encoded(tensor)))
    return decoded(text, torch.Generator().manual_seed(seed))


def test_there_are_forty_models_with_the_names_users_know():
    names = model_names()
    assert len(names) == 40 and set(NEEDED) <= set(names)
    assert set(models.load()) == set(names)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(40, 50) * 3,
        torch.randn(5, 6).t(),
        torch.rand(30, 30) + 2,
        torch.ones(1, 4).expand(3, 4),
        torch.randn(4, 3).bfloat16(),
        torch.empty(0, 3),
    ],
)
def test_a_tensor_is_made_anew_with_its_layout_and_kind_of_values(tensor):
    made = _again(tensor)
    assert (made.shape, made.stride(), made.dtype) == (tensor.shape, tensor.stride(), tensor.dtype)
    assert torch.equal(made, _again(tensor))
    if tensor.numel() > 100:
        assert abs(made.std() / tensor.std() - 1) < 0.3
        assert (made.min() >= 0) == (tensor.min() >= 0)


def test_indices_masks_and_constants_keep_their_meaning():
    indices = torch.tensor([[3, 0], [7, 7]])
    assert _again(indices).tolist() == indices.tolist()
    assert _again(indices.t()).tolist() == indices.t().tolist()
    assert _again(torch.arange(5).expand(2, 5)).tolist() == [[0, 1, 2, 3, 4]] * 2
    large = _again(torch.randint(2, 9, (100,)))
    assert large.min() >= 2 and large.max() <= 8 and large.unique().numel() > 3
    mask = torch.arange(200) % 7 == 0
    assert _again(mask).sum() == mask.sum()
    low = torch.full((5, 5), -torch.inf).triu(1)
    assert set(_again(low).unique().tolist()) == {-torch.inf, 0.0}
    assert _again(torch.full((3,), 2.5)).tolist() == [2.5] * 3


def test_results_keep_shape_strides_and_absence():
    result = (torch.empty(2, 3).t(), None, [torch.empty(4, dtype=torch.int64)])
    first, absent, (last,) = decoded_result(json.loads(json.dumps(encoded_result(result))))
    assert first.stride() == (1, 3) and absent is None
    assert last.shape == (4,) and last.dtype == torch.int64
    with pytest.raises(TypeError, match="Generator"):
        encoded(torch.Generator())


def test_cases_of_a_model_can_be_computed():
    cases = list(ModelSource(["vgg16"]).cases("vgg16"))
    counts = {}
    for case in cases:
        counts[case.function] = counts.get(case.function, 0) + 1
        values = evaluate(load().entries[case.function], case.arguments)
        assert all(not isinstance(v, torch.Tensor) or v.numel() for v in values)
    assert counts["diopiConvolution2d"] >= 9 and counts["diopiConvolution2dBackward"] >= 9
    assert {"diopiMaxPool2dWithIndices", "diopiNLLLossV2"} <= set(counts)


def test_a_call_of_several_models_is_one_case_unless_models_are_named():
    alone = [case.id for case in ModelSource(["mask_rcnn"]).cases("mask_rcnn")]
    shared = [case.id for case in ModelSource().cases("mask_rcnn")]
    assert set(shared) < set(alone) and len(shared) < len(alone) / 3
    assert len(ModelSource().groups(None)) == 40
    assert ModelSource().groups(frozenset(["diopiConvolution2d"])).count("bert") == 0
    with pytest.raises(ValueError, match="resnet50"):
        ModelSource(["resnet_50"])


def test_a_capture_notes_distinct_calls_once(monkeypatch):
    def build():
        layer = torch.nn.Linear(3, 3)
        given = torch.randn(2, 3)
        return models.Step(layer, lambda: layer(layer(given)).sum())

    monkeypatch.setattr(models, "load", lambda: {"one": build, "two": build})
    made = Capture()
    made.run("one")
    count = len(made.calls)
    made.run("two")
    assert made.models["one"] == made.models["two"] and len(made.calls) == count
    names = [call[0] for call in made.calls]
    assert names.count("addmm") == 1 and "mm" in names and "linalg_vector_norm" in names


def test_the_committed_data_is_small_and_the_command_knows_its_parts(capsys):
    total = sum(file.stat().st_size for file in Path(capture.DATA).iterdir())
    assert 10_000 < total < 1_000_000
    assert capture.main(["nonsense"]) == 2
    assert "opinfo or models" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="no such model: nonsense"):
        capture.main(["models", "nonsense"])


def test_models_of_the_project_train_without_other_libraries():
    torch.manual_seed(0)
    random.seed(0)
    step = models.load()["internlm2"]()
    before = step.loss()
    before.backward()
    with torch.no_grad():
        for parameter in step.module.parameters():
            parameter.sub_(0.05 * parameter.grad)
    assert step.loss() < before
