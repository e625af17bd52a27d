"""dicore.page: one file with everything inside, and nothing in it but what we put there."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from dicore.page import Page, asset, embedded_json, without_controls

pytestmark = pytest.mark.null


def test_holds_title_body_style_scripts_and_data(tmp_path: Path) -> None:
    page = Page(
        title="a < b",
        body="<p>body</p>",
        styles=["p { color: red; }"],
        scripts=["const a = 1;", "const b = a;"],
        data={"rows": [{"name": "</script>"}]},
        texts={"packed": "QUJD"},
        without_scripts="<b>no scripts</b>",
    )
    size = page.write(tmp_path / "new" / "page.html")
    text = (tmp_path / "new" / "page.html").read_text()
    assert size == len(text.encode())
    assert "<title>a &lt; b</title>" in text
    assert asset("dicore.page", "style.css") + "p { color: red; }" in text
    assert "const a = 1;\nconst b = a;" in text
    assert '<script type="text/plain" id="packed">QUJD</script>' in text
    assert "<noscript><b>no scripts</b></noscript>" in text
    data = re.search(r'<script type="application/json" id="rows">(.*?)</script>', text)
    assert data is not None and json.loads(data[1]) == [{"name": "</script>"}]


def test_the_policy_admits_just_this_style_and_script() -> None:
    text = Page(title="t", body="", scripts=["let a;"]).text()

    def digest(tag: str) -> str:
        content = re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        assert content is not None
        return base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()

    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    assert policy[1].replace("&#x27;", "'") == (
        f"default-src 'none'; style-src 'sha256-{digest('style')}'; script-src 'sha256-{digest('script')}'; "
        "base-uri 'none'; form-action 'none'"
    )
    assert "script-src &#x27;none&#x27;" in Page(title="t", body="").text()


def test_json_has_a_form_for_everything() -> None:
    value = {"a": float("nan"), "b": [float("inf"), -float("inf")], 3: Path("x"), "<": None}
    assert embedded_json(value) == '{"a": "nan", "b": ["inf", "-inf"], "3": "x", "\\u003c": null}'


def test_what_would_turn_or_hide_text_is_written_out() -> None:
    assert without_controls("a\u202eb\x00\ufeff\n") == "a\\u202eb\\u0000\\ufeff\n"
