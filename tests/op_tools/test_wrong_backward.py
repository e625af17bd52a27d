"""A wrong kernel that runs in backward only is found and named; sixty of them are `benchmarks/wrong_backward.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from wrong_kernels import aten_name, install, one_element

import op_tools

pytestmark = pytest.mark.device
D = "dipu"


def _rows() -> torch.Tensor:
    return torch.tensor([2, 0, 2], device=D)


# Kernel -> a call that has it in its backward.
CALLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu_backward": torch.nn.functional.gelu,
    "_log_softmax_backward_data": lambda x: x.log_softmax(dim=-1),
    "_index_put_impl_": lambda x: x[_rows()],
    "index_add_": lambda x: x.index_select(0, _rows()),
    "scatter_add_": lambda x: x.gather(0, _rows()[:, None]),
    "index_fill_.int_Tensor": lambda x: x.trace(),
}


@pytest.mark.parametrize("kernel", CALLS)
def test_a_wrong_kernel_that_runs_in_backward_only_is_named(kernel: str, rows: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, device=D, requires_grad=True)
    weights = torch.randn_like(CALLS[kernel](x))

    def gradient() -> torch.Tensor:
        (found,) = torch.autograd.grad(CALLS[kernel](x), x, weights)
        return found

    right = gradient()
    library = install(kernel, one_element, only_in_backward=True)
    try:
        wrong = gradient()
        with op_tools.OpAutoCompare():
            seen = gradient()
    finally:
        library._destroy()
    assert not torch.equal(right, wrong)
    assert torch.equal(wrong, seen), "another kernel ran under the tool"
    failed = [row for row in rows("op_autocompare_result") if row["verdict"] == "fail"]
    assert {row["phase"] for row in failed} == {"backward"}
    assert aten_name(kernel) in {row["name"].partition(" ")[0] for row in failed}
