"""Entries of PyTorch's operator database, lowered and interpreted; `benchmarks/dicp_opinfo.py` takes all of them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

from dicp_opinfo import Task, check
from op_tools.categories import names_in

pytestmark = pytest.mark.unit

FORWARD = names_in(
    "addr argmax as_strided cat cdist cummax diff div.floor_rounding einsum fmod gather index_add index_put kron lerp"
    " linalg.norm logaddexp logcumsumexp masked.softmax median nn.functional.avg_pool2d nn.functional.cross_entropy"
    " nn.functional.grid_sample nn.functional.layer_norm nn.functional.pad.circular nn.functional.pixel_shuffle"
    " nn.functional.scaled_dot_product_attention nn.functional.unfold nn.functional.upsample_bilinear remainder roll"
    " scatter_reduce.amax searchsorted sort std_mean.unbiased take_along_dim tril unique_consecutive var xlogy"
)
BACKWARD = names_in(
    "cumprod gather linalg.vector_norm logsumexp masked_fill nn.functional.batch_norm nn.functional.conv2d"
    " nn.functional.embedding nn.functional.gelu nn.functional.group_norm nn.functional.max_pool2d prod softmax std where"
)


@pytest.mark.parametrize("entry", sorted(FORWARD))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_forward(entry: str, dtype: str) -> None:
    outcome = check(Task(entry, dtype, "reference", 2, False))
    assert set(outcome.states) <= {"right", "not traced"}, outcome.details


@pytest.mark.parametrize("entry", sorted(BACKWARD))
def test_backward(entry: str) -> None:
    outcome = check(Task(entry, "float32", "reference", 2, True))
    assert set(outcome.states) == {"right"}, outcome.details
