"""Declarations of environment variables: values, problems, unknown names, and how they are found."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from dicore.settings import SettingError, Variable, flag, one_of, read, setting, size, unknown_variables

pytestmark = pytest.mark.unit


def test_a_value_is_parsed_and_blanks_are_nothing() -> None:
    count = Variable("DITORCH_COUNT", 3, "how many", int)
    assert (count.get({}), count.get({"DITORCH_COUNT": "  "}), count.get({"DITORCH_COUNT": " 7 "})) == (
        3,
        3,
        7,
    )
    assert count.is_set({"DITORCH_COUNT": "3"}) and not count.is_set({"DITORCH_COUNT": " "})
    with pytest.raises(SettingError, match=r"^environment variable DITORCH_COUNT: invalid literal.*'many'"):
        count.get({"DITORCH_COUNT": "many"})
    assert "DITORCH_COUNT" in count.problem({"DITORCH_COUNT": "many"}) and count.problem({}) == ""
    assert count.get_or_default({"DITORCH_COUNT": "many"}) == 3


def test_a_value_comes_from_the_environment_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Variable("DITORCH_MEMORY", 0, "bytes", size)
    monkeypatch.setenv("DITORCH_MEMORY", "2K")
    assert memory.get() == 2048
    monkeypatch.setenv("DITORCH_MEMORY", "1M")
    assert memory.get() == 1 << 20


def test_texts_for_tables() -> None:
    assert [
        Variable("X", default, "").default_text for default in (True, False, None, "", 4, frozenset({3, 1}))
    ] == [
        "1",
        "0",
        "",
        "",
        "4",
        "1,3",
    ]
    assert Variable("X", "", "`1`: map `torch.cuda`").plain_help == "1: map torch.cuda"


def test_choices_keep_their_spelling() -> None:
    layout = one_of("BSND", "BNSD")
    assert (layout(" bsnd "), layout("BNSD")) == ("BSND", "BNSD")
    with pytest.raises(ValueError, match="expected BSND or BNSD, got 'SBND'"):
        layout("SBND")


def test_unknown_variables_are_found_and_near_ones_named() -> None:
    family = Variable("DITORCH_BOUND", "", "", pattern=r"\w*DITORCH_BOUND(_\w+)?")
    known = [Variable("DITORCH_DEVICE", "", ""), family]
    environ = {
        "DITORCH_DEVICE": "x",
        "DITORCH_DEVCE": "x",
        "DITORCH_QUITE_OTHER": "x",
        "DITORCH_BOUND_FLOAT16": "x",
        "ELSE": "x",
    }
    assert list(unknown_variables(environ, known, ("DITORCH_",))) == [
        ("DITORCH_DEVCE", " Did you mean 'DITORCH_DEVICE'?"),
        ("DITORCH_QUITE_OTHER", ""),
    ]
    assert family.member("ADD_DITORCH_BOUND").get({"ADD_DITORCH_BOUND": " 1,2 "}) == "1,2"


def test_declarations_are_read_without_importing_the_package(tmp_path: Path) -> None:
    """In a process of its own, with a package whose import fails."""
    package = tmp_path / "loud"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "settings.py").write_text(
        "from dicore.settings import Variable\nCOUNT = Variable('LOUD_COUNT', 1, 'how many', int)\n_HIDDEN = COUNT\n"
    )
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from dicore.settings import declarations\n"
        "print({name: v.get({name: '5'}) for name, v in declarations('loud').items()}, declarations('nowhere'))\n"
        "assert not {'loud', 'torch', 'rich', 'tomllib'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "{'LOUD_COUNT': 5} {}\n"


def test_flags() -> None:
    assert [flag(word) for word in ("1", "On", "TRUE", "yes")] == [True] * 4
    assert [flag(word) for word in ("0", "off", "False", "no", "")] == [False] * 5
    with pytest.raises(ValueError, match="expected 1 or 0, got 'maybe'"):
        flag("maybe")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("4096", 4096),
        ("100M", 100 << 20),
        ("2G", 2 << 30),
        ("512K", 512 << 10),
        ("512k", 512 << 10),
        (" 1.5 GiB ", 3 << 29),
        ("100MB", 100 << 20),
        ("1T", 1 << 40),
    ],
)
def test_sizes_are_written_with_a_unit(text: str, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize("text", ["", "M", "-1", "1e9", "100X", "100 M M", "ten"])
def test_what_is_no_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="64K or 2G"):
        size(text)


def test_an_argument_may_be_written_as_in_the_environment() -> None:
    @dataclasses.dataclass(frozen=True)
    class Schema:
        limit: int | None = setting(None, "DITORCH_LIMIT", size, "bytes")

    assert read(Schema, "op_tools.x", {"limit": "100M"}, {})[0].limit == 100 << 20
    assert read(Schema, "op_tools.x", {"limit": 5}, {})[0].limit == 5
    with pytest.raises(SettingError, match="argument limit: expected a number of bytes"):
        read(Schema, "op_tools.x", {"limit": "much"}, {})


def test_a_size_is_shown_as_one_would_write_it() -> None:
    for text in ("1G", "100M", "64K", "4097", "0"):
        assert Variable("X", size(text), "", size).default_text == text
