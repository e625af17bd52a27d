"""Writes the table of docs/models.md and docs/models.zh-CN.md from the stored results: `--check` only compares."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
# The file of each side's results; a side whose file is not there has not been run.
FILES = {"dipu": "models_dipu.json", "reordered": "models_dipu.json", "cuda": "models_cuda.json"}
BEGIN, END = "<!-- generated: python benchmarks/models_document.py -->", "<!-- end of the generated part -->"

WORDS: dict[str, dict[str, str]] = {
    "models.md": {
        "head": "Model | Parameters | CPU | `dipu` | `dipu`, reordered | `cuda`",
        "not run": "not run",
        "missing": "not in this transformers",
        "error": "failed",
        "same": "equal",
        "pass": "within the bound",
        "fail": "**wrong**",
        "lower_precision": "lower precision",
        "words": "words equal",
        "other words": "**words differ**",
        "bits": "same bits without ditorch",
        "other bits": "**other bits without ditorch**",
        "versions": "`{side}`: {card}, torch {torch}, transformers {transformers}.",
    },
    "models.zh-CN.md": {
        "head": "模型 | 参数量 | CPU | `dipu` | `dipu`（reordered） | `cuda`",
        "not run": "未运行",
        "missing": "该 transformers 版本没有",
        "error": "失败",
        "same": "相等",
        "pass": "在界内",
        "fail": "**错误**",
        "lower_precision": "精度较低",
        "words": "生成相同",
        "other words": "**生成不同**",
        "bits": "不用 ditorch 时逐位相同",
        "other bits": "**不用 ditorch 时不同**",
        "versions": "`{side}`：{card}，torch {torch}，transformers {transformers}。",
    },
}


def stored() -> dict[str, dict[str, Any]]:
    """The results by side: notes, and cases by model."""
    found: dict[str, dict[str, Any]] = {}
    for side, name in FILES.items():
        path = RESULTS / name
        if not path.exists():
            continue
        content = json.loads(path.read_text())
        cases = {
            case["raw"]["model"]: case["raw"] for case in content["cases"] if case["raw"]["side"] == side
        }
        if cases:
            found[side] = {"notes": content["notes"], "cases": cases}
    return found


def cell(case: Mapping[str, Any] | None, words: Mapping[str, str]) -> str:
    """What one model did on one side."""
    if case is None:
        return words["not run"]
    if "losses" not in case:
        return words[case["status"]]
    parts = [f"{case['losses'][-1]:.6f}", f"{case['difference']:.0e}, {words[case['status']]}"]
    if case["words"]:
        parts.append(words["words" if case["words"] == "equal" else "other words"])
    if "without_ditorch" in case:
        parts.append(words["bits" if case["without_ditorch"] == "equal" else "other bits"])
    return "; ".join(parts)


def table(results: Mapping[str, Mapping[str, Any]], words: Mapping[str, str]) -> str:
    """The generated part of a document, with the versions it was measured with."""
    models = list(dict.fromkeys(model for side in results.values() for model in side["cases"]))
    lines = [f"| {words['head']} |", "|---|---:|---:|---|---|---|"]
    for model in models:
        cases = {side: results[side]["cases"].get(model) if side in results else None for side in FILES}
        known: Mapping[str, Any] = next((case for case in cases.values() if case and "losses" in case), {})
        losses, size = known.get("losses_cpu"), known.get("parameters")
        lines.append(
            f"| {model} | {f'{size:,}' if size else ''} | {f'{losses[-1]:.6f}' if losses else ''} | "
            + " | ".join(cell(case, words) for case in cases.values())
            + " |"
        )
    lines.append("")
    for side, result in results.items():
        notes = result["notes"]
        versions = {"side": side, "card": notes["cards"][side], **notes["versions"][side]}
        lines.append("- " + words["versions"].format(**versions))
    return "\n".join(lines)


def rendered(document: Path) -> str:
    """The document with its generated part made anew. Raises ValueError if it has no such part."""
    before, begin, rest = document.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{document}: expected the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{table(stored(), WORDS[document.name])}\n\n{END}{after}"


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    for name in WORDS:
        document = ROOT / "docs" / name
        text = rendered(document)
        if text != document.read_text():
            stale.append(name)
            if not check:
                document.write_text(text)
    print(f"{'stale' if check else 'written'}: {', '.join(stale)}" if stale else "up to date")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
