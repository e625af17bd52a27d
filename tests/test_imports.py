"""Importing a module does nothing: torch, the arguments, the environment and modules of others are as before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.device

PROGRAM = Path(__file__).with_name("import_everything.py")
# Packages whose import is the switch, beside the module ditorch. LMDeploy imports lmdeploy_ext to have itself set up.
SWITCHES = ["torch_dipu", "dlinfer.framework.lmdeploy_ext"]


def imported(packages: list[str], switches: list[str], folder: Path) -> dict[str, Any]:
    ours = ("DIPU_", "DITORCH_", "DLINFER_", "OP_TOOLS_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    paths = [str(folder), environment.get("PYTHONPATH", "")]
    environment |= {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps(packages), json.dumps(switches)],
        env=environment, capture_output=True, text=True, cwd=folder, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("packages", "at_least"),
    [
        (["dicore", "op_tools", "diopi", "dicp"], 100),
        (["dlinfer"], 50),
        (["_ditorch", "dipu"], 60),
        (["torch_dipu"], 10),
    ],
    ids=lambda given: "-".join(given) if isinstance(given, list) else None,
)
def test_importing_a_module_changes_nothing(packages: list[str], at_least: int, tmp_path: Path) -> None:
    seen = imported(packages, SWITCHES, tmp_path)
    assert seen["found"] == {}
    assert seen["count"] > at_least


@pytest.mark.parametrize("switch", ["ditorch", "torch_dipu"])
def test_the_switches_act(switch: str, tmp_path: Path) -> None:
    changed = imported([switch], [], tmp_path)["found"][switch]
    assert {"torch.zeros is another", "Tensor.cuda is new", "the name of PrivateUse1 is another"} <= set(
        changed
    )


def test_what_an_import_changes_is_seen(tmp_path: Path) -> None:
    package = tmp_path / "acts"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "a.py").write_text("import sys, os\nsys.argv = []\nos.environ['NEW'] = '1'\n")
    (package / "b.py").write_text("import torch\ntorch.add = lambda a, b: a\ntorch.Tensor.extra = 1\n")
    (package / "c.py").write_text("import sys, json\nsys.modules['json'] = sys\n")
    (package / "d.py").write_text("import torch\ntorch.manual_seed(3)\n")
    (package / "e.py").write_text("import no_such_library\n")
    (package / "f.py").write_text("import torch, colorsys\nX = torch.zeros(1)\n")
    assert imported(["acts"], [], tmp_path)["found"] == {
        "acts.a": ["os.environ['NEW'] is new", "sys.argv is another"],
        "acts.b": ["Tensor.extra is new", "torch.add is another"],
        "acts.c": ["sys.modules['json'] is another"],
        "acts.d": ["torch's random state is another"],
    }
