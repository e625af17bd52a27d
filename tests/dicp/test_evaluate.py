"""The reference interpreter gives what kernels written by hand say."""

from __future__ import annotations

import pytest
import torch
from loop_kernels import column_sums, joined, softmax

from dicp.loops.evaluate import evaluate_kernel

pytestmark = pytest.mark.unit


def test_softmax() -> None:
    x = torch.randn(3, 5)
    out = torch.empty(15)
    evaluate_kernel(softmax(3, 5), [x.reshape(-1), out])
    torch.testing.assert_close(out.reshape(3, 5), torch.softmax(x, 1))


def test_column_sums_of_a_16_bit_float_are_rounded_once() -> None:
    x = torch.randn(40, 6).bfloat16()
    out = torch.empty(6, dtype=torch.bfloat16)
    evaluate_kernel(column_sums(40, 6), [x.reshape(-1), out])
    assert torch.equal(out, x.double().sum(0).bfloat16())


def test_parts_of_a_phase() -> None:
    out = torch.empty(5)
    evaluate_kernel(joined(2, 3), [torch.tensor([1.0, 2]), torch.tensor([3.0, 4, 5]), out])
    assert out.tolist() == [1, 2, 3, 4, 5]


def test_an_index_outside_of_a_buffer_is_an_error() -> None:
    with pytest.raises(IndexError, match="outside of 3 elements"):
        evaluate_kernel(joined(2, 3), [torch.ones(2), torch.ones(3), torch.empty(3)])
