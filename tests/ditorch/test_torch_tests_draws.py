"""Which calls draw random numbers that another device cannot be expected to repeat."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.testing._internal.common_methods_invocations import wrapper_set_seed

from _ditorch.torch_tests.opinfo.inputs import Draws


def drawn(run) -> bool:
    with Draws() as draws:
        run()
    return draws.seen


def test_draws_are_seen_also_where_the_generator_is_put_back() -> None:
    assert drawn(lambda: torch.randn(3))
    assert drawn(lambda: F.dropout(torch.ones(8)))
    assert drawn(lambda: wrapper_set_seed(torch.randn, 3)), (
        "its generator's state is the same before and after"
    )


def test_plain_arithmetic_and_a_generator_of_ones_own_are_no_draws() -> None:
    assert not drawn(lambda: torch.ones(3).exp())
    assert not drawn(lambda: torch.randn(3, generator=torch.Generator().manual_seed(1)))
