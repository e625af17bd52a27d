"""The rules of the loop IR hold for kernels written by hand, and a kernel that breaks one is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sympy
import torch
from loop_kernels import I0, J0, column_sums, joined, softmax, t

from dicp.errors import InvalidGraphError
from dicp.loops.index import Affine, FloorQuotient, FloorRemainder, IndexRanges
from dicp.loops.ir import Compute, Loop, LoopKernel, Phase, PhasePart, RowNest, Store
from dicp.loops.text import kernel_text
from dicp.loops.verify import verify_kernel

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("kernel", [softmax(3, 5), column_sums(4, 6), joined(2, 3)])
def test_kernels_written_by_hand_are_valid(kernel: LoopKernel) -> None:
    verify_kernel(kernel)


def test_equal_kernels_are_equal() -> None:
    assert softmax(3, 5) == softmax(3, 5)
    assert hash(softmax(3, 5)) == hash(softmax(3, 5))
    assert softmax(3, 5) != softmax(5, 3)


def _with_body(*body: object) -> LoopKernel:
    part = PhasePart((Loop("j0", 0, 4),), body)  # type: ignore[arg-type]
    return replace(column_sums(4, 6), nests=(RowNest((Loop("i0", 0, 6),), (Phase((part,)),)),))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ((Compute(t(1), "exp", (t(0),)),), "read before it is computed"),
        ((Compute(t(1), "erf", (t(0),)), Store("p1", J0, t(1))), "read before"),
        ((Store("p1", Affine.of("k"), t(0)),), "read before"),
        ((Compute(t(1, torch.bool), "add", (1, 2)),), "not computed in"),
    ],
)
def test_a_kernel_that_breaks_a_rule_is_refused(body: tuple[object, ...], message: str) -> None:
    with pytest.raises((InvalidGraphError, TypeError), match=message):
        verify_kernel(_with_body(*body))


def test_values_of_a_column_are_not_read_by_the_next_phase() -> None:
    kernel = softmax(3, 5)
    nest = kernel.nests[0]
    first, *_ = nest.phases
    wrong = Phase((PhasePart((), (Store("p1", I0, t(0)),)),))
    with pytest.raises(InvalidGraphError, match="t0 is read before"):
        verify_kernel(replace(kernel, nests=(replace(nest, phases=(first, wrong)),)))


def test_text_shows_rows_phases_and_scratch() -> None:
    text = kernel_text(softmax(3, 5), "softmax")
    assert "softmax(p0: float32, p1: float32 out):" in text
    assert "row i0 in 0..3" in text
    assert "t1: float32 = reduce_max(t0)" in text
    assert "r0[j0] = t4" in text


def test_divisions_of_an_index_are_carried_out_where_ranges_allow() -> None:
    ranges = IndexRanges()
    index = ranges.linear(
        (ranges.variable("a", 3), ranges.variable("b", 4), ranges.variable("c", 5)), (3, 4, 5)
    )
    assert str(index) == "a * 20 + b * 5 + c"
    assert ranges.split(index, (12, 5)) == (Affine.of("a") * 4 + Affine.of("b"), Affine.of("c"))
    assert ranges.split(index, (60,)) == (index,)
    high, low = ranges.divmod(Affine.of("b") * 5 + Affine.of("c"), 3)
    assert high == Affine.of(FloorQuotient(Affine.of("b") * 5 + Affine.of("c"), 3))
    assert low == Affine.of(FloorRemainder(Affine.of("b") * 5 + Affine.of("c"), 3))


def test_an_index_that_runs_backwards_is_divided_by_its_bounds() -> None:
    ranges = IndexRanges()
    flipped = ranges.variable("a", 4) * -1 + 3
    assert ranges.divmod(flipped, 4) == (Affine(), flipped)


def test_symbolic_sizes_divide() -> None:
    s = sympy.Symbol("s0", integer=True, positive=True)
    ranges = IndexRanges()
    index = ranges.linear((ranges.variable("a", s), ranges.variable("b", 4)), (s, 4))
    assert ranges.split(index, (s, 2, 2)) == (
        Affine.of("a"),
        Affine.of(FloorQuotient(Affine.of("b"), 2)),
        Affine.of(FloorRemainder(Affine.of("b"), 2)),
    )
    assert ranges.split(index, (4 * s,)) == (index,)


def test_substitution_reaches_into_quotients() -> None:
    index = Affine.of(FloorQuotient(Affine.of("a") + 1, 3)) * 2
    replaced = index.substitute({"a": Affine.of("b") * 6})
    assert str(replaced) == "((b * 6 + 1) // 3) * 2"
