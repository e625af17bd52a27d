"""Libraries written for cuda, unmodified, on the device: the losses are those of the same script on the CPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from forked_python import clean_environment, run_python
from made_once import made_once
from torch import nn
from torch.nn.parallel import comm

pytestmark = pytest.mark.device

SCRIPTS = Path(__file__).resolve().parents[2] / "examples" / "third_party"
LIBRARIES = {
    "hf_trainer": ("transformers", "accelerate"),
    "hf_accelerate": ("accelerate",),
    "peft_lora": ("peft", "transformers"),
    "lightning_classifier": ("lightning",),
}
# The Trainer takes both simulated cards, with this many rows on each.
TRAINER_ROWS = 4
# Losses after few steps in bfloat16, which has 8 bits: the CPU rounds other operators than cuda and the device do.
BFLOAT16_BOUND = 2.0**-7

# Imports the libraries once; each script then runs in a process of its own, without ditorch.
_REFERENCES = """
import importlib, json, os, runpy, sys
libraries, work = json.loads(sys.stdin.readline())
for library in libraries:
    importlib.import_module(library)
if "transformers" in libraries:
    from transformers import LlamaForCausalLM, Trainer
failed = []
for script, arguments in work:
    pid = os.fork()
    if pid == 0:
        sys.argv = [script, *arguments]
        runpy.run_path(script, run_name="__main__")
        sys.exit(0)
    if os.waitpid(pid, 0)[1]:
        failed.append(script)
sys.exit(f"failed: {failed}" if failed else 0)
"""


def environment() -> dict[str, str]:
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}
    return clean_environment(**quiet)


def is_there(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def run(*arguments: str, input: str = "") -> subprocess.CompletedProcess[str]:
    done = run_python(*arguments, env=environment(), timeout=230, input=input)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What every script gives on the CPU, in a process that has never heard of ditorch."""
    folder = tmp_path_factory.mktemp("cpu")
    found: dict[str, Any] = made_once(tmp_path_factory, "third_party_cpu", lambda: references(folder))
    return found


def references(folder: Path) -> dict[str, dict[str, Any]]:
    names = [name for name, libraries in LIBRARIES.items() if all(map(is_there, libraries))]
    more = {"hf_trainer": ["--rows", str(2 * TRAINER_ROWS)]}
    work = [
        (str(SCRIPTS / f"{name}.py"), ["--cpu", "--json", str(folder / f"{name}.json"), *more.get(name, [])])
        for name in names
    ]
    libraries = sorted({library for name in names for library in LIBRARIES[name]})
    run("-c", _REFERENCES, input=json.dumps([libraries, work]) + "\n")
    return {name: json.loads((folder / f"{name}.json").read_text()) for name in names}


