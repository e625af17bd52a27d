"""Lining up two sequences of calls: valid, as short as possible, quick, and at the right place in repeated patterns."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from op_tools.diff import alignment
from op_tools.diff.alignment import align, matches, possible_share
from op_tools.diff.pairing import pair_up
from op_tools.diff.report import Report
from op_tools.diff.sequence import RecordedCall, Sequences
from op_tools.runs import BadInput

pytestmark = pytest.mark.unit

few_symbols = st.lists(st.integers(0, 4), max_size=14)


def longest_common(first: Sequence[int], second: Sequence[int]) -> int:
    """By the textbook's table."""
    above = [0] * (len(second) + 1)
    for x in first:
        row = [0]
        for j, y in enumerate(second):
            row.append(above[j] + 1 if x == y else max(above[j + 1], row[j]))
        above = row
    return above[-1]


def assert_valid(script: Any, first: Sequence[int], second: Sequence[int]) -> None:
    assert [i for i, _ in script if i is not None] == list(range(len(first)))
    assert [j for _, j in script if j is not None] == list(range(len(second)))
    assert all(first[i] == second[j] for i, j in script if i is not None and j is not None)


@settings(max_examples=300, deadline=None)
@given(few_symbols, few_symbols, st.integers(0, 5))
def test_a_script_is_valid_and_as_short_as_can_be(first: list[int], second: list[int], seed: int) -> None:
    chance = random.Random(seed)
    likes = {(i, j): chance.random() < 0.5 for i in range(len(first)) for j in range(len(second))}
    for script in (align(first, second), align(first, second, lambda i, j: likes[i, j])):
        assert_valid(script, first, second)
        paired = sum(i is not None and j is not None for i, j in script)
        assert paired == longest_common(first, second)
    if first and second:
        assert (
            longest_common(first, second)
            <= possible_share(first, second) * min(len(first), len(second)) + 1e-9
        )


@settings(max_examples=200, deadline=None)
@given(few_symbols, few_symbols)
def test_a_search_that_is_cut_off_is_still_valid(first: list[int], second: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alignment, "FIRST_LIMIT", 2)
        patch.setattr(alignment, "NEXT_LIMIT", 1)
        assert_valid(align(first, second), first, second)


def test_long_runs_with_few_differences() -> None:
    chance = random.Random(3)
    first = [chance.randrange(300) for _ in range(200_000)]
    second = list(first)
    for place in sorted(chance.sample(range(len(second)), 60), reverse=True):
        if place % 2:
            del second[place]
        else:
            second.insert(place, 1000)
    found = matches(first, second)
    assert len(found) == len(second) - second.count(1000)
    assert all(first[x] == second[y] for x, y in found)


def test_runs_with_little_in_common_end_soon() -> None:
    first = list(range(100_000))
    assert matches(first, [x + 100_000 for x in first]) == []
    backwards = matches(first[:20_000], first[:20_000][::-1])
    assert_valid(alignment.script_of(backwards, 20_000, 20_000), first[:20_000], first[:20_000][::-1])
    assert len(backwards) >= 1


