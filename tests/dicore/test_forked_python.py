"""The tests' own way to run programs: as Python would run them, only sooner."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forked_python import clean_environment, run_python

pytestmark = pytest.mark.unit


def test_a_program_has_its_own_arguments_environment_folder_and_streams(tmp_path: Path) -> None:
    code = """
        import os, sys
        print(sys.argv, os.getcwd(), os.environ["ONLY_HERE"], __name__, "op_tools" in sys.modules)
        print("to err", sys.stdin.read(), file=sys.stderr)
        sys.exit(3)
    """
    environment = clean_environment(ONLY_HERE="1")
    ended = run_python("-c", code, "a", "b", env=environment, cwd=tmp_path, input="given")
    assert (ended.returncode, ended.stderr) == (3, "to err given\n")
    assert ended.stdout == f"['-c', 'a', 'b'] {tmp_path} 1 __main__ False\n"
    assert "ONLY_HERE" not in os.environ


def test_it_ends_as_a_program_ends() -> None:
    ended = run_python("-c", "import atexit; atexit.register(print, 'left'); raise ValueError('why')")
    assert (ended.returncode, ended.stdout) == (1, "left\n") and ended.stderr.endswith("ValueError: why\n")
    assert run_python("-c", "import os; os.abort()").returncode == -6


def test_devices_are_loaded_as_its_environment_says() -> None:
    code = "import torch, sys; print('torch_dipu_autoload' in sys.modules)"
    assert run_python("-c", code, env=clean_environment()).stdout == "True\n"
    off = clean_environment(TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert run_python("-c", code, env=off).stdout == "False\n"


def test_modules_and_files_run_as_the_main_one(tmp_path: Path) -> None:
    shown = "import sys; print(sys.argv[1:], __name__, __file__, sys.modules['__main__'].shown)"
    (tmp_path / "beside.py").write_text("")
    (tmp_path / "shows.py").write_text(f"import beside\nshown = True\n{shown}\n")
    expected = f"['a b'] __main__ {tmp_path / 'shows.py'} True\n"
    assert run_python(tmp_path / "shows.py", "a b").stdout == expected
    assert run_python("-m", "shows", "a b", cwd=tmp_path).stdout == expected


def test_a_program_that_hangs_is_ended() -> None:
    with pytest.raises(TimeoutError, match=r"within 0\.5 s"):
        run_python("-c", "import time; time.sleep(600)", timeout=0.5)
    assert run_python("-c", "print(1)").stdout == "1\n"
