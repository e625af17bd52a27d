"""A watched training is the same training, bit for bit: weights, optimizer state, losses and random states."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from pathlib import Path

import pytest
import torch
from small_trainings import DEVICE, TRAININGS, Outcome

import op_tools

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import noninterference
import small_models

pytestmark = pytest.mark.device
STEPS = 20


@functools.cache
def bare(name: str, autocast: bool) -> Outcome:
    return TRAININGS[name].run(STEPS, autocast)


def tools() -> dict[str, type]:
    return {
        "capture": op_tools.OpCapture,
        "autocompare": op_tools.OpAutoCompare,
        "time": op_tools.OpTimeMeasure,
        "observe": op_tools.OpObserve,
        "overflow": op_tools.OpOverflowCheck,
    }


@pytest.fixture(autouse=True)
def results_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("OP_TOOLS_RESULTS", str(tmp_path))
    monkeypatch.setenv("OP_CAPTURE_MAX_CALLS_PER_SIGNATURE", "20")


def rows_written(folder) -> int:
    return sum(1 for path in folder.rglob("*.csv") for _ in path.open()) if folder.exists() else 0


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16_autocast"])
@pytest.mark.parametrize("model", TRAININGS)
@pytest.mark.parametrize("tool", tools())
def test_a_watched_training_is_bit_identical(tool, model, autocast, tmp_path, capfd):
    expected = bare(model, autocast)
    watching = tools()[tool]()
    with watching:
        watched = TRAININGS[model].run(STEPS, autocast)
    assert watched.differences(expected) == []
    out = capfd.readouterr()
    assert "could not handle" not in out.err
    if tool == "overflow":
        assert watching.checked > STEPS * 20
    else:
        assert rows_written(tmp_path) > STEPS  # it did watch
    if tool == "autocompare" and DEVICE == "dipu":
        assert watching.counts.get("fail", 0) == 0, out.out[-2000:]
        assert sum(watching.counts.values()) > STEPS * 20


@pytest.mark.parametrize("model", TRAININGS)
def test_all_watching_tools_together_are_bit_identical(model, capfd):
    expected = bare(model, False)
    with contextlib.ExitStack() as stack:
        for tool in tools().values():
            stack.enter_context(tool())
        watched = TRAININGS[model].run(STEPS, False)
    assert watched.differences(expected) == []
    assert "could not handle" not in capfd.readouterr().err


@pytest.mark.skipif(DEVICE != "dipu", reason="made for dipu")
@pytest.mark.parametrize("model", ["double_backward", "hooks", "graph", "checkpoint_not_reentrant", "lbfgs"])
def test_unusual_trainings_are_bit_identical_and_nothing_is_accused(model):
    """All trainings with all tools, also on two ranks: `benchmarks/noninterference.py`."""
    tools = ["autocompare", "layers", "together"]
    found = noninterference.compare(model, "float32", tools, torch.device(DEVICE, 0))
    assert [(o.tool, o.differing, o.accused, o.trouble) for o in found] == [
        (tool, [], 0, "") for tool in tools
    ]


def test_a_bit_of_difference_is_seen():
    one = {"weight": torch.tensor([0.0, 1.0]), "state": torch.tensor([1, 2])}
    assert small_models.differing(one, {name: value.clone() for name, value in one.items()}) == []
    assert small_models.differing(one, {**one, "weight": torch.tensor([-0.0, 1.0])}) == ["weight"]
    assert small_models.differing(one, {"weight": one["weight"]}) == ["only in one run: state"]


computes_as_the_cpu = pytest.mark.skipif(
    DEVICE != "dipu", reason=f"{DEVICE} does not compute as the CPU does, bit for bit"
)


@computes_as_the_cpu
@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "bf16_autocast"])
@pytest.mark.parametrize("model", TRAININGS)
def test_falling_back_with_everything_is_the_same_training(model, autocast):
    """The device computes as the CPU does in plain mode, so falling back must not change a bit either."""
    expected = bare(model, autocast)
    with op_tools.OpFallback() as fallback:
        fallen = TRAININGS[model].run(STEPS, autocast)
    assert sum(fallback.ran.values()) > STEPS * 20
    assert fallen.differences(expected) == []


@pytest.mark.parametrize("model", TRAININGS)
def test_identity_dtype_cast_is_bit_identical(model):
    expected = bare(model, False)
    with op_tools.OpDtypeCast(dict="torch.float32->torch.float32"):
        cast = TRAININGS[model].run(STEPS, False)
    assert cast.differences(expected) == []


@pytest.mark.parametrize("model", ["convolutions"])
def test_a_real_dtype_cast_trains_within_rounding(model):
    """No dropout here: float64 arithmetic may differ by rounding only, in-place updates included."""
    expected = bare(model, False)
    with op_tools.OpDtypeCast(dict="torch.float32->torch.float64") as caster:
        cast = TRAININGS[model].run(STEPS, False)
    assert sum(caster.count.values()) > STEPS * 20
    for name, weight in expected.weights.items():
        torch.testing.assert_close(cast.weights[name], weight, rtol=2e-3, atol=2e-4)
    assert cast.losses[-1] == pytest.approx(expected.losses[-1], rel=1e-3)
    assert not torch.equal(cast.weights["head.weight"], expected.weights["head.weight"])  # it did cast


def test_environment_is_left_alone():
    before = dict(os.environ)
    with op_tools.OpObserve():
        torch.ones(2, device=DEVICE) + 1
    assert dict(os.environ) == before
