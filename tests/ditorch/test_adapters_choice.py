"""Which of several installed packages is used, and what is said of the others; each case in its own process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from forked_programs import Program, installed, needs_no_card, run_all, without_cards
from forked_python import run_python

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("run_python"), needs_no_card]

_SHOW = """
import torch, ditorch
from _ditorch.session import of_process
x = torch.ones(2, device="cuda") + 1
print("used:", x.device, x.tolist(), "|", of_process().choice.reason)
"""


def _used(ended: subprocess.CompletedProcess[str]) -> str:
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    assert ended.stdout.count("ditorch.framework: ") == 1
    return ended.stdout.rpartition("used: ")[2].strip()


@pytest.mark.slow
def test_what_is_chosen_among_installed_packages() -> None:
    broken = {"STANDIN_BROKEN": "torch_musa"}
    ended = run_all(
        {
            "one": Program(_SHOW, packages=("torch_npu",)),
            "two": Program(_SHOW, packages=("torch_br", "torch_mlu")),
            "setting": Program(_SHOW, {"DITORCH_DEVICE": "torch_br"}, ("torch_br", "torch_mlu")),
            "alias": Program(_SHOW, {"DITORCH_DEVICE": "Ascend"}, ("torch_mlu", "torch_npu")),
            "imported": Program("import torch_br\n" + _SHOW, packages=("torch_br", "torch_mlu")),
            "no device": Program(_SHOW, {"STANDIN_DEVICES_npu": "0"}, ("torch_npu",)),
            "broken": Program(_SHOW, broken, ("torch_musa",)),
            "broken, next": Program(_SHOW, broken, ("torch_musa", "torch_br")),
            "crash": Program(_SHOW, {"STANDIN_CRASH": "torch_mlu"}, ("torch_mlu",)),
        },
        autoload=False,
    )
    assert _used(ended["one"]) == "npu:0 [2.0, 2.0] | it is installed and has a device"
    assert _used(ended["two"]).startswith("mlu:0")
    assert _used(ended["setting"]) == "supa:0 [2.0, 2.0] | DITORCH_DEVICE=torch_br"
    assert _used(ended["alias"]).startswith("npu:0")
    assert _used(ended["imported"]) == "supa:0 [2.0, 2.0] | the program imported torch_br"
    for quiet in ("one", "two", "setting", "alias", "imported", "no device"):
        assert ended[quiet].stderr == ""
    assert _used(ended["no device"]) == "dipu:0 [2.0, 2.0] | no other framework has a device"
    # This package takes torch's one place before it fails: it must not have been tried in the process itself.
    assert _used(ended["broken"]).startswith("dipu:0")
    assert (
        "torch_musa is installed but cannot be imported: ImportError: libdriver.so" in ended["broken"].stderr
    )
    assert "torch_dipu is used instead. To do: check the driver (mthreads-gmi)" in ended["broken"].stderr
    assert _used(ended["broken, next"]).startswith("supa:0")
    assert "torch_br is used instead" in ended["broken, next"].stderr
    assert _used(ended["crash"]).startswith("dipu:0")
    assert (
        "torch_mlu is installed but cannot be imported: its import ended the process" in ended["crash"].stderr
    )


@pytest.mark.slow
def test_devices_are_hidden_by_the_vendors_variable() -> None:
    count = """
        import os, torch, ditorch
        print("count:", torch.cuda.device_count(), os.environ.get("ASCEND_RT_VISIBLE_DEVICES"))
        """
    npu = {"DITORCH_DEVICE": "npu"}
    ended = run_all(
        {
            "cuda's": Program(count, npu | {"CUDA_VISIBLE_DEVICES": "1"}, ("torch_npu",)),
            "own": Program(
                count,
                npu | {"CUDA_VISIBLE_DEVICES": "1", "ASCEND_RT_VISIBLE_DEVICES": "0,1"},
                ("torch_npu",),
            ),
            "identifier": Program(count, npu | {"CUDA_VISIBLE_DEVICES": "GPU-8f1c"}, ("torch_npu",)),
        },
        autoload=False,
    )
    assert {name: program.stdout.partition("count: ")[2].strip() for name, program in ended.items()} == {
        "cuda's": "1 1",
        "own": "2 0,1",
        "identifier": "2 None",
    }


@pytest.mark.slow
def test_the_vendors_own_mapping_is_left_alone() -> None:
    program = """
        import warnings
        import torch, torch_npu
        IMPORT
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            import ditorch
            ditorch.enable()
        print("enabled:", ditorch.enabled(), torch.cuda.is_available is torch.npu.is_available)
        print("warned:", *[str(warning.message) for warning in caught], sep="|")
        """
    by_import = program.replace("IMPORT", "from torch_npu.contrib import transfer_to_npu")
    ended = run_all(
        {
            "imported": Program(by_import, packages=("torch_npu",)),
            "by setting": Program(
                program.replace("IMPORT", ""), {"TORCH_TRANSFER_TO_NPU": "1"}, ("torch_npu",)
            ),
        },
        autoload=False,
    )
    for name, program_ended in ended.items():
        assert program_ended.returncode == 0, f"{name}: {program_ended.stderr}"
        assert "enabled: False True" in program_ended.stdout
        assert (
            "torch_npu.contrib.transfer_to_npu has mapped the names of cuda already" in program_ended.stdout
        )
        assert "Take that import out" in program_ended.stdout


def _doctor(folder: Path, *packages: str, **settings: str) -> subprocess.CompletedProcess[str]:
    path = {"PYTHONPATH": installed(folder, *packages), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    return run_python(
        "-m",
        "ditorch",
        "doctor",
        *settings.pop("words", "").split(),
        env=without_cards(**path, **settings),
        timeout=200,
    )


@pytest.mark.slow
def test_doctor_explains_a_choice_among_several(tmp_path: Path) -> None:
    result = _doctor(
        tmp_path, "torch_br", "torch_mlu", "torch_npu", words="--json", STANDIN_BROKEN="torch_npu"
    )
    assert result.returncode == 0, result.stdout
    findings = json.loads(result.stdout)
    states = {adapter["name"]: (adapter["state"], adapter["devices"]) for adapter in findings["adapters"]}
    assert states | {"cuda": 0, "xpu": 0, "mps": 0} == {
        "npu": ("broken", 0), "mlu": ("chosen", 2), "musa": ("not installed", 0), "supa": ("kept out", 2),
        "xpu": 0, "cuda": 0, "mps": 0, "dipu": ("kept out", 2),
    }  # fmt: skip
    advice = {adapter["name"]: adapter["advice"] for adapter in findings["adapters"]}
    assert advice["supa"] == "to use it: DITORCH_DEVICE=supa"
    assert "npu-smi" in advice["npu"]
    assert findings["framework"] == "torch_mlu:1.24.1"
    assert findings["process_group"] == "cncl"
    assert findings["mapping"] == "on: 'cuda' means 'mlu'"
    assert [device["name"] for device in findings["devices"]] == ["MLU370 0", "MLU370 1"]
    assert all(check["ok"] for check in findings["checks"])
    assert len(findings["notes"]) == 2
    assert "torch_npu is installed but cannot be imported" in findings["notes"][0]
    assert "supa could be used as well" in findings["notes"][1]


@pytest.mark.slow
def test_doctor_is_readable_with_many_packages(tmp_path: Path) -> None:
    packages = ("torch_br", "torch_mlu", "torch_musa", "torch_npu")
    result = _doctor(tmp_path, *packages, STANDIN_BROKEN="torch_musa", STANDIN_DEVICES_npu="0")
    assert result.returncode == 0, result.stdout
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    text = " ".join(result.stdout.split())
    for expected in (
        "Frameworks, the preferred first",
        "│ npu │ torch_npu 2.1.0.post3 │ no device │",
        "│ mlu │ torch_mlu 1.24.1 │ chosen │ 2 │",
        "│ musa │ torch_musa │ broken │",
        "'nccl' means 'cncl'",
        "to use it: DITORCH_DEVICE=supa",
        "All fine.",
    ):
        assert expected in text, expected


@pytest.mark.slow
def test_a_device_registered_with_torch_keeps_the_package_out() -> None:
    """`import torch` has registered dipu: the package could only be loaded in another process, and that is said."""
    ended = run_all(
        {
            "choice": Program(_SHOW, packages=("torch_npu",)),
            "setting": Program(
                f"import os\nos.environ['DITORCH_DEVICE'] = 'npu'\n{_SHOW}", packages=("torch_npu",)
            ),
        }
    )
    assert _used(ended["choice"]).startswith("dipu:0")
    assert "torch_npu has 2 device(s) that cannot be used" in ended["choice"].stderr
    assert ended["setting"].returncode == 1
    for program in ended.values():
        assert (
            "this process has given torch's one slot for such a device (PrivateUse1) to 'dipu'"
            in program.stderr
        )
        assert "set TORCH_DEVICE_BACKEND_AUTOLOAD=0" in program.stderr


@pytest.mark.slow
def test_import_torch_leaves_privateuse1_to_the_package_that_is_asked_for(tmp_path: Path) -> None:
    settings = without_cards(DITORCH_DEVICE="npu", PYTHONPATH=installed(tmp_path, "torch_npu"))
    assert _used(run_python("-c", _SHOW, env=settings)).startswith("npu:0")
