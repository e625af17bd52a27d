"""The backend `tritongraph` where torch sees no triton: its tests with one that is isolated, and what it says without."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from isolated_triton import needs_isolated_triton, run_isolated

pytestmark = pytest.mark.unit
HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize(
    ("file", "interpreted", "least"),
    [
        pytest.param(name, interpreted, least, marks=needs_isolated_triton, id=name)
        for name, interpreted, least in (
            ("test_tritongraph.py", True, 20),
            ("test_tritongraph_compiled.py", False, 4),
        )
    ],
)
def test_without_a_gpu(tmp_path: Path, file: str, interpreted: bool, least: int) -> None:
    """Kernels compute on the CPU, interpreted; and they become machine code of a GPU."""
    run_isolated([HERE / file], interpreted, least, tmp_path)


@pytest.mark.skipif(find_spec("triton") is not None, reason="triton is installed")
def test_without_triton_it_says_what_to_install() -> None:
    with pytest.raises(Exception, match="pip install triton"):
        torch.compile(lambda x: x + 1, backend="tritongraph")(torch.ones(3))
