"""The backend `hostgraph`: functions and models compiled to C++ give what eager gives."""

from __future__ import annotations

import pytest
import torch
from loop_backend import LoopBackendTests

pytestmark = pytest.mark.unit


class TestHostGraph(LoopBackendTests):
    backend = "hostgraph"

    def test_a_division_by_zero_is_an_error(self) -> None:
        divide = self.compiled(lambda x, y: torch.div(x, y, rounding_mode="floor") + 1)
        x, zero = torch.arange(40), torch.zeros(40, dtype=torch.int64)
        with pytest.raises((RuntimeError, IndexError), match="ZeroDivisionError"):
            divide(x, zero)
        assert torch.equal(divide(x, zero + 3), x // 3 + 1)
