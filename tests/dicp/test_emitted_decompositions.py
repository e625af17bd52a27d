"""What backends of emitted programs take apart: each rule gives what the operator gives."""

from __future__ import annotations

import math

import pytest
import torch

from dicp.emitted.decompositions import emitted_decompositions

pytestmark = pytest.mark.unit
aten = torch.ops.aten
RULES = emitted_decompositions()


def compared(operator, *args, **kwargs):
    found = RULES[operator](*args, **kwargs)
    assert found is not NotImplemented
    torch.testing.assert_close(
        found,
        type(found)(operator(*args, **kwargs)) if isinstance(found, tuple) else operator(*args, **kwargs),
        equal_nan=True,
    )


@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation"),
    [
        ([2, 2], [], [0, 0], [1, 1]),
        ([3, 2], [2, 3], [1, 0], [1, 2]),
        ([3], [1], [1], [1]),
        ([2, 2], [3, 3], [1, 1], [1, 1]),
    ],
)
@pytest.mark.parametrize("size", [(7, 9), (6, 6)])
def test_pooling_by_maximum(size, kernel, stride, padding, dilation, ceil_mode):
    x = torch.randn(2, 3, *size)
    x[0, 0, 1, 2] = float("nan")
    compared(aten.max_pool2d_with_indices.default, x, kernel, stride, padding, dilation, ceil_mode)


@pytest.mark.parametrize("include_pad", [False, True])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "ceil_mode", "divisor"),
    [
        ([2, 2], [], [0, 0], False, None),
        ([3, 2], [2, 3], [1, 0], False, None),
        ([3, 3], [2, 2], [1, 1], True, None),
        ([2, 3], [1, 2], [0, 1], False, 5),
        ([2, 2], [3, 3], [0, 0], False, None),
    ],
)
def test_the_gradient_of_averages(kernel, stride, padding, ceil_mode, divisor, include_pad):
    x = torch.randn(2, 3, 8, 9)
    grad = torch.randn_like(aten.avg_pool2d(x, kernel, stride, padding, ceil_mode, include_pad, divisor))
    compared(
        aten.avg_pool2d_backward.default, grad, x, kernel, stride, padding, ceil_mode, include_pad, divisor
    )


def test_the_gradient_of_equal_windows():
    x, grad = torch.randn(2, 3, 6, 8), torch.randn(2, 3, 3, 2)
    compared(aten._adaptive_avg_pool2d_backward.default, grad, x)
    assert RULES[aten._adaptive_avg_pool2d_backward.default](torch.randn(2, 3, 4, 4), x) is NotImplemented


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_and_its_gradient(causal, masked):
    query, key, value = torch.randn(3, 2, 4, 5, 8).unbind()
    mask = None
    if masked:
        mask = torch.randn(2, 1, 5, 5)
        mask[0, 0, 3] = -math.inf  # a row that may look at nothing
    forward, backward = (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    )
    out, logsumexp = forward(query, key, value, 0.0, causal, attn_mask=mask)
    found = RULES[forward](query, key, value, 0.0, causal, attn_mask=mask)
    torch.testing.assert_close(found[0], out)
    grad = torch.randn_like(out)
    arguments = (grad, query, key, value, out, found[1], 0.0, causal)
    torch.testing.assert_close(
        RULES[backward](*arguments, attn_mask=mask),
        tuple(backward(grad, query, key, value, out, logsumexp, 0.0, causal, attn_mask=mask)),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_numbers_win(dtype):
    x, y = torch.tensor([1.0, 2.0, 5.0, 0.0]), torch.tensor([3.0, 1.0, 4.0, 0.0])
    x, y = x.to(dtype), y.to(dtype)
    if dtype.is_floating_point:
        x[1], y[2] = float("nan"), float("nan")
        compared(aten.hypot.default, x.abs() * 1e19, y * 1e19)
    compared(aten.fmax.default, x, y)
    compared(aten.fmin.default, x, y.unsqueeze(-1))


@pytest.mark.parametrize("correction", [None, 0, 2, 40])
@pytest.mark.parametrize("dim", [None, [0], [-1, 0]])
def test_moments(dim, correction):
    for x in (torch.randn(3, 5, 2), torch.randn(3, 5, 2).half()):
        for name in ("var", "std"):
            compared(getattr(aten, name).correction, x, dim, correction=correction, keepdim=True)
            compared(getattr(aten, f"{name}_mean").correction, x, dim, correction=correction)


def test_lists_and_repetition():
    xs, ys = list(torch.randn(3, 4).unbind()), list(torch.randn(3, 4).unbind())
    compared(aten._foreach_add.List, xs, ys, alpha=2)
    compared(aten._foreach_addcdiv.Scalar, xs, ys, ys, value=0.5)
    compared(aten._foreach_lerp.Scalar, xs, ys, 0.25)
    compared(aten._foreach_norm.Scalar, xs, 2)
    compared(aten._foreach_maximum.List, xs, ys)
    compared(aten._foreach_mul.ScalarList, xs, [1.0, 2.0, 3.0])
    compared(aten.repeat.default, torch.randn(2, 3), [2, 1, 3])
    compared(
        aten.native_group_norm.default,
        torch.randn(2, 4, 3, 3),
        torch.randn(4),
        torch.randn(4),
        2,
        4,
        9,
        2,
        1e-5,
    )
