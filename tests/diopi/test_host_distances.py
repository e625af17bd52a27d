"""The host's gradient of distances takes both shapes that callers want it in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fresh_process import fresh
from host_calls import run, values


def _given(x1: torch.Tensor, x2: torch.Tensor) -> dict[str, Any]:
    distances = torch.cdist(x1, x2)
    return {
        "grad_output": torch.ones_like(distances),
        "input1": x1,
        "input2": x2,
        "p": 2.0,
        "cdist": distances,
    }


@fresh
@pytest.mark.parametrize("shape", [(4, 1, 2), (1, 2)])
def test_of_the_common_batch_or_of_the_points(shape: tuple[int, ...]) -> None:
    x1, x2 = torch.tensor([[3.0, 4.0]]), torch.zeros(4, 1, 2)
    got = values("diopiCdistBackward", _given(x1, x2) | {"grad_input": torch.empty(shape)})["grad_input"]
    one = torch.tensor([0.6, 0.8])  # the point's direction from the origin, for each of four origins
    torch.testing.assert_close(got, one.expand(shape) if len(shape) == 3 else 4 * one.expand(shape))


@fresh
@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 2)])
def test_without_pairs_it_is_zero(shape: tuple[int, ...]) -> None:
    given = _given(torch.ones(3, 2), torch.ones(0, 5, 2))
    got = values("diopiCdistBackward", given | {"grad_input": torch.full(shape, 7.0)})["grad_input"]
    assert got.shape == shape and not got.any()


@fresh
def test_another_shape_is_refused() -> None:
    ran = run(
        "diopiCdistBackward",
        _given(torch.ones(3, 2), torch.ones(0, 5, 2)) | {"grad_input": torch.empty(2, 2)},
    )
    assert ran.code == 1 and "does not belong" in ran.error
