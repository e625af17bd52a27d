"""Every operator, every call form, every argument: what is wrong is refused by name, by every vendor, with nothing written.

A part of `python tests/dlinfer/dlinfer_arguments.py`, whose judge is judged here too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any
from zlib import crc32

import pytest
import torch
from dlinfer_arguments import Trial, outcome, problem, trials
from dlinfer_call_forms import Form, forms
from torch import Tensor

from dlinfer import ops
from dlinfer.conformance.samples import SAMPLES, make
from dlinfer.errors import DlinferArgumentError
from dlinfer.interface import OPERATORS
from dlinfer.interface.sharing import lies_over_itself, overlap
from dlinfer.vendors import Vendor, using

pytestmark = [pytest.mark.unit, pytest.mark.filterwarnings("ignore:Casting complex values")]

# Of each operator's trials one in so many; another in each operator.
ONE_IN = 9


@pytest.mark.parametrize("operator", list(OPERATORS))
def test_what_is_wrong_is_refused_by_name(operator: str) -> None:
    pytest.importorskip("dlinfer._cpp")
    first = crc32(operator.encode())
    chosen = [trial for n, trial in enumerate(trials(operator, 0)) if (n + first) % ONE_IN == 0]
    found = {str(trial): problem(trial)[0] for trial in chosen}
    assert len(found) > 3 and not any(found.values()), {key: text for key, text in found.items() if text}


def test_every_argument_of_every_operator_is_tried() -> None:
    for operator in SAMPLES:
        tried = {trial.argument for trial in trials(operator, 0) if trial.form.name == "torch.ops"}
        assert tried == set(OPERATORS[operator].arguments), operator


def test_a_tensor_on_another_device_is_refused() -> None:
    pytest.importorskip("torch_dipu")
    found = {}
    for operator in OPERATORS:
        form = forms(operator, make(operator, 0).arguments)[0]
        tensors = [name for name, value in form.arguments.items() if isinstance(value, Tensor)]
        for name in tensors if len(tensors) > 1 else ():
            moved = replace(form, arguments={**form.arguments, name: form.arguments[name].to("dipu")})
            trial = Trial(moved, name, "on dipu")
            found[str(trial)] = outcome(trial, "ref")
    assert len(found) > 90
    assert all(one.kind == "refused" for one in found.values()), {
        k: v for k, v in found.items() if v.kind != "refused"
    }


def test_other_errors_of_a_kernel_stay_what_they_are() -> None:
    def full(*_: Any) -> None:
        raise RuntimeError("no memory left")

    vendor = Vendor("full", "1", {"apply_rotary_pos_emb": full}, devices=("cpu",))
    states, table = torch.ones(3, 2, 8), torch.ones(3, 8)
    with using(vendor):
        for targets in ((), (torch.empty_like(states), torch.empty_like(states))):
            with pytest.raises(RuntimeError, match="no memory left"):
                ops.apply_rotary_pos_emb(states, states, table, table, *targets)


def test_masks_that_fit_nothing_are_refused() -> None:
    """A mask that hides and one that is added would become one that adds 1."""
    hides, added = torch.zeros(3, 3, dtype=torch.bool), torch.zeros(3, 3)
    states, lengths = torch.ones(6, 2, 8), torch.tensor([3, 3])
    starts = torch.tensor([0, 3])
    given = (states, states, states, None, None, starts, lengths, lengths, 3, 2, 2)
    ops.prefill_attention(*given, [hides, hides])
    with pytest.raises(
        DlinferArgumentError, match=r"attn_mask: has masks of torch\.bool on cpu, torch\.float32"
    ):
        ops.prefill_attention(*given, [hides, added])
    for lengths_of_keys in (
        torch.tensor([6]),
        torch.tensor([[3, 3]]),
        torch.tensor(6),
        lengths.to(torch.complex64),
    ):
        with pytest.raises(DlinferArgumentError, match="kv_seq_len"):
            ops.prefill_attention(*given[:7], lengths_of_keys, *given[8:], [hides, hides])
    batch = states.view(2, 3, 2, 8)
    ops.fused_attention(batch, batch, batch, [hides, hides])
    for other in (added, hides[:2]):
        with pytest.raises(DlinferArgumentError, match="fused_attention: mask: has"):
            ops.fused_attention(batch, batch, batch, [hides, other])


# ---- the judge ----


def judged(call: Callable[..., Any], **arguments: Any) -> str:
    form = Form(
        "rms_norm",
        "torch.ops",
        call,
        {"hidden_states": torch.ones(2, 4), "weight": torch.ones(4), **arguments},
    )
    return problem(Trial(form, "weight", "None"), ("ref",))[0]


def raising(error: Exception, spoilt: str = "") -> Callable[..., Any]:
    def call(**given: Any) -> Any:
        if spoilt:
            given[spoilt].zero_()
        raise error

    return call


def test_the_judge_sees_what_is_wrong() -> None:
    right = DlinferArgumentError("rms_norm", "weight", "is None, expected a tensor")
    assert judged(raising(right)) == ""
    assert judged(lambda **given: given["hidden_states"], weight=None) == "let through"
    assert judged(raising(AttributeError("NoneType has no shape"))).startswith("ref: AttributeError")
    other = DlinferArgumentError("rms_norm", "epsilon", "is wrong")
    assert "does not name it" in judged(raising(other))
    assert "refused after hidden_states was written" in judged(raising(right, "hidden_states"))


# ---- memory ----


def strided(draw: random.Random, room: Tensor) -> Tensor:
    shape = [draw.randint(1, 3) for _ in range(draw.randint(1, 3))]
    strides = [draw.choice((0, 1, 2, 3, 4, 6, 7)) for _ in shape]
    return room.as_strided(shape, strides, draw.randint(0, 20))


def addresses(value: Tensor) -> list[int]:
    """The bytes of all elements, one after the other."""
    numbers = product(*(range(length) for length in value.shape))
    starts = [sum(n * s for n, s in zip(one, value.stride(), strict=True)) for one in numbers]
    return [
        value.data_ptr() + start * value.itemsize + byte for start in starts for byte in range(value.itemsize)
    ]


def test_tensors_that_overlap_are_told_from_those_that_lie_between_each_other() -> None:
    draw, room = random.Random(5), torch.zeros(128, dtype=torch.int16)
    rooms = (room, room.view(torch.int32), room.view(torch.int8))
    seen = set()
    for _ in range(1500):
        one, two = strided(draw, draw.choice(rooms)), strided(draw, draw.choice(rooms))
        mine, other = addresses(one), addresses(two)
        assert overlap(one, two) == bool(set(mine) & set(other)), (one.stride(), two.stride())
        assert lies_over_itself(one) == (len(set(mine)) < len(mine)), (one.shape, one.stride())
        between = max(min(mine), min(other)) <= min(max(mine), max(other))
        seen.add((between, overlap(one, two), lies_over_itself(one)))
    assert {(True, False, False), (True, True, False), (False, False, True)} <= seen


def fill(key_cache: Tensor, value_cache: Tensor) -> None:
    states = torch.randn(3, 2, 8)
    ops.fill_kv_cache(states, states + 1, key_cache, value_cache, torch.tensor([0, 5, 7]))
    assert torch.equal(key_cache.flatten(0, 1)[5], states[1])
    assert torch.equal(value_cache.flatten(0, 1)[5], states[1] + 1)


def test_caches_may_lie_between_each_other_but_not_on_each_other() -> None:
    pool = torch.zeros(2, 2, 4, 2, 16)
    for caches in (pool[0, ..., :8], pool[1, ..., :8]), (pool[0, ..., :8], pool[0, ..., 8:]):
        fill(*caches)
    flat = torch.zeros(200)
    one, two = flat[:128].view(2, 4, 2, 8), flat[72:].view(2, 4, 2, 8)
    with pytest.raises(DlinferArgumentError, match="value_cache: overlaps key_cache in memory"):
        fill(one, two)
    assert not flat.any()


def test_an_output_may_be_the_query_in_one_matrix_with_keys_and_values() -> None:
    packed = torch.randn(5, 8, 16)
    query, key, value = packed[:, :4], packed[:, 4:6], packed[:, 6:]
    lengths = torch.tensor([3, 2])

    def attend(output: Tensor | None) -> Tensor:
        return ops.prefill_attention(
            query, key, value, None, None, lengths, lengths, 3, 4, 2, [], attn_output=output, causal=True
        )

    wanted, keys = attend(None), key.clone()
    with pytest.raises(DlinferArgumentError, match="attn_output: overlaps key"):
        attend(packed[:, 4:])
    assert torch.equal(attend(query), wanted) and torch.equal(key, keys)
