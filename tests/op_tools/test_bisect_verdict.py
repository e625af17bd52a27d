"""The search of bisect where the loss does not tell: by the verdicts on each operator, with runs that are made up."""

from __future__ import annotations

import json

import pytest
from test_bisect_search import SEEN, MadeUp, hunt_for

from op_tools.bisect import printing
from op_tools.bisect.bisection import Bisection
from op_tools.bisect.readings import Reading, pattern_of
from op_tools.bisect.running import Suspicion
from op_tools.runs import BadInput

pytestmark = pytest.mark.unit

OFF = Suspicion("fail", 3.0, "3 of 4 elements are off", "train.py:7 main: x.op9()")
DROPOUT = "aten.native_dropout.default"  # OpFallback leaves it on the device


def test_what_the_first_run_judged_wrong_is_the_answer_where_the_loss_does_not_differ() -> None:
    runner = MadeUp(lambda on: (2.0,))
    runner.suspected = {SEEN[9]: OFF, SEEN[2]: Suspicion("lower_precision", 1e6, "behaves like TF32")}
    runner.hidden = {SEEN[4]: Suspicion("fail", 1.5, "1 of 4 elements is off")}
    lines: list[str] = []
    hunt = Bisection(runner, lambda run: lines.extend(printing.found_lines(run)))
    assert hunt.run() == (SEEN[9], SEEN[4])
    assert lines[0] == "     judged wrong: aten.op9.default: 3 of 4 elements are off"
    assert lines[1] == "     lower precision: aten.op2.default: behaves like TF32"
    assert [run.restored for run in hunt.runs] == [None, None, False, True]
    text = printing.answer(hunt)
    assert "the result is the same with every operator on the CPU (relative difference 0.0e+00)" in text
    assert "2 operators are judged wrong; 4 runs:\n    aten.op9.default\n        judged wrong: 3 of 4" in text
    assert "no other operator is judged wrong" in text
    assert "OP_FALLBACK_LIST=aten.op9.default,aten.op4.default ditorch run" in text
    assert json.loads(printing.as_json(hunt, 0))["by"] == "verdict"
    with pytest.raises(BadInput, match="nothing to search: the result is the same"):
        hunt_for(runner, by="loss").run()


def test_a_random_operator_that_is_judged_wrong_is_named_and_stays() -> None:
    runner = MadeUp(lambda on: (2.0,))
    runner.suspected = {DROPOUT: Suspicion("fail", 0.0, "a rate of 0.2 in 4096 draws, expected 0.1")}
    hunt = hunt_for(runner)
    assert hunt.run() == ()
    assert (hunt.stays, len(hunt.runs)) == ((DROPOUT,), 2)
    text = printing.answer(hunt)
    assert (
        "1 operator is judged wrong; 2 runs:\n    aten.native_dropout.default\n        judged wrong: a rate"
        in text
    )
    assert "stays on the device" in text
    assert "OP_FALLBACK_LIST" not in text


def test_a_difference_that_rounding_explains_is_no_question_for_the_loss() -> None:
    """The device adds in another order: the loss differs, and no list of operators is to blame for that."""
    runner = MadeUp(lambda on: (1.0 + 3e-5 * (len(on) < len(SEEN)),))
    runner.rounding = 1e-5
    runner.suspected = {SEEN[9]: OFF}
    hunt = hunt_for(runner)
    assert hunt.run() == (SEEN[9],)
    assert hunt.noise == pytest.approx(1e-5)
    assert "differs by 3.0e-05, and rounding alone makes it differ by 1.0e-05" in printing.answer(hunt)
    runner.suspected = {}
    with pytest.raises(
        BadInput, match=r"makes it differ by 1\.0e-05; .* judged every call .* found none wrong"
    ) as caught:
        hunt_for(runner).run()
    assert caught.value.code == 5


def test_a_difference_beyond_rounding_is_searched_by_loss() -> None:
    runner = MadeUp(lambda on: (1.0 + 3e-5 * (SEEN[4] not in on),))
    runner.rounding = 1e-6
    hunt = hunt_for(runner)
    assert hunt.run() == (SEEN[4],)
    assert not hunt.by_verdict
    # An operator that is judged wrong and restores the result settles it without a run for the rounding.
    runner.suspected = {SEEN[4]: OFF}
    settled = hunt_for(runner)
    assert settled.run() == (SEEN[4],)
    assert (len(settled.runs), settled.noise) == (3, None)
    # What is judged wrong and not needed is said all the same.
    runner.suspected = {SEEN[4]: OFF, SEEN[8]: OFF}
    both = hunt_for(runner)
    assert both.run() == (SEEN[4],)
    assert "also judged wrong" in printing.answer(both) and SEEN[8] in printing.answer(both)


def test_by_verdict_needs_no_result_and_judges_every_call() -> None:
    runner = MadeUp(lambda on: ())
    with pytest.raises(BadInput, match=r"judged every call on the device.* found none wrong") as caught:
        hunt_for(runner, by="verdict").run()
    assert (caught.value.code, runner.judged_every_call, runner.count) == (5, True, 1)
    runner.suspected = {SEEN[1]: OFF}
    hunt = hunt_for(runner, by="verdict")
    assert hunt.run() == (SEEN[1],)
    assert (runner.judged_every_call, len(hunt.runs)) == (True, 2)
    by_itself = hunt_for(runner)
    assert by_itself.run() == (SEEN[1],)
    assert "searched by verdict: the script prints no loss" in printing.answer(by_itself)
    with pytest.raises(BadInput, match="gave no result"):
        pattern = MadeUp(lambda on: (), Reading(pattern_of("accuracy (.*)")))
        pattern.suspected = runner.suspected
        hunt_for(pattern).run()


def test_every_call_is_judged_where_nothing_else_shows_what_is_wrong() -> None:
    """A kernel that is wrong in every second call: the first call of each signature is right, and so is the loss."""
    runner = MadeUp(lambda on: (2.0,))
    runner.now_and_then = {SEEN[3]: OFF}
    hunt = hunt_for(runner)
    assert hunt.run() == (SEEN[3],)
    assert (len(hunt.runs), hunt.every) == (4, True)
    assert [printing.found_lines(run) for run in hunt.runs] == [
        [], [], ["     judged wrong: aten.op3.default: 3 of 4 elements are off"], ["     every call judged, none wrong"],
    ]  # fmt: skip
    with pytest.raises(BadInput, match="--by verdict judges every call"):
        hunt_for(runner, prior=False).run()
    runner.seconds = 3600.0
    with pytest.raises(BadInput, match="--by verdict judges every call"):
        hunt_for(runner).run()
    with pytest.raises(BadInput, match="nothing to search: the result is the same"):
        hunt_for(runner, by="loss").run()
