"""The page docs/dlinfer-operators.md, written from the declarations."""

from __future__ import annotations

from dlinfer.interface import OPERATORS
from dlinfer.interface.declaration import Operator

_TITLES = {
    "norms": "Norms",
    "activation": "Activations",
    "rotary": "Rotary embedding",
    "cache": "Caches",
    "attention": "Attention",
    "batches": "Attention over batches",
    "sparse": "Sparse attention",
    "linear": "Linear layers",
    "quantised": "Quantised linear layers",
    "moe": "Mixtures of experts",
}
_HEAD = """# Operators of dlinfer

Written by `dlinfer table --markdown` from the declarations in `src/dlinfer/interface/`; do not edit it.

These are the operators as torch knows them, `torch.ops.dlinfer.<name>`, and as a vendor's kernels implement them.
`dlinfer.ops.<name>` takes the call forms of the serving frameworks and brings them into this form ([dlinfer](dlinfer.md)).

"Judged" says how `dlinfer conformance` compares a vendor's result with the reference in float64:
exact (bit for bit), elementwise or sum (within what rounding explains), quantised (integers may be the neighbour only at a
tie), positions (others are as good where values tie).
"""


def markdown_page() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for family, title in _TITLES.items():
        parts.append(f"## {title}\n")
        parts += [_section(operator) for operator in OPERATORS.values() if operator.family == family]
    return "\n".join(parts)


def _section(operator: Operator) -> str:
    rows = [f"| `{name}` | {_cell(text)} |" for name, text in operator.shapes.items()]
    written = ", ".join(f"`{name}`" for name in operator.writes) or "nothing"
    lines = [
        f"### {operator.name}",
        "",
        operator.summary,
        "",
        "```text",
        f"{operator.name}{operator.schema}",
        "```",
        "",
        "| argument | meaning |",
        "|---|---|",
        *rows,
        "",
        f"Gives {operator.results}. Writes {written}. Judged: {operator.tolerance}.",
        "",
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
