"""cpp's products: every form and size against float64, and the same bits in any company."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from dlinfer.reference import KERNELS

_cpp: Any = pytest.importorskip("dlinfer._cpp")
pytestmark = pytest.mark.unit

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Beside the sizes of tiles: one row, full tiles, uneven ones, and on both sides of where a library takes over.
ROWS = (1, 2, 3, 5, 8, 9, 12, 13, 16, 20, 21, 48, 49, 96, 97)
SIZES = ((1, 1), (7, 5), (16, 16), (33, 17), (576, 40), (100, 130))


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(7)


@pytest.fixture
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _is_product(got: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """x times weight transposed, with sums in float32 and one rounding at the end."""
    exact = x.double() @ weight.double().mT
    size = x.double().abs() @ weight.double().abs().mT
    if bias is not None:
        exact, size = exact + bias.double(), size + bias.double().abs()
    bound = 2 * torch.finfo(got.dtype).eps * exact.abs() + (8 + x.shape[-1] / 16) * 2**-24 * size
    assert got.shape == exact.shape
    # float16 has no numbers between 0 and 6e-8, and coarse ones above.
    assert bool(((got.double() - exact).abs() <= bound + torch.finfo(got.dtype).tiny * 2**-10).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [False, True])
def test_linear_of_every_size(dtype: torch.dtype, columns: bool) -> None:
    for size, features in SIZES:
        weight = (torch.randn(features, size) / size**0.5).to(dtype)
        weight = weight.t().contiguous().t() if columns else weight
        bias = torch.randn(features).to(dtype)
        for rows in ROWS:
            x = torch.randn(rows, size).to(dtype)
            _is_product(_cpp.linear(x, weight), x, weight)
        _is_product(_cpp.linear(x[:7], weight, bias), x[:7], weight, bias)


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_of_views(dtype: torch.dtype) -> None:
    whole, weights = torch.randn(6, 4, 50).to(dtype), (torch.randn(64, 90) / 6).to(dtype)
    for x in (
        whole,
        whole[:, 1],
        whole[..., 3:45],
        whole.transpose(0, 1),
        whole[::2, 0, 1:48:3],
        whole[0, 0],
    ):
        for weight in (
            weights[:, : x.shape[-1]],
            weights[::3, 5 : 5 + x.shape[-1]],
            weights[:, : 2 * x.shape[-1] : 2],
        ):
            if weight.shape[1] == x.shape[-1]:
                _is_product(_cpp.linear(x, weight), x, weight)
    assert _cpp.linear(whole[:, :, :0], weights[:, :0]).abs().max() == 0
    assert _cpp.linear(whole[:0], weights[:, :50]).shape == (0, 4, 64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [False, True])
def test_a_row_has_the_same_bits_beside_any_others(dtype: torch.dtype, columns: bool) -> None:
    # For more rows a library multiplies; where the CPU multiplies half dtypes itself, it does so sooner.
    most = 12 if columns else 48 if dtype == torch.float32 else 16
    weight = (torch.randn(75, 300) / 17).to(dtype)
    weight = weight.t().contiguous().t() if columns else weight
    x = torch.randn(most, 300).to(dtype)
    alone = torch.cat([_cpp.linear(row[None], weight) for row in x])
    for rows in range(1, most + 1):
        assert torch.equal(_cpp.linear(x[:rows], weight), alone[:rows])
    assert torch.equal(_cpp.linear(x[most // 2 :], weight), alone[most // 2 :])


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("columns", [False, True])
def test_threads_do_not_change_bits(columns: bool) -> None:
    weight, x = torch.randn(777, 640), torch.randn(5, 640)
    weight = weight.t().contiguous().t() if columns else weight
    shared = _cpp.linear(x, weight)
    numbers, scale = torch.randint(-128, 128, (777, 640), dtype=torch.int8), torch.rand(777)
    quantised = numbers.t().contiguous() if columns else numbers.t()
    shared_quantised = _cpp.weight_quant_matmul(x, quantised, scale)
    torch.set_num_threads(1)
    assert torch.equal(_cpp.linear(x, weight), shared)
    assert torch.equal(_cpp.weight_quant_matmul(x, quantised, scale), shared_quantised)


# ---- weights of 8 and 4 bits ----


def _is_quantised_product(x: Tensor, *given: Any) -> Tensor:
    got: Tensor = _cpp.weight_quant_matmul(x, *given)
    doubles = [v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for v in given]
    exact = KERNELS["weight_quant_matmul"](x.double(), *doubles)
    sizes = [v.abs() if isinstance(v, Tensor) and v.is_floating_point() else v for v in doubles]
    # No element is larger than this: all signs alike, offsets added to the largest magnitude.
    reach = 144.0 if given[0].dtype == torch.int8 else 31.0
    largest = reach * float(sizes[1].max()) * x.double().abs().sum(-1, keepdim=True)
    bound = 2 * torch.finfo(got.dtype).eps * exact.abs() + (8 + x.shape[-1] / 16) * 2**-24 * largest
    assert got.shape == exact.shape and got.dtype == x.dtype
    assert bool(((got.double() - exact).abs() <= bound).all())
    return got


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 4, 9, 21, 97])
def test_eight_bits_in_both_layouts(dtype: torch.dtype, rows: int) -> None:
    for size, features in ((48, 40), (63, 17), (128, 200)):
        weight = torch.randint(-128, 128, (features, size), dtype=torch.int8)
        x = torch.randn(rows, size).to(dtype)
        scale, bias = (torch.rand(features) / 50).to(dtype), torch.randn(features)
        for x2 in (weight.t(), weight.t().contiguous(), weight.repeat_interleave(2, 1)[:, ::2].t()):
            _is_quantised_product(x, x2, scale)
            _is_quantised_product(x, x2, scale, torch.randint(-9, 9, (1, features)).to(dtype), bias)
            for group in {size, size // 3 if size % 3 == 0 else size // 8}:
                scales = (torch.rand(size // group, features) / 50).to(dtype)
                _is_quantised_product(x, x2, scales, None, None, group)
                _is_quantised_product(x, x2, scales, torch.randn_like(scales), bias, group)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 4, 20, 21])
def test_four_bits_in_both_orders(dtype: torch.dtype, rows: int) -> None:
    for size, features in ((48, 8), (60, 136), (128, 640)):
        x2 = torch.randint(-(2**31), 2**31, (size, features // 8), dtype=torch.int32)
        x = torch.randn(rows, size).to(dtype)
        for group in (0, 4, size // 2):
            groups = size // group if group else 1
            scale = (torch.rand(groups, features) / 50).to(dtype)
            zeros = torch.randint(-(2**31), 2**31, (groups, features // 8), dtype=torch.int32)
            bias = torch.randn(features).to(dtype)
            for form in (x2, x2.t().contiguous().t(), torch.cat((x2, x2), 1)[:, : features // 8]):
                plain = _is_quantised_product(x, form, scale, None, bias, group)
                awq = _is_quantised_product(x, form, scale, zeros, None, group)
                _is_quantised_product(x, form, scale, torch.randn_like(scale), None, group)
            assert not torch.equal(plain, awq)


def test_quantised_rows_have_the_same_bits_beside_any_others() -> None:
    x = torch.randn(20, 128)
    eight = torch.randint(-128, 128, (200, 128), dtype=torch.int8)
    four = torch.randint(-(2**31), 2**31, (128, 25), dtype=torch.int32)
    zeros = torch.randint(-(2**31), 2**31, (2, 25), dtype=torch.int32)
    forms = [(eight.t(), torch.rand(200)), (eight.t().contiguous(), torch.rand(200))]
    grouped = [(eight.t(), torch.rand(4, 200), None, None, 32), (four, torch.rand(2, 200), zeros, None, 64)]
    for given in (*forms, *grouped):
        together = _cpp.weight_quant_matmul(x, *given)
        for rows in (1, 2, 7, 8, 15):
            assert torch.equal(_cpp.weight_quant_matmul(x[:rows], *given), together[:rows])
            assert torch.equal(_cpp.weight_quant_matmul(x[-rows:], *given), together[-rows:])


# ---- integers times integers ----


@pytest.mark.parametrize("size", [1, 63, 64, 65, 200, 65536, 65600])
def test_sums_of_integers_are_exact(size: int) -> None:
    """Also where sums are as large as they can be, and beyond what 32 bits hold."""
    one = torch.ones(1)
    for rows, features in ((1, 1), (9, 19)):
        a = torch.randint(-128, 128, (rows, size), dtype=torch.int8)
        b = torch.randint(-128, 128, (features, size), dtype=torch.int8)
        a[0], b[0] = -128, -128
        got = _cpp.linear_w8a8(a, b, one, one, torch.float32, torch.int8)
        assert torch.equal(got, (a.double() @ b.double().mT).float())


def test_scales_and_bias_of_integers_in_any_shape() -> None:
    a = torch.randint(-128, 128, (2, 3, 70), dtype=torch.int8)
    b = torch.randint(-128, 128, (2 * 21, 2 * 70), dtype=torch.int8)[::2, ::2]
    bias = torch.randn(21)
    for rows, columns in (((2, 3, 1), (21, 1)), ((1,), (21,)), ((6,), (1,)), ((1,), (1, 1))):
        given = a, b, torch.rand(rows) / 100, torch.rand(columns) / 100
        got = _cpp.linear_w8a8(*given, torch.float16, torch.int8, bias)
        exact = KERNELS["linear_w8a8"](*given, torch.float64, torch.int8, bias)
        assert got.shape == (2, 3, 21) and torch.allclose(got.double(), exact, rtol=2**-10, atol=1e-4)


def test_fixed_quantisation_ends_at_the_range() -> None:
    x = torch.tensor([[1e9, -1e9, 0.5, 1.5, 2.5, -0.5, 126.4, torch.inf]])
    got = _cpp.linear_w8a8_static(
        x,
        torch.eye(8, dtype=torch.int8),
        torch.ones(1),
        torch.tensor([1]),
        torch.ones(8),
        torch.float32,
        torch.int8,
    )
    assert got.tolist() == [[127, -128, 1, 3, 3, 1, 127, 127]]