def test_an_inserted_group_is_found_by_what_fits_around_it() -> None:
    pattern = [1, 2, 3]
    first_shapes = ["a", "b", "c", "d"]
    second_shapes = ["a", "b", "x", "c", "d"]
    first, second = pattern * 4, pattern * 5

    def fits(i: int, j: int) -> bool:
        return first_shapes[i // 3] == second_shapes[j // 3]

    script = align(first, second, fits)
    assert [j for i, j in script if i is None] == [6, 7, 8]
    assert all(fits(i, j) for i, j in script if i is not None and j is not None)


def test_two_holes_in_two_patterns_are_not_taken_for_one() -> None:
    """An optimizer makes states for all parameters and then updates all; one run has a parameter more."""
    shapes, fewer = "abcde", "abce"
    first, second = [1] * 5 + [2, 3] * 5, [1] * 4 + [2, 3] * 4

    def shape(names: str, place: int) -> str:
        return names[place] if place < len(names) else names[(place - len(names)) // 2]

    script = align(first, second, lambda i, j: shape(shapes, i) == shape(fewer, j))
    assert [i for i, j in script if j is None] == [3, 11, 12]


def calls(
    *names: str, place: str = "f: line", step: int = 0, rank: int = 0, **row: Any
) -> list[RecordedCall]:
    return [
        RecordedCall(
            {"name": name, "call_site": f"/x/{rank}.py:7 {place}", "step": step, "rank": rank, **row}
        )
        for name in names
    ]


def paired(first: list[RecordedCall], second: list[RecordedCall]) -> list[tuple[str, str]]:
    entries = pair_up(Sequences({0: first}), Sequences({0: second}), [])
    return [(e.a.name if e.a else "", e.b.name if e.b else "") for e in entries]


def test_steps_are_lined_up_one_by_one() -> None:
    first = calls("x", "y", step=0) + calls("x", "y", step=1) + calls("x", "y", step=2)
    second = calls("x", "y", step=0) + calls("x", "y", step=2)
    assert paired(first, second) == [("x", "x"), ("y", "y"), ("x", ""), ("y", ""), ("x", "x"), ("y", "y")]
    # Numbers that few steps share tell nothing: two runs of one process, or one that was resumed.
    later = calls("x", step=2) + calls("x", "y", step=3) + calls("x", "y", step=4)
    assert paired(first, later) == [("x", "x"), ("y", ""), ("x", "x"), ("y", "y"), ("x", "x"), ("y", "y")]
    assert paired(first, calls("x", "y", step=7)) == [("x", "x"), ("y", "y")] + [("x", ""), ("y", "")] * 2


def test_file_and_line_number_do_not_matter_but_the_source_does() -> None:
    here = [RecordedCall({"name": "x", "call_site": "/here/a.py:3 f: y = g(x)"})] * 3
    there = [RecordedCall({"name": "x", "call_site": "/there/b.py:99 f: y = g(x)"})] * 3
    changed = [RecordedCall({"name": "x", "call_site": "/there/b.py:99 f: y = g(x, 1)"})]
    assert paired(here, there) == [("x", "x")] * 3
    # A changed line between known ones is the same call; a run of nothing but other lines is another program.
    assert paired(here[:2] + here[:1], there[:1] + changed + there[:1]) == [("x", "x")] * 3
    with pytest.raises(BadInput, match="two different scripts: at most 0%") as caught:
        paired(here, changed * 3)
    assert caught.value.code == 5 and "call 1: A x in f: y = g(x)" in str(caught.value)


def test_moving_to_a_device_is_one_call_whatever_it_is_called() -> None:
    assert paired(calls("torch.Tensor.cuda"), calls("torch.Tensor.to")) == [
        ("torch.Tensor.cuda", "torch.Tensor.to")
    ]


def test_ranks_are_compared_pairwise_and_missing_ones_are_named() -> None:
    notes: list[str] = []
    a = Sequences({0: calls("x", "y"), 1: calls("x", "y", rank=1), 2: calls("x", rank=2)})
    b = Sequences({0: calls("x", "y"), 1: calls("y", rank=1)})
    entries = pair_up(a, b, notes)
    assert [(e.rank, e.pairing) for e in entries] == [(0, "aligned")] * 2 + [(1, "only in A"), (1, "aligned")]
    assert notes == ["only A has rank 2: not compared."]
    with pytest.raises(BadInput, match="no rank in common"):
        pair_up(Sequences({0: calls("x")}), Sequences({1: calls("x", rank=1)}), [])


def by_thread(*pieces: tuple[int, str], **row: Any) -> list[RecordedCall]:
    """Calls of several threads, in the order of the log."""
    return [
        RecordedCall({"name": name, "call_site": f"/x.py:1 f{thread % 10}: y", "thread": thread, **row})
        for thread, names in pieces
        for name in names
    ]


def test_threads_are_lined_up_one_by_one() -> None:
    first = by_thread((11, "ab"), (22, "xyz"), (11, "cdefg"), (22, "uvw"))
    second = by_thread((71, "a"), (92, "xyzuvw"), (71, "bcdefg"))
    entries = pair_up(Sequences({0: first}), Sequences({0: second}), [])
    assert {entry.pairing for entry in entries} == {"aligned"} and len(entries) == 13
    # In the order of B, whatever the order of the threads.
    assert [entry.call.name for entry in entries] == list("axyzuvwbcdefg")
    # The second thread of B began first: what a thread does tells which it is.
    assert paired(first, by_thread((52, "xyzuvw"), (61, "abcdefg"))) == [(x, x) for x in "xyzuvwabcdefg"]


def test_threads_that_do_the_same_are_told_apart_by_first_appearance() -> None:
    first, second = by_thread((11, "ab"), (21, "ab")), by_thread((31, "a"), (41, "ab"), (31, "b"))
    entries = pair_up(Sequences({0: first}), Sequences({0: second}), [])
    pairs = {(e.a.row["thread"], e.b.row["thread"]) for e in entries if e.a and e.b}
    assert pairs == {(11, 31), (21, 41)} and len(entries) == 4


def test_a_number_that_two_threads_had_one_after_the_other_is_no_difference() -> None:
    first = by_thread((11, "abc"), (1, "pq")) + by_thread((11, "abc"), (1, "r"))
    second = by_thread((11, "abc"), (1, "pq")) + by_thread((21, "abc"), (1, "r"))
    assert paired(first, second) == [(name, name) for name in "abcpqabcr"]


def test_backward_belongs_to_the_thread_of_its_forward_call() -> None:
    def run(engine: int, other_first: bool) -> list[RecordedCall]:
        forward = by_thread((1, "ab"), (2, "kl"))
        for number, call in enumerate(forward):
            dict.__setitem__(call.row, "forward_id", number)  # type: ignore[index]
        back = [
            RecordedCall({**forward[number].row, "thread": engine, "phase": "backward", "name": f"{name}'"})
            for number, name in ((1, "b"), (0, "a"), (3, "l"), (2, "k"))
        ]
        return forward + (back[2:] + back[:2] if other_first else back)

    entries = pair_up(Sequences({0: run(8, False)}), Sequences({0: run(9, True)}), [])
    assert {entry.pairing for entry in entries} == {"aligned"} and len(entries) == 8


def test_the_first_call_is_the_first_whatever_either_run_calls_its_step() -> None:
    """B was resumed at step 100. The early fault is in B, the late one in A."""
    first = calls("x", "y", step=0) + calls("x", "y", step=1)
    second = calls("x", "y", step=100) + calls("x", "y", step=101)
    entries = pair_up(Sequences({0: first}), Sequences({0: second}), [])
    for entry, side in ((entries[0], "B"), (entries[3], "A")):
        entry.status, entry.side = "wrong", side
    report = Report(Path("a"), Path("b"), "captures", entries)
    assert report.first is entries[0] and report.reported == [entries[0], entries[3]]
    assert [entry.step for entry in entries] == [0, 0, 1, 1]


def test_levels_are_not_mixed() -> None:
    a, b = Sequences({0: calls("x", level="aten")}), Sequences({0: calls("x", level="api")})
    with pytest.raises(BadInput, match="A was recorded at level aten, B at level api") as caught:
        pair_up(a, b, [])
    assert caught.value.code == 2
