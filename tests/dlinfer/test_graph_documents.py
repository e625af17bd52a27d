"""The documents of graph mode: both languages say the same, and their code runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dlinfer.graph import backends, capture
from dlinfer.settings import GRAPH_BACKEND

pytestmark = pytest.mark.unit

DOCS = Path(__file__).resolve().parents[2] / "docs"
ENGLISH, CHINESE = ((DOCS / name).read_text(encoding="utf-8") for name in ("graph.md", "graph.zh-CN.md"))


def _blocks(text: str) -> list[tuple[str, str]]:
    found = re.findall(r"^```([^\n]+)\n(.*?)^```", text, re.M | re.S)
    return [(kind, re.sub(r"  # .*", "", body)) for kind, body in found]


def test_both_languages_have_the_same_structure_code_and_numbers() -> None:
    assert _blocks(ENGLISH) == _blocks(CHINESE)
    for pattern in (r"^#+ ", r"^\|", r"^- ", r"`[^`\n]+`", r"\d+\.\d ms", r"\d+ s "):
        one, other = (
            re.findall(pattern, re.sub(r"```.*?```", "", text, flags=re.S), re.M)
            for text in (ENGLISH, CHINESE)
        )
        assert sorted(one) == sorted(other), pattern


def test_the_example_runs() -> None:
    (example,) = (body for kind, body in _blocks(ENGLISH) if kind == "python")
    exec(compile(example, "docs/graph.md", "exec"), {})


def test_names_and_limits_are_the_real_ones() -> None:
    table = re.findall(r"^\| `(\w+)` \|", ENGLISH, re.M)
    assert {"hostgraph", "tritongraph", backends.NO_GRAPH, *backends._OWN} < set(table)
    assert GRAPH_BACKEND.name in ENGLISH and backends.GROUP in ENGLISH
    assert f"`max_graphs` ({capture.MAX_GRAPHS})" in ENGLISH
    assert f"After {_most_recordings()} sizes" in ENGLISH


def _most_recordings() -> int:
    from dlinfer.graph import cuda_graphs

    return cuda_graphs.MOST_RECORDINGS
