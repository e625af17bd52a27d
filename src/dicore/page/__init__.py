"""One HTML file that a person can send to a colleague: no network, no library, everything inside, one style for all pages.

    page = Page(title="Conformance of libfoo.so", body=table, scripts=[asset("package.module", "matrix.js")])
    page.write("report.html")

The policy of the page admits exactly the style and the scripts that are in it: a name in somebody's data that looks like a
script is not run, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from dicore.files import write_bytes

__all__ = ["Page", "asset", "embedded_json", "without_controls"]

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
"""
# Characters that nothing shows, or that turn the direction in which the rest of a line is read.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


@dataclass(frozen=True)
class Page:
    """What stands on a page. `body` and `without_scripts` are HTML: who makes them has escaped what is data."""

    title: str
    body: str
    styles: Sequence[str] = ()
    """Rules beside those of the shared style sheet."""
    scripts: Sequence[str] = ()
    """They share one scope and run when the body is there."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What the scripts read: the id of an element, and what becomes its JSON."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """The same for text without `<`, such as base64."""
    without_scripts: str = ""
    """What a reader sees whose browser runs no script."""

    def text(self) -> str:
        """The whole file."""
        style = "".join([asset("dicore.page", "style.css"), *self.styles])
        script = '"use strict";\n(() => {\n' + "\n".join(self.scripts) + "\n})();\n" if self.scripts else ""
        allowed = _digest(script) if script else "'none'"
        policy = (
            f"default-src 'none'; style-src {_digest(style)}; script-src {allowed}; "
            "base-uri 'none'; form-action 'none'"
        )
        title = escape(without_controls(self.title))
        parts = [_HEAD.format(policy=escape(policy), title=title, style=style)]
        if self.without_scripts:
            parts.append(f"<noscript>{self.without_scripts}</noscript>\n")
        parts.append(f'<div id="page">\n{self.body}\n</div>\n')
        for name, value in self.data.items():
            parts.append(
                f'<script type="application/json" id="{escape(name)}">{embedded_json(value)}</script>\n'
            )
        for name, text in self.texts.items():
            parts.append(f'<script type="text/plain" id="{escape(name)}">{text}</script>\n')
        if script:
            parts.append(f"<script>{script}</script>\n")
        return "".join([*parts, "</body>\n</html>\n"])

    def write(self, path: str | Path) -> int:
        """Write the file, whole or not at all; its size in bytes. Raises OSError."""
        content = self.text().encode("utf-8", "replace")
        write_bytes(path, content)
        return len(content)


@cache
def asset(package: str, name: str) -> str:
    """A style or script that lies beside a module, such as asset("op_tools.report.page", "rows.js")."""
    return (files(package) / name).read_text(encoding="utf-8")


def without_controls(text: str) -> str:
    """Text as a page may show it: what would turn the direction of writing, or is invisible, is written out."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def embedded_json(value: Any) -> str:
    """JSON that can stand inside a script element, whatever the texts hold; what JSON has no form for becomes text."""
    return json.dumps(_plain(value), allow_nan=False).replace("<", "\\u003c")


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, int | float | str) or value is None else str(value)


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
