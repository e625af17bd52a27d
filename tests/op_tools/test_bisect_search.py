"""The search of bisect without a script: which runs it makes, how results are read and judged, what it says."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from op_tools.bisect import printing
from op_tools.bisect.bisection import Bisection
from op_tools.bisect.readings import Reading, ResultJudge, distance, numbers_in, pattern_of
from op_tools.bisect.running import Runner, ScriptRun, Suspicion, suspicions
from op_tools.bisect.search import Search, ranked
from op_tools.results import Results
from op_tools.runs import BadInput

pytestmark = pytest.mark.unit


class Oracle:
    """Restores the result when all culprits are on the CPU, and counts how often it was asked."""

    def __init__(self, culprits: set[str]) -> None:
        self.culprits = culprits
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, operators: Sequence[str]) -> bool:
        self.asked.append(tuple(operators))
        return self.culprits <= set(operators)


def halvings(count: int) -> int:
    return math.ceil(math.log2(count)) if count > 1 else 0


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[str], set[str]]:
    names = [f"aten.op{number}.default" for number in range(draw(st.integers(3, 64)))]
    return names, draw(st.sets(st.sampled_from(names), min_size=1, max_size=3))


@given(cases())
def test_any_few_culprits_are_found_by_halving(case: tuple[list[str], set[str]]) -> None:
    names, culprits = case
    oracle = Oracle(culprits)
    assert set(Search(names, oracle).run() or ()) == culprits
    # Each culprit costs its halvings and the question whether the culprits known so far are all.
    assert len(oracle.asked) <= len(culprits) * (halvings(len(names)) + 1)
    assert len(set(oracle.asked)) == len(oracle.asked), "a run was made twice"


@given(cases())
def test_every_member_of_the_list_is_shown_to_be_needed(case: tuple[list[str], set[str]]) -> None:
    names, culprits = case
    oracle = Oracle(culprits)
    found = Search(names, oracle).run() or ()
    failed = [set(asked) for asked in oracle.asked if not culprits <= set(asked)] + [set()]
    assert found in oracle.asked or found == tuple(names)
    for member in found:
        others = set(found) - {member}
        assert any(others <= asked and member not in asked for asked in failed)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 31, 32, 33, 64])
def test_one_culprit_without_a_prior_is_pinned_down_in_the_logarithm(count: int) -> None:
    names = [f"op{number}" for number in range(count)]
    for culprit in names:
        oracle = Oracle({culprit})
        assert Search(names, oracle).run() == (culprit,)
        runs = 2 + len(oracle.asked)  # the bad run and the reference are runs too
        # A list that the halving did not run by itself is run once more, to be sure of it.
        confirmed = oracle.asked[-1:] == [(culprit,)] and culprit != names[0]
        assert runs - confirmed <= halvings(count) + 2


@given(cases())
def test_a_prior_that_names_the_culprits_leaves_little_to_run(case: tuple[list[str], set[str]]) -> None:
    names, culprits = case
    order = sorted(names, key=lambda name: name not in culprits)
    oracle = Oracle(culprits)
    assert set(Search(order, oracle, suspects=len(culprits)).run() or ()) == culprits
    assert len(oracle.asked) <= (1, 3, 6)[len(culprits) - 1]


@given(cases(), st.data())
def test_a_prior_that_is_wrong_costs_one_more_run_per_culprit(
    case: tuple[list[str], set[str]], data: st.DataObject
) -> None:
    names, culprits = case
    oracle = Oracle(culprits)
    suspects = data.draw(st.integers(0, len(names)))
    assert set(Search(names, oracle, suspects=suspects).run() or ()) == culprits
    assert len(oracle.asked) <= len(culprits) * (halvings(len(names)) + 2)


@given(cases())
def test_a_whole_that_was_never_run_is_run_when_it_matters(case: tuple[list[str], set[str]]) -> None:
    names, culprits = case
    assert set(Search(names, Oracle(culprits), whole_restores=False).run() or ()) == culprits
    unreachable = Oracle({"something else"})
    assert Search(names, unreachable, whole_restores=False).run() is None
    assert unreachable.asked[-1] == tuple(names)


# -- reading a result ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        ("step 0 loss 4.25\nstep 1 loss 3.5e-1\n", (4.25, 0.35)),
        ("epoch 1 | train_loss=2.5 | loss_scale 65536\n", (2.5,)),
        ("{'loss': tensor(1.5, device='dipu:0')}\nLoss: -inf\n", (1.5, -math.inf)),
        ("the loss is 2\ndone in 3 s\n", (2.0,)),
        ("accuracy 0.5\nbest 0.75 of 4\n\n", (0.75, 4.0)),
        ("no numbers here\n", ()),
        ("", ()),
    ],
)
def test_numbers_after_loss_or_those_of_the_last_line_are_the_result(
    printed: str, expected: tuple[float, ...]
) -> None:
    assert Reading().read(printed) == expected


def test_nan_is_read_as_a_number() -> None:
    assert [math.isnan(value) for value in Reading().read("loss nan\nLOSS: NaN\nloss 1")] == [
        True,
        True,
        False,
    ]


def test_a_pattern_gives_its_groups_or_all_it_matches() -> None:
    printed = "acc: 0.5 (3)\nacc: 0.7 (4)\n"
    assert Reading(pattern_of(r"^acc: (\S+)")).read(printed) == (0.5, 0.7)
    assert Reading(pattern_of(r"acc.*$")).read(printed) == (0.5, 3.0, 0.7, 4.0)
    assert Reading(pattern_of("loss (.*)")).read(printed) == ()
    with pytest.raises(BadInput, match=r"--result '\(' is not a valid pattern"):
        pattern_of("(")


def test_a_result_file_is_json_or_plain_numbers(tmp_path: Path) -> None:
    file = tmp_path / "result"
    file.write_text('{"loss": [2.5, 1], "ok": true, "name": "run 7"}')
    assert Reading(file=file).read("loss 9") == (2.5, 1.0)
    file.write_text("2.5\n1.5 nan")
    assert [str(value) for value in Reading(file=file).read("")] == ["2.5", "1.5", "nan"]
    file.unlink()
    assert Reading(file=file).read("loss 9") == ()


def test_the_distance_is_relative_and_nan_is_never_near() -> None:
    assert distance((3.0, 4.5), (3.0, 4.0)) == distance((1e6, 4.5), (1e6, 4.0)) == pytest.approx(0.125)
    assert distance((3.3, 4.2), (3.0, 4.0)) == pytest.approx(0.1)
    assert distance((1.0,), (1.0, 2.0)) == distance((), ()) == math.inf
    assert distance((math.nan,), (math.nan,)) == distance((1.0,), (math.inf,)) == math.inf
    assert distance((math.inf, 1.0), (math.inf, 1.0)) == 0.0
    assert distance((0.5,), (0.0,)) == 0.5


def test_restored_means_a_tenth_of_the_error_or_rounding() -> None:
    judge = ResultJudge.between((2.0,), (1.0,))
    assert [judge.restored((value,)) for value in (1.09, 1.11, 0.92, math.nan)] == [True, False, True, False]
    small = ResultJudge.between((1.00002,), (1.0,))
    assert small.restored((1.000009,)) and not small.restored((1.000011,)) and not small.nothing_wrong
    assert ResultJudge.between((1.000009,), (1.0,)).nothing_wrong
    after_nan = ResultJudge.between((math.nan,), (1.0,))
    assert after_nan.restored((1.0009,)) and not after_nan.restored((1.0011,))
    own = ResultJudge.between((2.0,), (1.0,), 0.5)
    assert own.restored((1.5,)) and not own.restored((1.6,))
    assert ResultJudge.between((1.5,), (1.0,), 0.5).nothing_wrong


def test_an_error_beside_large_numbers_is_seen_and_rounding_beside_others_is_not() -> None:
    judge = ResultJudge.between((1e6, 65536.0, 1.362), (1e6, 65536.0, 1.297))
    assert not judge.nothing_wrong and judge.gap == pytest.approx(0.05, abs=1e-3)
    assert judge.restored((1e6, 65536.0, 1.298)) and not judge.restored((1e6, 65536.0, 1.33))
    # A loss that went to zero is twice as large: as far off as a rounding of the first one.
    assert ResultJudge.between((2.5000001, 2e-8), (2.5, 1e-8)).nothing_wrong
    falling = ResultJudge.between((2.7, 2e-8), (2.5, 1e-8))
    assert falling.restored((2.5, 3e-8)) and not falling.restored((2.55, 1e-8))


# -- suspicions ----------------------------------------------------------------------------------------------


def test_operators_are_ranked_by_verdict_and_then_by_size(tmp_path: Path) -> None:
    results = Results(str(tmp_path / "op_autocompare_result"), "op_autocompare_info", ("name",))
    for name, verdict, over, level in (
        ("aten.add.Tensor output", "pass", 0.9, "aten"),
        ("aten.mul.Tensor output", "pass", 0.1, "aten"),
        ("aten.silu.default output", "pass", 0.5, "aten"),
        ("aten.silu.default output", "fail", 7.0, "aten"),
        ("aten.mm.default output", "fail", 900.0, "aten"),
        ("torch.add output", "fail", 9999.0, "api"),
        ("aten.exp.default output", "lower_precision", 1e6, "aten"),
    ):
        row = {"name": name, "verdict": verdict, "error_over_bound": over, "level": level, "reason": "r"}
        results.append(row)
    results.close()
    found = suspicions(tmp_path)
    seen = [
        "aten.neg.default",
        *(f"aten.{n}" for n in ("add.Tensor", "silu.default", "mm.default", "mul.Tensor")),
    ]
    assert ranked(seen, found) == (
        ["aten.mm.default", "aten.silu.default", "aten.add.Tensor", "aten.mul.Tensor", "aten.neg.default"],
        2,
    )
    assert ranked(["aten.neg.default", "aten.exp.default"], found) == (
        ["aten.exp.default", "aten.neg.default"],
        1,
    )
    assert ranked(seen, {}) == (seen, 0)
    assert "torch.add" not in found
    assert suspicions(tmp_path / "nothing") == {}


# -- the whole search, with runs that are made up ------------------------------------------------------------

SEEN = tuple(f"aten.op{number}.default" for number in range(16))
Outcome = tuple[float, ...] | int | str  # a result, an exit code or a problem


class MadeUp(Runner):
    """Runs nothing: a function says what comes of a list of operators on the CPU."""

    def __init__(self, outcome: Callable[[set[str]], Outcome], reading: Reading | None = None) -> None:
        super().__init__(Path("train.py"), ["--steps", "two words"], reading or Reading(), Path())
        self.outcome = outcome
        self.suspected: dict[str, Suspicion] = {}
        self.hidden: dict[str, Suspicion] = {}  # found once the suspects are on the CPU
        self.now_and_then: dict[str, Suspicion] = {}  # found where every call is judged
        self.seconds = 0.5
        self.rounding = 0.0  # what one rounding in each operator adds to the result
        self.judged_every_call = False

    def run(
        self,
        fallback: Sequence[str] | None,
        *,
        observe: bool = False,
        compare: bool = False,
        every: bool = False,
        perturb: bool = False,
    ) -> ScriptRun:
        self.count += 1
        self.judged_every_call = every
        names = SEEN if fallback is None else tuple(fallback)
        outcome = self.outcome(set(names))
        if perturb and isinstance(outcome, tuple):
            outcome = tuple(value + self.rounding for value in outcome)
        done = ScriptRun(
            self.count, None if fallback is None else names, 0, self.seconds, perturbed=perturb, every=every
        )
        if isinstance(outcome, tuple):
            done.result = outcome
        elif outcome:
            done.code, done.problem = (
                (outcome, f"exit code {outcome}") if isinstance(outcome, int) else (-9, outcome)
            )
        elif self.reading.exit_code:
            done.result = (0.0,)
        done.seen = SEEN if observe else ()
        if compare:
            failing = {name for name, found in self.suspected.items() if found.verdict == "fail"}
            found = {
                **self.suspected,
                **(self.now_and_then if every else {}),
                **(self.hidden if failing <= set(names) else {}),
            }
            done.found = {name: suspicion for name, suspicion in found.items() if name not in names}
        return done


def hunt_for(runner: MadeUp, **settings: object) -> Bisection:
    return Bisection(runner, lambda run: None, **settings)  # type: ignore[arg-type]


def test_two_culprits_of_which_each_makes_part_of_the_error() -> None:
    hunt = hunt_for(MadeUp(lambda on: (1.0 + 0.5 * (SEEN[3] not in on) + 0.4 * (SEEN[12] not in on),)))
    assert hunt.run() == (SEEN[3], SEEN[12])
    assert [run.restored for run in hunt.runs[:2]] == [None, None]
    assert hunt.left == 0.0


def test_a_suspect_is_tried_first_and_the_answer_says_why() -> None:
    runner = MadeUp(lambda on: (1.0 if SEEN[9] in on else 2.0,))
    runner.suspected = {
        SEEN[9]: Suspicion("fail", 3.0, "3 of 4 elements are off", "train.py:7 main: x.op9()")
    }
    hunt = hunt_for(runner)
    assert hunt.run() == (SEEN[9],)
    assert len(hunt.runs) == 3
    text = printing.answer(hunt)
    hunt.found[SEEN[9]] = Suspicion("fail", 3.0, "many words " * 20, "train.py:7 main: x.op9()")
    assert all(len(line) <= 100 for line in printing.answer(hunt).splitlines())
    assert "1 of 16 operators must run on the CPU to restore the result; 3 runs:" in text
    assert "judged wrong: 3 of 4 elements are off" in text
    assert "at train.py:7 main: x.op9()" in text
    assert (
        "OP_FALLBACK_LIST=aten.op9.default ditorch run --tool fallback train.py --steps 'two words'" in text
    )
    assert "\n    export OP_FALLBACK_LIST=aten.op9.default" in text


def test_a_run_that_crashes_or_hangs_is_not_restored_and_is_said() -> None:
    lines: list[str] = []

    def outcome(on: set[str]) -> Outcome:
        if on in (set(), set(SEEN)):
            return (2.0 - bool(on),)
        return (1.0,) if SEEN[2] in on and SEEN[7] in on else "ended after --timeout 3 s"

    hunt = Bisection(MadeUp(outcome), lambda run: lines.append(printing.run_line(run)))
    assert hunt.run() == (SEEN[2], SEEN[7])
    failed = [line for line in lines if "failed" in line]
    assert failed and all("\n     ended after --timeout 3 s" in line and "  no  " in line for line in failed)


def test_a_bad_run_that_fails_is_a_bad_result() -> None:
    hunt = hunt_for(MadeUp(lambda on: (1.0, 2.0) if SEEN[5] in on else 1))
    assert hunt.run() == (SEEN[5],)


def test_exit_codes_can_be_the_result() -> None:
    reading = Reading(exit_code=True)
    assert hunt_for(MadeUp(lambda on: 0 if SEEN[6] in on else 3, reading)).run() == (SEEN[6],)
    with pytest.raises(BadInput, match="ends with exit code 0 as it is") as caught:
        hunt_for(MadeUp(lambda on: 0, reading)).run()
    assert caught.value.code == 5


@pytest.mark.parametrize(
    ("outcome", "message", "code"),
    [
        (lambda on: (2.0,), "the result is the same with every operator on the CPU", 5),
        (lambda on: 3, r"fails too: exit code 3\.", 5),
        (lambda on: 3 if on else (1.0,), r"fails though not without it: exit code 3\.", 5),
        (lambda on: (math.nan,), "the result is NaN too", 5),
        (lambda on: (), "gave no result: there is no `loss` followed by a number", 2),
        (lambda on: () if on else 1, "run 2 of train.py gave no result", 2),
    ],
)
def test_where_there_is_nothing_to_search_it_says_so(
    outcome: Callable[[set[str]], Outcome], message: str, code: int
) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        hunt_for(MadeUp(outcome)).run()
    assert caught.value.code == code


def test_no_operator_on_a_device_is_nothing_to_search() -> None:
    runner = MadeUp(lambda on: (float(len(on)),))
    original = runner.run
    runner.run = lambda *a, **k: original(*a, **{**k, "observe": False})  # type: ignore[method-assign]
    with pytest.raises(BadInput, match="no operator ran on a device") as caught:
        hunt_for(runner).run()
    assert caught.value.code == 5


def test_an_expected_result_saves_the_reference_run() -> None:
    hunt = hunt_for(MadeUp(lambda on: (1.0 if SEEN[4] in on else 2.0,)), expect=(1.0,))
    assert hunt.run() == (SEEN[4],)
    assert all(run.fallback is not None for run in hunt.runs)
    assert len(hunt.runs) <= 4 + 2
    never = hunt_for(MadeUp(lambda on: (2.0,)), expect=(1.0,))
    assert never.run() is None
    assert "No list of operators restores the result: with all 16 on the CPU" in printing.answer(never)
    with pytest.raises(BadInput, match="the result is the one expected"):
        hunt_for(MadeUp(lambda on: (1.0,)), expect=(1.0,)).run()
    with pytest.raises(BadInput, match="has 1 numbers and the expected one 2"):
        hunt_for(MadeUp(lambda on: (1.0,)), expect=(1.0, 2.0)).run()


def test_an_interrupted_search_tells_what_it_knows() -> None:
    def outcome(on: set[str]) -> Outcome:
        if on == {SEEN[12]}:
            raise KeyboardInterrupt
        return (1.0 if {SEEN[3], SEEN[12]} <= on else 2.0,)

    runner = MadeUp(outcome)
    runner.suspected = {SEEN[1]: Suspicion("fail", 3.0)}
    hunt = hunt_for(runner)
    with pytest.raises(KeyboardInterrupt):
        hunt.run()
    text = printing.known_so_far(hunt)
    assert f"interrupted after {len(hunt.runs)} runs" in text
    assert f"known to be needed: {SEEN[12]}\n" in text
    assert "known to restore the result: aten.op1.default, aten.op0.default, aten.op2.default" in text
    assert "judged wrong in the first run: aten.op1.default" in text
    document = json.loads(printing.as_json(hunt, 130))
    assert document["operators"] is None
    assert document["needed_so_far"] == [SEEN[12]]


def test_json_and_lines_hold_what_the_runs_gave() -> None:
    hunt = hunt_for(MadeUp(lambda on: (1.0 if SEEN[0] in on else math.nan,)))
    assert hunt.run() == (SEEN[0],)
    document = json.loads(printing.as_json(hunt, 0))
    assert document["operators"] == [SEEN[0]]
    assert document["runs"][0]["result"] == ["nan"]
    assert document["runs"][1]["on_cpu"] == "everything"
    assert document["runs"][-1] | {"seconds": 0} == {
        "number": len(hunt.runs), "on_cpu": [SEEN[0]], "result": [1.0], "restored": True, "exit_code": 0,
        "problem": "", "seconds": 0, "stayed_on_the_device": {},
    }  # fmt: skip
    many = ScriptRun(3, SEEN[:2], 0, 1.25, tuple(1000.125 + n for n in range(40)), restored=False)
    assert "1000.125, 1001.125, ..., 1039.125 (40 numbers)" in printing.run_line(many)
    assert len(printing.run_line(many)) <= 100
    assert len(printing.HEADER) <= 100


def test_a_long_list_of_operators_that_are_right_hints_at_the_seed() -> None:
    needed = set(SEEN[:5])
    hunt = hunt_for(MadeUp(lambda on: (1.0 if needed <= on else 2.0,)))
    assert set(hunt.run() or ()) == needed
    assert "Does the script give the same result every time?" in printing.answer(hunt)


def test_numbers_of_an_option() -> None:
    assert numbers_in("2.1, 2.0 -3e2") == (2.1, 2.0, -300.0)
