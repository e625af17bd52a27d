"""The reference beside an independent account of the same operators, over the samples of the conformance suite."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import second_opinion
import torch
from torch import Tensor

from dlinfer.conformance.samples import SAMPLES, make
from dlinfer.interface import OPERATORS
from dlinfer.interface.registry import OVERLOADS

pytestmark = pytest.mark.unit

# So that a test takes about a second: how many float32 cases of each, at least one for every label.
COUNTS = {
    "prefill_attention": 19,
    "paged_prefill_attention": 30,
    "paged_decode_attention": 50,
    "sparse_flash_attention": 24,
    "fused_moe": 30,
    "weight_quant_matmul": 21,
    "apply_rotary_pos_emb": 15,
}


def _plain(value: Any) -> Any:
    return value.contiguous().numpy().copy() if isinstance(value, Tensor) else value


@pytest.mark.parametrize("name", COUNTS)
def test_the_reference_agrees_with_a_second_opinion(name: str) -> None:
    operator = OPERATORS[name]
    labels = set()
    for number in range(0, 3 * COUNTS[name], 3):
        case = make(name, number)
        assert case.dtype == "float32"
        labels.add(case.label)
        given = {key: _plain(value) for key, value in case.arguments.items()}
        wanted = getattr(second_opinion, name)(given)
        returned = OVERLOADS[name](*operator.bound((), case.arguments).values())
        got = case.arguments[operator.writes[0]] if operator.writes else returned
        for one, other in zip(
            got if isinstance(got, tuple) else (got,),
            wanted if isinstance(wanted, tuple) else (wanted,),
            strict=True,
        ):
            scale = max(1e-3, float(np.abs(other).max(initial=0)))
            torch.testing.assert_close(
                one.double(),
                torch.from_numpy(np.asarray(other)),
                atol=2e-5 * scale,
                rtol=0,
                msg=lambda text, case=case: f"{case.id} {case.label}: {text}",
            )
    assert labels == set(SAMPLES[name].labels)
