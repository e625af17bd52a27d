"""`torch_dipu` is one and the same package, and complete, in whatever order it, torch and ditorch are imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.device

_LOOK = """
import importlib, json, sys
for name in json.loads(sys.argv[1]):
    exec(f"import {name}")
import torch
known_before = "torch_dipu" in sys.modules
mapped_before = "ditorch" in sys.modules
import torch_dipu
submodules = {n.partition(".")[2]: m for n, m in sys.modules.items() if n.startswith("torch_dipu.") and n.count(".") == 1}
print(json.dumps({
    "imported": known_before,
    "mapped": mapped_before,
    "mapped at last": "ditorch" in sys.modules and str(torch.ones(1).cuda().device) == "dipu:0",
    "lost": [n for n, m in submodules.items() if getattr(torch_dipu, n, None) is not m],
    "found": [n for n in ("_C", "adaptor", "coverage", "dipu", "memory", "random", "streams") if hasattr(torch_dipu, n)],
    "version": torch_dipu.__version__,
    "one device module": torch_dipu.dipu is torch.dipu and torch_dipu.streams.Stream is torch.dipu.Stream,
    "one package": torch_dipu is sys.modules["torch_dipu"] is importlib.import_module("torch_dipu"),
}))
"""
_ALL = ["_C", "adaptor", "coverage", "dipu", "memory", "random", "streams"]


def _look(*modules: str, **environment: str) -> dict[str, object]:
    # CUDA_VISIBLE_DEVICES: beside a real CUDA device nothing is registered or mapped
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("DIPU_", "DITORCH_", "TORCH_DEVICE_"))}
    ran = subprocess.run(
        [sys.executable, "-c", _LOOK, json.dumps(modules)],
        env={**kept, "CUDA_VISIBLE_DEVICES": "", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("modules", "autoload"),
    [
        (["torch"], "1"),
        (["torch_dipu"], "1"),
        (["torch", "torch_dipu"], "1"),
        (["torch", "torch_dipu.streams"], "1"),
        (["torch_dipu.memory", "torch"], "1"),
        (["ditorch"], "1"),
        (["torch", "ditorch"], "1"),
        (["torch", "torch_dipu"], "0"),
        (["torch_dipu", "torch"], "0"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, list) else f"autoload={value}",
)
def test_nothing_is_lost(modules: list[str], autoload: str) -> None:
    found = _look(*modules, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)
    by_user = modules != ["torch"]
    assert found == {
        "imported": by_user,
        "mapped": by_user,
        "mapped at last": True,
        "lost": [],
        "found": _ALL,
        "version": "0.1.0",
        "one device module": True,
        "one package": True,
    }


def test_the_mapping_can_be_left_out() -> None:
    found = _look("torch", "torch_dipu", DIPU_MOCK_CUDA="0")
    assert (found["mapped"], found["mapped at last"]) == (False, False)
    assert (found["lost"], found["found"]) == ([], _ALL)
