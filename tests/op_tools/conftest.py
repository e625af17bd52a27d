"""A place of its own for each test's results, and a tool that only notes what the engine shows it."""

from __future__ import annotations

import csv
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_python import clean_environment
from forked_python import run_python as run_forked

from dicore.settings import setting
from op_tools.engine import ENGINE, Call
from op_tools.settings import ToolSettings
from op_tools.tool import Tool

if os.environ.get("OP_TOOLS_TEST_DEVICE", "dipu") == "dipu":
    # On another device only the tests that ask for it run; registering ours would take the accelerator's place.
    import torch_dipu  # noqa: F401

# Tasks that kill or hang their worker are shared with the tests of the executors.
sys.path.append(str(Path(__file__).parents[1] / "dicore"))
torch.set_num_threads(1)


@dataclasses.dataclass(frozen=True)
class ProbeSettings(ToolSettings):
    list: str = setting(".*", "OP_PROBE_LIST")
    disable_list: str = setting("", "OP_PROBE_DISABLE_LIST")


class Probe(Tool):
    """Notes every call with what it was called with, in the order the engine tells."""

    schema = ProbeSettings
    section = "probe"
    hook_name = "ProbeHook"

    def __init__(
        self, *, aten: bool = False, ties: bool = False, backward: bool = False, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.uses_aten = self.aten_everywhere = aten
        self.wants_ties = ties
        self.wants_backward = backward
        self.takes_compiled = True
        self.calls: list[Call] = []
        self.locations: list[dict[str, Any]] = []
        self.failures: list[Call] = []
        self.finished: list[tuple[str, Any]] = []
        self.gradients: list[tuple[str, list[Any], list[Any]]] = []
        self.values: dict[str, list[Any]] = {}
        self.mixed: list[tuple[str, list[int]]] = []
        self.errors: list[str] = []

    def wants_aten(self, name: str, func: Any) -> bool:
        return bool(self.uses_aten)

    def before(self, call: Call) -> None:
        self.calls.append(call)
        self.locations.append(self.location(call))

    def after(self, call: Call, result: Any) -> None:
        self.finished.append((call.name, result))

    def failed(self, call: Call) -> None:
        self.failures.append(call)

    def backward(self, call: Call, grad_inputs: list[Any], grad_outputs: list[Any]) -> None:
        self.gradients.append((call.name, grad_inputs, grad_outputs))
        self.values[call.name] = [grad.tolist() for grad in grad_inputs if grad is not None]

    def gradients_mixed(self, call: Call, inputs: list[int]) -> None:
        self.mixed.append((call.name, inputs))

    def failure_row(self, call: Call | None, error: Exception) -> None:
        self.errors.append(f"{type(error).__name__}: {error}")

    def names_seen(self, level: str | None = None) -> list[str]:
        return [call.name for call in self.calls if level in (None, call.level)]


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder is the test's own, no variable of the tools is set, and no tool is left on."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("OP_", "AUTOCOMPARE_")) or "_OP_DTYPE_CAST" in name:
            monkeypatch.delenv(name)
    ENGINE.failures.seen.clear()
    ENGINE.step = 0
    yield tmp_path
    left = ENGINE.tools
    for tool in left:
        tool.stop()
    assert not left, f"the test left {left} on"
    assert ENGINE.modes_here() == []


@pytest.fixture
def probe() -> type[Probe]:
    return Probe


@pytest.fixture
def rows(tmp_path: Path) -> Callable[[str], list[dict[str, str]]]:
    """The rows of the CSV files a tool has written, by the folder's name."""

    def read(folder: str) -> list[dict[str, str]]:
        found: list[dict[str, str]] = []
        for file in sorted((tmp_path / "op_tools_results" / folder).glob("*.csv")):
            with file.open(newline="") as text:
                found.extend(csv.DictReader(text))
        return found

    return read


@pytest.fixture
def run_python(tmp_path: Path) -> Callable[..., str]:
    """Run code in a process of its own, in the test's folder; what it prints."""

    def run(code: str, *arguments: str, expect: int = 0, **settings: str) -> str:
        done = run_forked("-c", code, *arguments, env=clean_environment(**settings), cwd=tmp_path)
        assert done.returncode == expect, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


@pytest.fixture
def quiet_device() -> Iterator[None]:
    """The device as it was, whatever the test configures."""
    yield
    torch.dipu.configure(**{"async": 0, "delay_us": 0})
