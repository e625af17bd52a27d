"""Two ways to try the mapping: in this process, undone after each test, or in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

# For the import below only: other tests of this worker have not asked for the mapping.
_before = os.environ.get("DITORCH_DISABLE_MOCK")
os.environ["DITORCH_DISABLE_MOCK"] = "1"
try:
    import ditorch
except ImportError as error:
    ditorch = None  # type: ignore[assignment]
    _missing = str(error)
finally:
    if _before is None:
        del os.environ["DITORCH_DISABLE_MOCK"]
    else:
        os.environ["DITORCH_DISABLE_MOCK"] = _before

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]

_OURS = ("DITORCH_", "DIPU_", "TORCH_DEVICE_BACKEND_AUTOLOAD", "RANK")


@pytest.fixture
def mapped() -> Iterator[ModuleType]:
    """ditorch with the mapping on; afterwards torch is as it was."""
    if ditorch is None:
        pytest.skip(f"ditorch cannot be imported: {_missing}")
    if not ditorch.framework.startswith("torch_dipu"):
        pytest.skip(f"these tests are about dipu; the framework here is {ditorch.framework}")
    was_enabled = ditorch.enabled()
    ditorch.enable()
    yield ditorch
    if not was_enabled:
        ditorch.disable()


@pytest.fixture
def run_python() -> RunPython:
    """Run code in a fresh interpreter with only the given settings; fails the test if the code fails."""
    if ditorch is None:
        pytest.skip(f"ditorch cannot be imported: {_missing}")

    def run(code: str, *, expect: int = 0, **settings: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
        environment.setdefault("OMP_NUM_THREADS", "1")
        result = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env=environment | settings,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert result.returncode == expect, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result

    return run
