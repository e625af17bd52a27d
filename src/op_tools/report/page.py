"""The report as one HTML file: no network, no library, everything inside."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
import json
import math
import os
import re
import stat
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from op_tools.report.collect import Collected, collect
from op_tools.report.place import without_controls
from op_tools.report.static import summary_html
from op_tools.runs import BadInput, Run, kind_of_path

__all__ = ["Written", "page_of", "write_report"]

_FOLDER = Path(__file__).with_name("page")
_SCRIPTS = ("words.js", "elements.js", "rows.js", "charts.js", "table.js", "sections.js", "start.js")


@dataclass(frozen=True)
class Written:
    """A report that was written: where, how large, and its summary."""

    path: Path
    size: int
    rows: int
    summary: dict[str, Any]


def write_report(run: Run, target: str | Path, title: str = "") -> Written:
    """Write the report of a run. Raises BadInput when there is nothing to report or the file cannot be written."""
    target = Path(target)
    if not target.name or stat.S_ISDIR(kind_of_path(target)):
        raise BadInput(f"{target} is a folder. Give the file to write, for example {target / 'report.html'}.")
    collected = collect(run, title)
    summary = collected.summary()
    content = page_of(collected, summary).encode("utf-8", "replace")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(content)
        temporary.replace(target)
    except OSError as error:
        raise BadInput(
            f"{target} cannot be written: {error.strerror or error}. Choose another file with -o."
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return Written(target, len(content), len(collected.table), summary)


def page_of(collected: Collected, summary: dict[str, Any]) -> str:
    """The text of the page."""
    style, script = _asset("report.css"), _script()
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        f"base-uri 'none'; form-action 'none'"
    )
    parts = {
        "title": html.escape(without_controls(summary["title"])),
        "policy": html.escape(policy, quote=True),
        "style": style,
        "script": script,
        "summary": _json(summary),
        "rows": collected.table.packed(),
        "static": summary_html(summary),
    }
    # In one pass: what is put in is data and is not looked at again.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("report.html"))


@cache
def _asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    sources = "\n".join(_asset(name) for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{sources}\n}})();\n'


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _json(value: Any) -> str:
    """JSON that can stand inside a script element, whatever the texts hold."""
    return json.dumps(_plain(value), allow_nan=False).replace("<", "\\u003c")


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, int | float | str) or value is None else str(value)
