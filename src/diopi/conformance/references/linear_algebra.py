"""What the matrix functions of the interface mean, where an expression does not say it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from diopi.conformance.references.gradients import gradients

_DISTANCE_MODES = (
    "use_mm_for_euclid_dist_if_necessary",
    "use_mm_for_euclid_dist",
    "donot_use_mm_for_euclid_dist",
)


def linear_gradients(grad_output: Tensor, input: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """The gradients of input, weight and bias of `F.linear`."""
    return gradients(F.linear, grad_output, (input, weight, weight.new_zeros(weight.shape[0])))


def cholesky(mat: Tensor, upper: bool) -> tuple[Tensor | None, Tensor]:
    """The factor, if there is one, and for each matrix the order of the first minor that is not positive."""
    factor, info = torch.linalg.cholesky_ex(mat, upper=upper)
    return (None if info.any() else factor), info


def cholesky_gradient(grad_output: Tensor, L: Tensor, upper: bool) -> Tensor:
    """The gradient of the matrix whose factor is given."""
    matrix = L.mH @ L if upper else L @ L.mH
    (gradient,) = gradients(lambda a: torch.linalg.cholesky(a, upper=upper), grad_output, (matrix,))
    return gradient


def solved(
    b: Tensor, mat: Tensor, upper: bool, transpose: bool, unitriangular: bool
) -> tuple[Tensor, Tensor]:
    """The solution of one triangular system for each matrix of the batch, and the matrices."""
    batch = torch.broadcast_shapes(b.shape[:-2], mat.shape[:-2])
    mat = mat.expand(*batch, *mat.shape[-2:])
    b = b.expand(*batch, *b.shape[-2:])
    left, is_upper = (mat.mT, not upper) if transpose else (mat, upper)
    return torch.linalg.solve_triangular(left, b, upper=is_upper, unitriangular=unitriangular), mat


def solve_gradients(
    grad_x: Tensor | None,
    grad_cloned_mat: Tensor | None,
    x: Tensor,
    b: Tensor,
    mat: Tensor,
    upper: bool,
    transpose: bool,
    unitriangular: bool,
) -> tuple[Tensor, Tensor]:
    """The gradients of the right side and of the matrix, with the solution that is given."""
    grad_b, grad_mat = torch.zeros_like(x), torch.zeros_like(mat)
    if grad_x is not None:
        triangle = torch.triu(mat) if upper else torch.tril(mat)
        if unitriangular:
            ones = torch.eye(mat.shape[-1], dtype=mat.dtype)
            triangle = triangle - torch.diag_embed(triangle.diagonal(dim1=-2, dim2=-1)) + ones
        system = triangle.mT if transpose else triangle
        grad_b = torch.linalg.solve(system.mH, grad_x)
        grad_system = -grad_b @ x.mH
        grad_mat = grad_system.mT if transpose else grad_system
        off = 1 if unitriangular else 0
        grad_mat = torch.triu(grad_mat, off) if upper else torch.tril(grad_mat, -off)
    if grad_cloned_mat is not None:
        grad_mat = grad_mat + grad_cloned_mat
    return grad_b.sum_to_size(b.shape), grad_mat.sum_to_size(mat.shape)


def distance(input1: Tensor, input2: Tensor, p: float, compute_mode: int | None) -> Tensor:
    """The distance of each row of the first from each row of the second; the mode says how, not what."""
    return torch.cdist(input1, input2, p, _DISTANCE_MODES[compute_mode or 0])


def distance_gradient(
    grad_output: Tensor, input1: Tensor, input2: Tensor, p: float, cdist: Tensor, grad_input: Tensor | None
) -> Tensor:
    """The gradient of `input1`, with the distances that are given, in the shape that the caller wants."""
    difference = input1.unsqueeze(-2) - input2.unsqueeze(-3)
    size, sign = difference.abs(), difference.sign()
    if p == 0:
        slope = torch.zeros_like(size)
    elif p == float("inf"):
        slope = sign * (size == size.amax(-1, keepdim=True))
    elif p == 1:
        slope = sign
    else:
        far = cdist.unsqueeze(-1)
        slope = torch.where(far == 0, torch.zeros_like(size), sign * (size / far) ** (p - 1))
    gradient = (grad_output.unsqueeze(-1) * slope).sum(-2)
    return gradient.sum_to_size((input1 if grad_input is None else grad_input).shape)
