"""What doctors share: checks that raise, settings, problems, exit codes, tables and JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from rich.console import Console

from dicore.doctor import (
    DiagnosedProblem,
    Diagnosis,
    DoctorCheck,
    checks_table,
    print_notes,
    print_problems,
    run_checks,
    settings_status,
    settings_table,
)
from dicore.settings import Variable, flag

pytestmark = pytest.mark.unit


def adds(device: str) -> None:
    assert device == "dipu"


def fails_at_once(device: str) -> None:
    raise RuntimeError(f"{device} is gone\nand more lines")


def _says_nothing(device: str) -> None:
    raise KeyboardInterrupt if device == "" else ValueError


def test_a_check_that_raises_has_failed_and_the_others_run() -> None:
    results = run_checks((fails_at_once, adds, _says_nothing), "dipu")
    assert [(r.name, r.ok, r.reason) for r in results] == [
        ("fails at once", False, "RuntimeError: dipu is gone"),
        ("adds", True, ""),
        ("says nothing", False, "ValueError"),
    ]
    assert all(result.seconds >= 0 for result in results)
    with pytest.raises(KeyboardInterrupt):
        run_checks((_says_nothing,), "")


VARIABLES = (
    Variable("DIPU_DEVICE", "", "the `vendor`"),
    Variable("DIPU_MOCK_CUDA", True, "`0`: do not map", flag),
)


def test_settings_are_listed_and_what_nobody_declares_is_not_known() -> None:
    environ = {"DIPU_DEVICE": "host", "DIPU_DEVCE": "x", "PATH": "/"}
    assert [
        (s.name, s.value, s.is_set, s.known) for s in settings_status(VARIABLES, ("DIPU_",), environ)
    ] == [
        ("DIPU_DEVICE", "host", True, True),
        ("DIPU_MOCK_CUDA", "1", False, True),
        ("DIPU_DEVCE", "x", True, False),
    ]
    status = settings_status(VARIABLES, ("DIPU_",), environ)
    assert status[1].meaning == "0: do not map"
    assert status[2].meaning == "not a setting of this version. Did you mean 'DIPU_DEVICE'?"


@dataclass(kw_only=True)
class Little(Diagnosis):
    devices: list[str] = field(default_factory=list)

    def show(self, console: Console) -> None:
        console.print(f"{len(self.devices)} devices")
        print_problems(console, self.problems)


def test_a_diagnosis_as_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    good = Little(versions={"torch": "2"}, devices=["dipu:0"])
    assert good.report(as_json=False) == 0
    assert capsys.readouterr().out == "1 devices\nAll fine.\n"
    bad = Little(versions={"torch": "2"})
    with bad.attempt("no vendor", "install one"):
        raise OSError("no such file")
    bad.try_out((adds, fails_at_once), "dipu", command="dipu doctor")
    assert bad.report(as_json=True) == 1
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (said["ok"], said["devices"], [check["ok"] for check in said["checks"]]) == (
        False,
        [],
        [True, False],
    )
    assert said["problems"] == [
        {"what": "no vendor: OSError: no such file", "advice": "install one"},
        {
            "what": "the check 'fails at once' failed: RuntimeError: dipu is gone",
            "advice": "report it with `dipu doctor --json`",
        },
    ]


def test_tables_and_words_show_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(width=100, highlight=False)
    console.print(
        checks_table([DoctorCheck("add", False, 0.25, "wrong [values]"), DoctorCheck("mul", True, 0.5)])
    )
    console.print(settings_table(settings_status(VARIABLES, ("DIPU_",), {"DIPU_DEVICE": "[x]"})))
    print_notes(console, ["mind [this]"])
    print_problems(console, [DiagnosedProblem("it [fails]", "mend [it]"), DiagnosedProblem("so", "")])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    rows = [
        re_row
        for line in lines
        if "│" in line and (re_row := [cell.strip() for cell in line.split("│")[1:-1]])
    ]
    assert ["add", "failed", "250.0 ms", "wrong [values]"] in rows and ["mul", "ok", "500.0 ms", ""] in rows
    assert ["DIPU_DEVICE", "[x]", "the vendor"] in rows
    assert lines[-4:] == ["Note: mind [this]", "Problem: it [fails]", "  To do: mend [it]", "Problem: so"]
