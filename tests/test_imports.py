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
# One more acts and need not be listed: dlinfer.framework.transformers_ext registers an attention function with
# transformers, into which no check here looks.
SWITCHES = ["torch_dipu", "dlinfer.framework.lmdeploy_ext"]


PACKAGES = {
    # packages imported in one process, and how many modules they have at least
    ("dicore", "op_tools", "diopi", "dicp"): 100,
    ("dlinfer",): 50,
    ("_ditorch", "dipu"): 60,
    ("torch_dipu",): 10,
}
ACTS = {
    "__init__": "",
    "a": "import sys, os\nsys.argv = []\nos.environ['NEW'] = '1'\n",
    "b": "import torch\ntorch.add = lambda a, b: a\ntorch.Tensor.extra = 1\n",
    "c": "import sys, json\nsys.modules['json'] = sys\n",
    "d": "import torch\ntorch.manual_seed(3)\n",
    "e": "import no_such_library\n",
    "f": "import torch, colorsys\nX = torch.zeros(1)\n",
}


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], dict[str, Any]]:
    """What the imports of these packages changed; switches that are imported to see them act are listed alone."""
    folder = tmp_path_factory.mktemp("imports")
    (folder / "acts").mkdir()
    for name, source in ACTS.items():
        (folder / "acts" / f"{name}.py").write_text(source)
    entries = {packages: SWITCHES for packages in PACKAGES} | {
        ("ditorch",): [],
        ("torch_dipu", "dicp"): [],
        ("acts",): [],
    }
    ours = ("DIPU_", "DITORCH_", "DLINFER_", "OP_TOOLS_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    given = [{"packages": p, "switches": s, "path": str(folder)} for p, s in entries.items()]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps(given)],
        env={**environment, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        capture_output=True, text=True, cwd=folder, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(zip(entries, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("packages", PACKAGES, ids="-".join)
def test_importing_a_module_changes_nothing(packages: tuple[str, ...], imported: Any) -> None:
    assert imported[packages]["found"] == {}
    assert imported[packages]["count"] > PACKAGES[packages]


@pytest.mark.parametrize(
    ("switch", "packages"), [("ditorch", ("ditorch",)), ("torch_dipu", ("torch_dipu", "dicp"))]
)
def test_the_switches_act(switch: str, packages: tuple[str, ...], imported: Any) -> None:
    changed = set(imported[packages]["found"][switch])
    assert {"torch.zeros is another", "Tensor.cuda is new", "the name of PrivateUse1 is another"} <= changed


def test_what_an_import_changes_is_seen(imported: Any) -> None:
    assert imported["acts",]["found"] == {
        "acts.a": ["os.environ['NEW'] is new", "sys.argv is another"],
        "acts.b": ["Tensor.extra is new", "torch.add is another"],
        "acts.c": ["sys.modules['json'] is another"],
        "acts.d": ["torch's random state is another"],
    }
