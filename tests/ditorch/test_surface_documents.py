"""The tables of cuda's names in the documents are those of the code."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch
from names_table import filled, table

pytestmark = pytest.mark.device

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize(
    ("document", "language"), [("cuda-names.md", "english"), ("cuda-names.zh-CN.md", "chinese")]
)
def test_the_table_is_up_to_date(document: str, language: str, mapped: ModuleType) -> None:
    from _ditorch.session import of_process

    if not torch.__version__.startswith("2.13"):
        pytest.skip("the table is made with torch 2.13, whose names it lists")
    text = (DOCS / document).read_text(encoding="utf-8")
    made = table(of_process().mapping.target, language)
    assert filled(text, made) == text, f"run: python tests/ditorch/names_table.py docs/{document}"
    missing = [name for name in torch.cuda.__all__ if f"`{name}`" not in made]
    assert missing == []


def test_a_document_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="lacks the marks"):
        filled("# no table", "")


def test_the_example_in_the_document_runs(run_python) -> None:
    text = (DOCS / "cuda-names.md").read_text(encoding="utf-8")
    _, _, rest = text.partition("```python\n")
    code, _, _ = rest.partition("```")
    assert "device='dipu:0'" in run_python(code).stdout
