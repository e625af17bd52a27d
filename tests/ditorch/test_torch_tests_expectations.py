"""The list of what is known must excuse exactly what it names."""

from __future__ import annotations

from pathlib import Path

import torch

from _ditorch.torch_tests import OpInfoCheck, Pair, PairOutcome, Problem, State, device_file
from _ditorch.torch_tests.expectations import Expectations

ENTRY = """
[[opinfo.known]]
checks = ["forward"]
op = "{op}"
kind = "{kind}"
reason = "planted"
match = "{match}"
"""


def known(tmp_path: Path, op: str, kind: str = "gap", match: str = "", extra: str = "") -> Expectations:
    path = tmp_path / "known.toml"
    path.write_text(ENTRY.format(op=op, kind=kind, match=match) + extra)
    return Expectations(device_file.load("cpu", path), torch.__version__)


def failure(state: State = State.FAILED, message: str = "sample 0: differs") -> PairOutcome:
    problems = [] if state is State.PASSED else [Problem(state, message)]
    return PairOutcome(Pair(OpInfoCheck.FORWARD, "sin", "float32"), problems=problems)


def test_known_failures_get_their_kind_and_new_causes_stay_visible(tmp_path: Path) -> None:
    assert known(tmp_path, "sin").classify(failure()).state is State.GAP
    assert known(tmp_path, "sin", "artefact").classify(failure()).state is State.ARTEFACT
    assert known(tmp_path, "sin", match="tolerance").classify(failure()).state is State.FAILED
    assert known(tmp_path, "cos").classify(failure()).state is State.FAILED
    assert known(tmp_path, "sin", extra='dtypes = ["int8"]').classify(failure()).state is State.FAILED
    assert known(tmp_path, "sin", extra='torch = "<2"').classify(failure()).state is State.FAILED


def test_an_entry_about_a_missing_feature_goes_when_the_vendor_has_it(tmp_path: Path) -> None:
    list_ = known(tmp_path, "sin", extra='without = "fused"')
    list_.drop_for(["other"])
    assert list_.classify(failure()).state is State.GAP
    list_.drop_for(["fused"])
    assert list_.classify(failure()).state is State.FAILED


def test_a_wrong_answer_is_no_refusal_and_a_crash_is_not_excused(tmp_path: Path) -> None:
    assert known(tmp_path, "sin", "refusal").classify(failure()).state is State.FAILED
    raised = failure(State.ERROR, "sample 0: RuntimeError: no")
    assert known(tmp_path, "sin", "refusal").classify(raised).state is State.REFUSAL
    assert known(tmp_path, "sin").classify(failure(State.CRASH, "crashed (signal 11)")).state is State.CRASH
    assert known(tmp_path, "sin").classify(failure(State.TIMEOUT, "timed out")).state is State.TIMEOUT
    named = known(tmp_path, "sin", match="signal 11")
    assert named.classify(failure(State.CRASH, "crashed (signal 11)")).state is State.GAP


def test_one_new_cause_among_known_ones_is_shown_first(tmp_path: Path) -> None:
    outcome = failure(State.ERROR, "sample 0: RuntimeError: known")
    outcome.problems.append(Problem(State.FAILED, "sample 1: differs"))
    assert known(tmp_path, "sin", match="known").classify(outcome).state.unexpected
    assert outcome.problems[0].message == "sample 1: differs"
    assert known(tmp_path, "sin", match="known|differs").classify(outcome).state is State.GAP


def test_what_passes_although_listed_and_what_met_nothing(tmp_path: Path) -> None:
    list_ = known(tmp_path, "sin|cos", extra=ENTRY.format(op="tan", kind="gap", match=""))
    list_.classify(failure(State.PASSED))
    assert list_.now_passing() == ["forward:sin:float32"]
    assert "forward:tan:*" in list_.unused(device_file.KnownPair)
    assert "forward:sin|cos:*" not in list_.unused(device_file.KnownPair)
