"""docs/transformers.md: both languages have the same commands, and its Python runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("transformers")

pytestmark = pytest.mark.unit
ROOT = Path(__file__).resolve().parents[2]
ENGLISH, CHINESE = (
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("transformers.md", "transformers.zh-CN.md")
)


def _blocks(text: str) -> list[tuple[str, str]]:
    found = re.findall(r"^```(\w+)\n(.*?)^```", text, re.M | re.S)
    return [(language, re.sub(r"\s+#.*", "", body)) for language, body in found]


def test_both_languages_have_the_same_structure_and_code() -> None:
    assert _blocks(ENGLISH) == _blocks(CHINESE)
    for pattern in (r"^(#+) ", r"^(\|) ", r"^(- )"):
        one, other = (re.findall(pattern, text, re.M) for text in (ENGLISH, CHINESE))
        assert one == other and one, pattern
    # The figures too.
    one, other = (re.findall(r"\d+\.\d+", text) for text in (ENGLISH, CHINESE))
    assert one == other


def test_python_examples_run() -> None:
    examples = [body for language, body in _blocks(ENGLISH) if language == "python"]
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, "docs/transformers.md", "exec"), {})
