"""Two ways to try the mapping: in this process, undone after each test, or in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
from forked_python import clean_environment
from forked_python import run_python as run_forked

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


@pytest.fixture(autouse=True)
def unmapped() -> Iterator[None]:
    """A test begins with torch as it comes, also after a conftest that imports torch_dipu, which maps the names of cuda."""
    was_enabled = ditorch is not None and ditorch.enabled()
    if was_enabled:
        ditorch.disable()
    yield
    if was_enabled:
        ditorch.enable()


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
    """Run code in a process of its own with only the given settings; fails the test if the code fails."""
    if ditorch is None:
        pytest.skip(f"ditorch cannot be imported: {_missing}")

    def run(code: str, *, expect: int = 0, **settings: str) -> subprocess.CompletedProcess[str]:
        return _checked(run_forked("-c", code, env=clean_environment(**settings)), expect)

    return run


@pytest.fixture
def fresh_python() -> RunPython:
    """As `run_python`, in an interpreter that has imported nothing: for what is said about the imports themselves."""
    if ditorch is None:
        pytest.skip(f"ditorch cannot be imported: {_missing}")

    def run(code: str, *, expect: int = 0, **settings: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", textwrap.dedent(code)]
        environment = clean_environment(**settings)
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        return _checked(done, expect)

    return run


def _checked(done: subprocess.CompletedProcess[str], expect: int) -> subprocess.CompletedProcess[str]:
    assert done.returncode == expect, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