def on_device(name: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """What a script gives when it is started by `ditorch run`."""
    for library in LIBRARIES[name]:
        if not is_there(library):
            pytest.skip(f"{library} is not installed")
    path = folder / "result.json"
    run("-m", "ditorch", "run", str(SCRIPTS / f"{name}.py"), "--json", str(path), *arguments)
    result: dict[str, Any] = json.loads(path.read_text())
    assert result["device"] == "dipu:0"
    assert result["peak_memory"] > 10_000, "the work was on the device"
    return result


@pytest.mark.parametrize("name", ["hf_accelerate", "peft_lora", "lightning_classifier"])
def test_losses_are_those_of_the_cpu(name: str, tmp_path: Path, on_cpu: dict[str, Any]) -> None:
    found = on_device(name, tmp_path)
    assert found["losses"] == on_cpu[name]["losses"] and len(found["losses"]) >= 4
    assert found["losses"][-1] < found["losses"][0]
    if name == "peft_lora":
        assert found["tokens"] == on_cpu[name]["tokens"] and len(found["tokens"]) == 12
        assert found["frozen_untouched"]


def test_trainer_shares_each_batch_between_two_cards(tmp_path: Path, on_cpu: dict[str, Any]) -> None:
    """nn.DataParallel: the mean of two halves is the mean of the whole up to rounding."""
    found = on_device("hf_trainer", tmp_path, "--rows", str(TRAINER_ROWS))
    expected = on_cpu["hf_trainer"]["losses"]
    assert found["losses"] == pytest.approx(expected, rel=1e-6) and len(expected) == 5
    assert found["losses"][-1] < found["losses"][0]


def test_accelerate_in_mixed_precision(tmp_path: Path, on_cpu: dict[str, Any]) -> None:
    found = on_device("hf_accelerate", tmp_path, "--bf16")["losses"]
    expected = on_cpu["hf_accelerate"]["losses"]
    assert found != expected, "bfloat16 was used"
    assert found == pytest.approx(expected, rel=BFLOAT16_BOUND)


def test_ddp_started_by_torchrun_with_nccl_by_name(tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = str(SCRIPTS / "ddp.py")
    run(*launcher, script, "--cpu", "--json", str(tmp_path / "cpu.json"))
    run(*launcher, "-m", "ditorch", "run", script, "--json", str(tmp_path / "dipu.json"))
    cpu, *ranks = (
        json.loads((tmp_path / name).read_text()) for name in ("cpu.0.json", "dipu.0.json", "dipu.1.json")
    )
    assert [rank["device"] for rank in ranks] == ["dipu:0", "dipu:1"]
    assert {rank["backend"] for rank in ranks} == {"nccl"} and cpu["backend"] == "gloo"
    assert ranks[0]["weights"] == ranks[1]["weights"] == cpu["weights"], (
        "equal on both ranks, and to the CPU's"
    )
    assert ranks[0]["losses"] == ranks[1]["losses"] == cpu["losses"]
    assert cpu["losses"][-1] < cpu["losses"][0]
    assert all(rank["peak_memory"] > 10_000 for rank in ranks)


@pytest.mark.parametrize("script", sorted(path.name for path in SCRIPTS.glob("*.py")))
def test_scripts_know_nothing_of_ditorch(script: str) -> None:
    text = (SCRIPTS / script).read_text()
    assert "ditorch" not in text and "dipu" not in text
    assert any(name in text for name in (".cuda(", "torch.cuda.", '"gpu"'))


class TestDataParallel:
    def test_trains_as_on_one_card(self, mapped: ModuleType) -> None:
        def gradients(parallel: bool) -> list[torch.Tensor]:
            torch.manual_seed(0)
            model: nn.Module = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).cuda()
            called = nn.DataParallel(model) if parallel else model
            result = called(torch.arange(24.0).view(6, 4).cuda() / 24)
            assert result.device.index == 0 and result.shape == (6, 2)
            result.square().mean().backward()
            return [parameter.grad.cpu() for parameter in model.parameters() if parameter.grad is not None]

        alone, shared = gradients(False), gradients(True)
        assert len(alone) == len(shared) == 4
        for one, other in zip(alone, shared, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)

    def test_work_is_on_both_cards(self, mapped: ModuleType) -> None:
        seen = []

        class Watched(nn.Linear):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                seen.append((str(x.device), str(self.weight.device), x.shape[0]))
                return super().forward(x)

        nn.DataParallel(Watched(2, 2).cuda())(torch.ones(5, 2))
        assert sorted(seen) == [("dipu:0", "dipu:0", 3), ("dipu:1", "dipu:1", 2)]

    def test_copies(self, mapped: ModuleType) -> None:
        ones = torch.ones(2, device="cuda")
        assert [str(t.device) for t in comm.broadcast(ones, ["cuda:0", "cuda:1"])] == ["dipu:0", "dipu:1"]
        parts = comm.scatter(torch.arange(5.0), [0, 1], [2, 3])
        assert [part.tolist() for part in parts] == [[0, 1], [2, 3, 4]] and parts[1].device.index == 1
        outputs = [torch.empty(3, device="cuda:1"), torch.empty(2, device="cuda:0")]
        assert [t.tolist() for t in comm.scatter(torch.arange(5.0), out=outputs)] == [[0, 1, 2], [3, 4]]
        assert comm.gather(outputs, destination="cpu").tolist() == [0, 1, 2, 3, 4]
        out = torch.empty(5, device="cuda")
        assert comm.gather(outputs, out=out) is out and out.tolist() == [0, 1, 2, 3, 4]
        assert comm.broadcast(ones, out=[torch.zeros(2, device="cuda:1")])[0].tolist() == [1, 1]
        total = comm.reduce_add([ones, torch.ones(2, device="cuda:1")], destination=0)
        assert total.tolist() == [2, 2] and total.device.index == 0
        copies = comm.broadcast_coalesced([ones, 2 * ones], [0, 1])
        assert [[t.tolist() for t in copy] for copy in copies] == [[[1, 1], [2, 2]]] * 2
