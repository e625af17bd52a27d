"""RMS normalisation: one program for a few rows, everything between load and store in registers."""

from __future__ import annotations

import torch
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

from dlinfer.interface.norms import fake_quantised
from dlinfer.vendors.triton.arithmetic import quantised_row
from dlinfer.vendors.triton.language import cdiv, has_float8, power_above, reference
from dlinfer.vendors.triton.launching import Launcher

# Rows longer than this do not fit into the registers of one program.
LONGEST = 32768
# Elements that one program takes, if rows are short.
_ELEMENTS = 2048


@Launcher
def _norm_kernel(
    hidden: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    out: tl.tensor,
    total_out: tl.tensor,
    scales: tl.tensor,
    rows: tl.tensor,
    size: tl.tensor,
    hidden_stride: tl.tensor,
    residual_stride: tl.tensor,
    weight_stride: tl.tensor,
    epsilon: tl.tensor,
    QUANTISED: tl.constexpr,
    FLOAT8: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    inside = (row < rows)[:, None] & (column < size)[None, :]
    x = tl.load(hidden + row[:, None] * hidden_stride + column[None, :], mask=inside, other=0)
    place = row[:, None] * size + column[None, :]
    if residual is not None:
        other = tl.load(residual + row[:, None] * residual_stride + column[None, :], mask=inside, other=0)
        x = (x.to(tl.float32) + other.to(tl.float32)).to(x.dtype)
        tl.store(total_out + place, x, mask=inside)
    x = x.to(tl.float32)
    mean = tl.sum(x * x, 1) / size
    root = tl.math.div_rn(tl.full([ROWS], 1.0, tl.float32), tl.math.sqrt_rn(mean + epsilon))
    factor = tl.load(weight + column * weight_stride, mask=column < size, other=0).to(tl.float32)
    y = x * root[:, None] * factor[None, :]
    if QUANTISED:
        number, scale = quantised_row(y, FLOAT8)
        tl.store(out + place, number, mask=inside)
        tl.store(scales + row, scale, mask=row < rows)
    else:
        tl.store(out + place, y.to(out.dtype.element_ty), mask=inside)


def rows_of(value: Tensor) -> Tensor:
    """[rows, size] with elements side by side; a view if there is one."""
    flat = value if value.dim() == 2 else value.reshape(-1, value.shape[-1])
    return flat if flat.stride(1) == 1 or flat.shape[1] <= 1 else flat.contiguous()


def row_shape(size: int) -> tuple[int, int, int]:
    """(rows of a program, columns of it, warps) for rows of some size."""
    columns = power_above(size)
    rows = max(1, min(16, _ELEMENTS // columns // 2))
    return rows, columns, min(16, max(1, rows * columns // 512))


def _run(
    hidden_states: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    epsilon: float,
    quant_dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """(norm, scales, sum)."""
    hidden = rows_of(hidden_states)
    other = None if residual is None else rows_of(residual)
    scales = None
    if quant_dtype is None:
        out = torch.empty_like(hidden_states, memory_format=torch.contiguous_format)
    else:
        out, scales = fake_quantised(hidden_states, quant_dtype)
    total = (
        None if residual is None else torch.empty_like(hidden_states, memory_format=torch.contiguous_format)
    )
    count, size = hidden.shape
    if count:
        rows, columns, warps = row_shape(size)
        _norm_kernel(
            (cdiv(count, rows),), (hidden, other, weight, out, total, scales),
            (count, size, hidden.stride(0), 0 if other is None else other.stride(0), weight.stride(0), epsilon),
            QUANTISED=scales is not None, FLOAT8=quant_dtype == torch.float8_e4m3fn,
            ROWS=rows, COLUMNS=columns, num_warps=warps,
        )  # fmt: skip
    return out, scales, total


def served(rows: Tensor, quant_dtype: torch.dtype | None = None) -> bool:
    """Whether there are kernels for such rows, and for what they shall become."""
    if quant_dtype == torch.float8_e4m3fn and not has_float8(rows.device):
        return False
    return 0 < rows.shape[-1] <= LONGEST


def rms_norm(hidden_states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """`rms_norm` of the interface."""
    if not served(hidden_states):
        return reference("rms_norm", hidden_states, weight, epsilon)
    return _run(hidden_states, None, weight, epsilon, None)[0]


def add_rms_norm(
    hidden_states: Tensor, residual: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """`add_rms_norm` of the interface."""
    if not served(hidden_states):
        return reference("add_rms_norm", hidden_states, residual, weight, epsilon)
    norm, _, total = _run(hidden_states, residual, weight, epsilon, None)
    assert total is not None
    return norm, total


def rms_norm_w8a8(
    hidden_states: Tensor, weight: Tensor, epsilon: float, quant_dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """`rms_norm_w8a8` of the interface."""
    if not served(hidden_states, quant_dtype):
        return reference("rms_norm_w8a8", hidden_states, weight, epsilon, quant_dtype)
    norm, scales, _ = _run(hidden_states, None, weight, epsilon, quant_dtype)
    assert scales is not None
    return norm, scales


def add_rms_norm_w8a8(
    hidden_states: Tensor, residual: Tensor, weight: Tensor, epsilon: float, quant_dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """`add_rms_norm_w8a8` of the interface."""
    if not served(hidden_states, quant_dtype):
        return reference("add_rms_norm_w8a8", hidden_states, residual, weight, epsilon, quant_dtype)
    norm, scales, total = _run(hidden_states, residual, weight, epsilon, quant_dtype)
    assert scales is not None and total is not None
    return norm, scales, total
