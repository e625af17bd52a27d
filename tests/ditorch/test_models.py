"""Thirteen models in unmodified CUDA style on the device: as on the CPU, and judged where arithmetic may differ."""

from __future__ import annotations

import argparse
import copy
import functools
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from forked_python import clean_environment, run_python
from made_once import made_once

pytestmark = pytest.mark.device

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "examples" / "models"
NOT_MODELS = {"training", "language", "all_models"}
MODELS = sorted({path.stem for path in SCRIPTS.glob("*.py")} - NOT_MODELS)
# Those judged on the chip that adds in another order; every kind of network is there.
REORDERED = ("llama3", "qwen3_moe", "resnet50", "diffusion_unet")
DRAW_NOTHING = {"vit", "resnet50", "mobilenet_v2"}
# Losses after two steps in bfloat16, which has 8 bits: the CPU rounds other operators than cuda and the device do.
BFLOAT16_BOUND = 2.0**-7

DITORCH_RUN = ["-m", "ditorch", "run"]

Results = dict[str, dict[str, Any]]


def needs_transformers() -> None:
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")


def run(*command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environment(HF_HUB_OFFLINE="1", **settings)
    done = run_python(*command, env=environment, timeout=230)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def results(folder: Path, start: list[str], *words: str, **settings: str) -> Results:
    needs_transformers()
    path = folder / "results.json"
    run(*start, str(SCRIPTS / "all_models.py"), *words, "--json", str(path), **settings)
    found: Results = json.loads(path.read_text())["models"]
    return found


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Without ditorch."""
    folder = tmp_path_factory.mktemp("cpu")
    found: Results = made_once(tmp_path_factory, "models_cpu", lambda: results(folder, [], "--cpu"))
    return found


@pytest.fixture(scope="module")
def on_dipu(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("dipu")
    found: Results = made_once(tmp_path_factory, "models_dipu", lambda: results(folder, DITORCH_RUN))
    return found


@pytest.fixture(scope="module")
def reordered(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """On a chip that is right and not equal."""
    folder = tmp_path_factory.mktemp("reordered")

    def make() -> Results:
        return results(folder, DITORCH_RUN, *REORDERED, DIPU_HOST_NUMERICS="reordered")

    found: Results = made_once(tmp_path_factory, "models_reordered", make)
    return found


def load(folder: str, name: str) -> ModuleType:
    """A script as a module, with its neighbours in reach."""
    path = ROOT / folder / f"{name}.py"
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def truth() -> ModuleType:
    needs_transformers()
    return load("benchmarks", "models_truth")


@pytest.mark.parametrize("name", MODELS)
def test_model_is_that_of_the_cpu(name: str, on_cpu: Results, on_dipu: Results) -> None:
    cpu, dipu = on_cpu[name], on_dipu[name]
    assert (cpu["device"], dipu["device"]) == ("cpu", "dipu:0")
    # Weights, their gradients and at least one moment of the optimizer, four bytes each, were on the device at once.
    assert dipu["peak_memory"] > 3 * 4 * dipu["parameters"]
    assert dipu["parameters"] == cpu["parameters"], "weights that are shared are one weight on the device too"
    assert len(dipu["losses"]) == 3 and dipu["losses"] == cpu["losses"]
    assert dipu["losses"][-1] < dipu["losses"][-2], "the last step made the loss of its batch smaller"
    assert dipu["changed"] > 0.9 * len(dipu["digests"]), "the optimizer changed the weights"
    assert dipu["digests"] == cpu["digests"], "and to the same bits"
    assert dipu["generated"] == cpu["generated"]
    assert (dipu["generated"] is None) == (name in DRAW_NOTHING)


def test_all_are_there(on_dipu: Results) -> None:
    known = load("examples/models", "all_models").MODELS
    assert sorted(known) == MODELS == sorted(on_dipu) and len(known) == 13


@pytest.mark.parametrize("name", MODELS + sorted(NOT_MODELS))
def test_scripts_know_nothing_of_ditorch(name: str) -> None:
    text = (SCRIPTS / f"{name}.py").read_text()
    assert "ditorch" not in text and "dipu" not in text


def test_one_script_with_the_import_added(tmp_path: Path, on_cpu: Results) -> None:
    needs_transformers()
    script = tmp_path / "llama3.py"
    text = (SCRIPTS / "llama3.py").read_text()
    script.write_text(text.replace("import annotations\n", "import annotations\n\nimport ditorch\n", 1))
    done = run(str(script), "--json", str(tmp_path / "found.json"), PYTHONPATH=str(SCRIPTS))
    assert "ditorch.framework: torch_dipu" in done.stdout and "llama3 on dipu:0" in done.stdout
    found = json.loads((tmp_path / "found.json").read_text())["models"]["llama3"]
    assert found["losses"] == on_cpu["llama3"]["losses"]
    assert found["digests"] == on_cpu["llama3"]["digests"]


class TestVerdict:
    @pytest.mark.parametrize("name", REORDERED)
    def test_other_order_of_sums_is_no_fault(
        self, name: str, truth: ModuleType, on_cpu: Results, reordered: Results
    ) -> None:
        assert reordered[name]["digests"] != on_cpu[name]["digests"]
        verdict = truth.judge(name, on_cpu[name], reordered[name])
        assert verdict.status in ("same", "pass"), verdict.reason
        if name != "diffusion_unet":
            assert reordered[name]["generated"] == on_cpu[name]["generated"]

    def test_a_small_fault_is_one(self, truth: ModuleType, on_cpu: Results) -> None:
        for name in ("llama3", "qwen3_moe"):
            wrong = copy.deepcopy(on_cpu[name])
            wrong["losses"][2] *= 1 + 1e-5
            verdict = truth.judge(name, on_cpu[name], wrong)
            assert verdict.status == "fail" and verdict.reruns >= 2, f"{name}: {verdict}"

    def test_wrong_updates_are_a_fault(self, truth: ModuleType, on_cpu: Results) -> None:
        """Every update of ResNet-50 smaller by a fifth: the first loss is right, the later ones are not."""
        training = load("examples/models", "training")
        torch.manual_seed(training.SEED)
        experiment = load("examples/models", "resnet50").build()
        wrong = dict(on_cpu["resnet50"])
        smaller = 0.8 * experiment.optimizer.keywords["lr"]
        experiment.optimizer = functools.partial(experiment.optimizer, lr=smaller)
        wrong["losses"] = training.train(experiment, options(cpu=True))
        assert wrong["losses"][0] == on_cpu["resnet50"]["losses"][0]
        assert truth.judge("resnet50", on_cpu["resnet50"], wrong).status == "fail"

    def test_a_wrong_picture_is_a_fault(self, truth: ModuleType, on_cpu: Results) -> None:
        wrong = copy.deepcopy(on_cpu["diffusion_unet"])
        wrong["generated"][100] += 1e-2
        assert truth.judge("diffusion_unet", on_cpu["diffusion_unet"], wrong).status == "fail"


def options(**given: Any) -> argparse.Namespace:
    values = {"cpu": False, "bf16": False, "compile": None, "checkpointing": False, **given}
    return argparse.Namespace(**values)


@pytest.fixture
def llama(mapped: ModuleType) -> Callable[..., dict[str, Any]]:
    """Trains llama3 in this process."""
    needs_transformers()
    training, build = load("examples/models", "training"), load("examples/models", "llama3").build

    def trained(attention: str = "sdpa", **given: Any) -> dict[str, Any]:
        def experiment() -> Any:
            made = build()
            made.model.set_attn_implementation(attention)
            return made

        found: dict[str, Any] = training.run(experiment, options(**given))
        return found

    return trained


class TestWaysToTrain:
    def test_autocast_in_bfloat16(self, llama: Callable[..., dict[str, Any]]) -> None:
        exact, cpu, dipu = llama()["losses"], llama(cpu=True, bf16=True)["losses"], llama(bf16=True)["losses"]
        assert dipu != exact, "bfloat16 was used"
        assert dipu == pytest.approx(cpu, rel=BFLOAT16_BOUND)
        assert dipu == pytest.approx(exact, rel=BFLOAT16_BOUND)

    def test_checkpointing_changes_memory_and_nothing_else(
        self, llama: Callable[..., dict[str, Any]]
    ) -> None:
        plain, recomputed = llama(), llama(checkpointing=True)
        assert recomputed["losses"] == plain["losses"] and recomputed["digests"] == plain["digests"]
        assert recomputed["device"] == "dipu:0"
        assert recomputed["generated"] == plain["generated"]

    @pytest.mark.parametrize("attention", ["eager", "sdpa"])
    def test_compiled(self, attention: str, llama: Callable[..., dict[str, Any]]) -> None:
        plain = llama(attention)["losses"]
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        compiled = llama(attention, compile="aot_eager")["losses"]
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1
        assert torch._dynamo.utils.counters["graph_break"] == {}
        assert compiled == pytest.approx(plain, rel=1e-6)
