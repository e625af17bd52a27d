"""One console, one form of tables, one progress bar."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from dicore.console import facts_table, make_console, make_table, plain_table, progress_bar

pytestmark = pytest.mark.unit


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_files_get_100_columns_and_a_terminal_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "63")
    assert make_console(io.StringIO()).width == 100
    assert make_console(Terminal()).width == 63


def test_tables_have_their_title_on_the_left_and_keep_brackets() -> None:
    stream = io.StringIO()
    console = make_console(stream)
    console.print(facts_table("Versions", {"torch": "2.13 [cpu]"}))
    table = make_table("name", title="Some")
    table.add_column("value")
    table.add_row("a", "1")
    console.print(table)
    lines = stream.getvalue().splitlines()
    assert lines[0].rstrip() == "Versions" and "│ torch │ 2.13 [cpu] │" in lines
    assert "Some" in [line.rstrip() for line in lines] and "│ a    │ 1     │" in lines


def test_a_plain_table_has_one_line_a_row() -> None:
    assert plain_table(("a", "b"), [(1, "x\ny"), ("long", None)]).splitlines() == [
        "+------+------+",
        "|  a   |  b   |",
        "+------+------+",
        "|  1   | x y  |",
        "| long | None |",
        "+------+------+",
    ]


def test_a_bar_is_drawn_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with progress_bar("replay", 2) as bar:
        bar.advance()
        with bar.paused():
            terminal.write("a line\n")
        bar.update(2, 2, label="judging", note="1 failed")
    drawn = terminal.getvalue()
    assert (
        "replay" in drawn
        and "judging" in drawn
        and "2/2" in drawn
        and "1 failed" in drawn
        and "a line" in drawn
    )
    for stream, quiet in ((io.StringIO(), False), (Terminal(), True)):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress_bar("replay", 2, quiet=quiet) as bar, bar.paused():
            bar.advance()
            bar.update(2, 2)
        assert stream.getvalue() == ""


def test_importing_loads_no_library() -> None:
    program = "import sys, dicore.console, dicore.doctor; print({'rich', 'prettytable', 'torch'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        == "set()\n"
    )
