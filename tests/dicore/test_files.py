"""dicore.files and dicore.suggestions: whole files or none, and the name that was meant."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dicore.files import replaced, toml_lines, write_bytes, write_text
from dicore.suggestions import closest, did_you_mean

pytestmark = pytest.mark.null


def test_writes_the_whole_file_into_a_new_folder(tmp_path: Path) -> None:
    write_text(tmp_path / "new" / "a.txt", "grün\n")
    write_bytes(tmp_path / "new" / "b", b"\0\1")
    assert (tmp_path / "new" / "a.txt").read_bytes() == "grün\n".encode()
    assert (tmp_path / "new" / "b").read_bytes() == b"\0\1"
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a.txt", "b"]


def test_keeps_the_old_file_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    path.write_text("old")
    with pytest.raises(RuntimeError), replaced(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_that_is_no_utf8_does_not_stop_a_report(tmp_path: Path) -> None:
    write_text(tmp_path / "page", "folder \udcff")
    assert (tmp_path / "page").read_text() == "folder ?"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_names_what_was_meant() -> None:
    known = ["autocompare", "capture", "fallback"]
    assert did_you_mean("autocompar", known) == " Did you mean 'autocompare'?"
    assert did_you_mean("zzz", known) == ""
    assert closest("captur", [*known, "captured"], most=2) == ["capture", "captured"]
    assert did_you_mean("captur", [*known, "captured"], most=2) == " Did you mean 'capture' or 'captured'?"


def test_the_lines_of_tables_and_keys() -> None:
    text = '''first = 1
[[a.b]]  # a list
"quoted" = 2
text = """
hidden = 3
[hidden]
"""
[[a.b]]
[a.b.c]
key = 4
[ tool . "x" ]
key = 5
key = 6
'''
    assert toml_lines(text) == {
        "first": 1,
        "a.b[0]": 2,
        "a.b[0].quoted": 3,
        "a.b[0].text": 4,
        "a.b[1]": 8,
        "a.b[1].c": 9,
        "a.b[1].c.key": 10,
        "tool.x": 11,
        "tool.x.key": 12,
    }
