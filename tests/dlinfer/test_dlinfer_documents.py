"""The documents: both languages say the same, and their code runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dicore.settings import declarations
from dlinfer.cli import app
from dlinfer.conformance.samples import SAMPLES, count_of

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
ENGLISH, CHINESE = (
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("dlinfer.md", "dlinfer.zh-CN.md")
)


def _blocks(text: str, language: str) -> list[str]:
    return [body for kind, body in re.findall(r"^```(\w+)\n(.*?)^```", text, re.M | re.S) if kind == language]


def _bare(text: str) -> str:
    return re.sub(r"#.*", "", text)


def test_both_languages_have_the_same_structure_and_code() -> None:
    for pattern in (r"^(#+) ", r"^(\|) ", r"^(- )", r"^(\d\. )"):
        one, other = (
            re.findall(pattern, re.sub(r"```.*?```", "", text, flags=re.S), re.M)
            for text in (ENGLISH, CHINESE)
        )
        assert one == other and one, pattern
    for language in ("python", "sh", "toml"):
        assert [_bare(b) for b in _blocks(ENGLISH, language)] == [
            _bare(b) for b in _blocks(CHINESE, language)
        ]


def test_python_examples_run() -> None:
    for block in _blocks(ENGLISH, "python"):
        exec(compile(block, "docs/dlinfer.md", "exec"), {})


def test_commands_and_settings_exist() -> None:
    commands = {command.name for command in (*app.registered_commands, *app.registered_groups)}
    named = set(re.findall(r"^dlinfer (\w+)", "".join(_blocks(ENGLISH, "sh")), re.M))
    assert named == commands
    assert set(re.findall(r"DLINFER_[A-Z_]+", ENGLISH)) == set(declarations("dlinfer"))


def test_the_number_of_cases_is_the_real_one() -> None:
    total = f"{sum(count_of(name) for name in SAMPLES):,}"
    assert total in ENGLISH and total in CHINESE
