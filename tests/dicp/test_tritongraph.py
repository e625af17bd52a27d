"""The backend `tritongraph`: its kernels, run by Triton's interpreter or on a GPU, give what eager gives."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import ClassVar

import pytest
import torch
from dicp_triton import triton_device
from loop_backend import LoopBackendTests
from torch import Tensor
from torch.nn import functional as F

from dicore.conformance.case_filter import CaseFilter
from dicore.conformance.runner import RunOptions, run_suite
from dicp.conformance.suite import DicpSuite

DEVICE = triton_device()
pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(not DEVICE, reason="no triton, or neither a GPU nor TRITON_INTERPRET=1"),
]

# One operator of each kind, and dtypes that differ in how they are held; `dicp conformance` has all.
SAMPLED = ("add", "_softmax", "cat", "cumsum", "embedding", "native_layer_norm", "where", "mm", "var_mean")


class TestTritonGraph(LoopBackendTests):
    backend = "tritongraph"
    device = DEVICE or ""
    shapes = ((7, 5, 2), (3, 9, 8), (30, 20, 41))
    sums: ClassVar = {"rtol": 1e-4, "atol": 1e-4}

    # Sizes for each way to divide rows and columns: short rows, rows in blocks, shares of a row, columns of memory, one row.
    @pytest.mark.parametrize("shape", [(5, 40), (3, 20000), (1, 70000), (3000, 3), (70, 130)])
    def test_rows_and_columns_of_any_length(self, shape: tuple[int, int]) -> None:
        def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
            normed = F.layer_norm(x, x.shape[1:]) * w
            return normed, x.sum(0), (x * w).amax(), x.softmax(1), x.mean(1), x.argmin(0), (x > 2).any()

        self.check(function, self.randn(*shape), self.randn(shape[1]), rtol=1e-4, atol=1e-4)

    def test_transposes_joins_and_places_of_rows(self) -> None:
        def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
            swapped = x.permute(2, 0, 1).contiguous() + 1
            turned = torch.cat([-x[..., 20:], x[..., :20]], -1) * x.softmax(-1)
            return (
                swapped,
                turned,
                torch.cat([x, y], 1),
                F.pad(x, (1, 2)),
                F.pad(x[0, 0], (1, 0)),
                x.softmax(-1).flip(-1),
                x.cumsum(0),
            )

        self.check(function, self.randn(3, 37, 40), self.randn(3, 5, 40))

    def test_pointers_that_are_not_aligned(self) -> None:
        self.check(lambda x: F.softmax(x * 2, -1), self.randn(401)[1:].view(4, 100))

    def test_operators_give_what_eager_gives(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert DEVICE is not None
        monkeypatch.setenv("DICP_FALLBACK", "unsupported")
        suite = DicpSuite("tritongraph", DEVICE)
        wanted = frozenset(SAMPLED) & suite.functions()
        chosen = CaseFilter(functions=wanted, dtypes=frozenset({"float32", "bfloat16", "int64"}))
        report = run_suite(suite, RunOptions(chosen, in_process=True))
        assert report.functions() == wanted and len(wanted) >= 7
        assert report.counts().get("pass", 0) > 20 and report.failures() == []

    def test_a_wrong_kernel_is_found(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the tests above rest on: a mistake in what is printed shows."""
        from dicp.vendor.TritonGraph import primitives

        assert find_spec("triton") is not None and (os.environ.get("TRITON_INTERPRET") == "1") == (
            DEVICE == "cpu"
        )
        monkeypatch.setitem(primitives._INFIX, "mul", "+")
        with pytest.raises(AssertionError, match="not close"):
            self.check(lambda x, y: x * y, self.randn(3, 5), self.randn(5))
