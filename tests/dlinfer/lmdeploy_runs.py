"""Runs one of the programs beside this file in a process of its own, once for all workers of a test run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from forked_python import run_python

HERE = Path(__file__).parent
#: To be preloaded for programs that run LMDeploy, unless they set what transformers reads at its import (HF_...).
LMDEPLOY = ("lmdeploy", "lmdeploy.pytorch.engine.engine", "transformers.models.llama.modeling_llama")
sys.path.append(str(HERE.parent / "ditorch"))  # where made_once is

from made_once import made_once  # noqa: E402


def results_of(factory: pytest.TempPathFactory, program: str, timeout: int) -> dict[str, Any]:
    """What a program wrote to the JSON file that is its argument."""

    def make() -> dict[str, Any]:
        folder = factory.mktemp(program)
        out = folder / "results.json"
        environment = {
            **os.environ,
            "DLINFER_DEVICE": "cpu",
            "HF_HUB_OFFLINE": "1",
            "HF_MODULES_CACHE": str(folder / "modules"),
        }
        run = run_python(HERE / f"{program}.py", out, env=environment, timeout=timeout)
        assert run.returncode == 0, f"{program} failed:\n{run.stdout[-2000:]}\n{run.stderr[-6000:]}"
        found: dict[str, Any] = json.loads(out.read_text())
        return found

    found: dict[str, Any] = made_once(factory, program, make)
    return found
