"""Declarations: gated activations."""

from __future__ import annotations

from torch import Tensor

from dlinfer.interface.checks import has_dtype, wrong
from dlinfer.interface.declaration import Operator


def _check_silu_and_mul(input_tensor: Tensor, dim: int) -> None:
    rank = input_tensor.dim()
    has_dtype("silu_and_mul", "input_tensor", input_tensor)
    if rank == 0:
        raise wrong("silu_and_mul", "input_tensor", "is a single number, expected [..., 2 * size]")
    if not -rank <= dim < rank:
        raise wrong(
            "silu_and_mul",
            "dim",
            f"is {dim}, expected a dimension of input_tensor {list(input_tensor.shape)}",
        )
    if input_tensor.shape[dim] % 2:
        raise wrong(
            "silu_and_mul",
            "input_tensor",
            f"has length {input_tensor.shape[dim]} in dim {dim}, expected an even length: gate, then up",
        )


def _fake_silu_and_mul(input_tensor: Tensor, dim: int) -> Tensor:
    shape = list(input_tensor.shape)
    shape[dim] = shape[dim] // 2
    return input_tensor.new_empty(shape)


OPERATORS = (
    Operator(
        name="silu_and_mul",
        schema="(Tensor input_tensor, int dim=-1) -> Tensor",
        summary="silu(first half) * second half along one dimension.",
        shapes={
            "input_tensor": "[..., 2 * size], floating: the gate, then what it gates",
            "dim": "the dimension that is halved",
        },
        results="[..., size], dtype of input_tensor",
        check=_check_silu_and_mul,
        fake=_fake_silu_and_mul,
        tolerance="elementwise",
    ),
)
