"""The tests' own way to run programs: as Python would run them, only sooner."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forked_python import clean_environment, run_module, run_program

pytestmark = pytest.mark.unit


def test_a_program_has_its_own_arguments_environment_folder_and_streams(tmp_path: Path) -> None:
    code = """
        import os, sys
        print(sys.argv, os.getcwd(), os.environ["ONLY_HERE"], __name__, "op_tools" in sys.modules)
        print("to err", file=sys.stderr)
        sys.exit(3)
    """
    ended = run_program(code, "a", "b", environment=clean_environment(ONLY_HERE="1"), folder=tmp_path)
    assert (ended.code, ended.err) == (3, "to err\n")
    assert ended.out == f"['-c', 'a', 'b'] {tmp_path} 1 __main__ False\n"
    assert "ONLY_HERE" not in os.environ


def test_it_ends_as_a_program_ends() -> None:
    ended = run_program("import atexit; atexit.register(print, 'left'); raise ValueError('why')")
    assert (ended.code, ended.out) == (1, "left\n") and ended.err.endswith("ValueError: why\n")
    assert run_program("import os; os.abort()").code == -6


def test_devices_are_loaded_as_its_environment_says() -> None:
    code = "import torch, sys; print('torch_dipu_autoload' in sys.modules)"
    assert run_program(code).out == "True\n"
    off = clean_environment(TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert run_program(code, environment=off).out == "False\n"


def test_a_module_runs_and_a_program_that_hangs_is_ended() -> None:
    assert run_module("platform", ["--help"]).code == 0
    with pytest.raises(TimeoutError, match=r"within 0\.5 s"):
        run_program("import time; time.sleep(600)", timeout=0.5)
    assert run_program("print(1)").out == "1\n"
