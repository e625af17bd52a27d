"""The tests of the vendor triton with a triton isolated from torch."""

from __future__ import annotations

from pathlib import Path

import pytest
from isolated_triton import needs_isolated_triton, run_isolated

pytestmark = [pytest.mark.unit, *needs_isolated_triton]
HERE = Path(__file__).resolve().parent


@pytest.mark.parametrize(
    ("files", "interpreted", "least"),
    [
        (["test_triton_kernels.py"], True, 40),
        (["test_triton_compiled.py", "test_triton_vendor.py"], False, 40),
        (["test_graph_capture.py::test_dicp_runs_the_decode_graph[tritongraph]"], True, 1),
    ],
    ids=["interpreted", "compiled", "decode graph"],
)
def test_without_a_gpu(tmp_path: Path, files: list[str], interpreted: bool, least: int) -> None:
    """Kernels compute on the CPU, interpreted; and they become machine code of a GPU."""
    run_isolated([HERE / name for name in files], interpreted, least, tmp_path)
