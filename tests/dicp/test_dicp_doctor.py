"""`dicp doctor` says what backends, caches and settings there are, and what is wrong with them."""

from __future__ import annotations

import json

import pytest
from dicp_small_backend import SmallBackend

from dicore.settings import Variable
from dicp import registry
from dicp.cli import main
from dicp.commands.doctor import diagnose

pytestmark = pytest.mark.unit


@pytest.fixture
def only(monkeypatch, tmp_path):
    """No announced backends, and a cache of the test's own."""
    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(registry, "_points", lambda: iter(()))


def test_all_is_fine(only, small, capsys):
    with pytest.raises(SystemExit) as end:
        main(["doctor"])
    text = capsys.readouterr().out
    assert end.value.code == 0 and "smallgraph" in text and "All fine" in text and "DICP_CACHE_DIR" in text


def test_problems_have_a_remedy(only, small, monkeypatch, tmp_path, capsys):
    facts = {"compiler": "problem: g++ is not on PATH; install it"}
    monkeypatch.setattr(SmallBackend, "doctor", lambda self: facts)
    monkeypatch.setattr(SmallBackend, "settings", [Variable("DICP_SMALL_THING", False, "a thing")])
    monkeypatch.setenv("DICP_SMALL_THING", "1")
    monkeypatch.setenv("DICP_FALBACK", "never")
    monkeypatch.setenv("DICP_VERIFY", "everything")
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(SystemExit) as end:
        main(["doctor", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert end.value.code == 1 and not found["ok"]
    problems = {problem["what"]: problem["advice"] for problem in found["problems"]}
    assert problems["backend smallgraph: compiler: g++ is not on PATH"] == "install it"
    assert any("cannot be kept" in what for what in problems) and any(
        "DICP_VERIFY" in what for what in problems
    )
    assert len(found["notes"]) == 1 and "DICP_FALLBACK" in found["notes"][0]


def test_a_backend_that_fails_is_a_problem(only, small, monkeypatch):
    def fail(self):
        raise OSError("no driver")

    monkeypatch.setattr(SmallBackend, "doctor", fail)
    found = diagnose()
    assert [problem.what for problem in found.problems] == ["backend smallgraph: OSError: no driver"]
