"""The stub's operators in C++, from the table; `python -m dicp.vendor.TopsGraph.stub.declaration` writes the files again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dicp.vendor.TopsGraph.operators import KINDS, TABLE, TopsOperator

__all__ = ["FOLDER", "definitions", "header", "write"]

FOLDER = Path(__file__).parent
HEADER = FOLDER / "dtu" / "hlir_builder" / "hlir_builder_client_ops.h"
SOURCE = FOLDER / "operators.cpp"
_PLAIN = ("int", "bool", "float", "text")
_NOTE = "// Written by declaration.py from the table of operators: do not edit."


def header() -> str:
    """Declarations of the builder's functions."""
    lines = [
        _NOTE,
        "#ifndef DICP_STUB_HLIR_BUILDER_CLIENT_OPS_H",
        "#define DICP_STUB_HLIR_BUILDER_CLIENT_OPS_H",
        "",
        '#include "dtu/hlir_builder/hlir_builder.h"',
        "",
        "namespace builder {",
        "",
        "Op Const(const std::shared_ptr<Builder>& builder, const void* data, const Type& type);",
        *(f"Op {name}({', '.join(_parameters(operator))});" for name, operator in _written()),
        "",
        "}  // namespace builder",
        "",
        "#endif  // DICP_STUB_HLIR_BUILDER_CLIENT_OPS_H",
    ]
    return "\n".join(lines) + "\n"


def definitions() -> str:
    """Functions that record their calls."""
    lines = [_NOTE, '#include "recorder.h"', "", "namespace builder {", ""]
    for name, operator in _written():
        texts = ", ".join(f"json({parameter})" for parameter in _names(operator))
        source = "recording_of(p0)" if operator.kinds[0] in ("op", "ops") else "builder->recording()"
        lines.append(f"Op {name}({', '.join(_parameters(operator))}) {{")
        lines += [f'    return record({source}, "{name}", {{{texts}}});', "}", ""]
    return "\n".join([*lines, "}  // namespace builder"]) + "\n"


def write() -> None:
    """Both files."""
    HEADER.write_text(header(), encoding="utf-8")
    SOURCE.write_text(definitions(), encoding="utf-8")


def _written() -> Iterator[tuple[str, TopsOperator]]:
    return ((name, operator) for name, operator in TABLE.items() if name != "Const")


def _names(operator: TopsOperator) -> list[str]:
    return [f"p{index}" for index in range(len(operator.kinds))]


def _parameters(operator: TopsOperator) -> list[str]:
    first = [] if operator.kinds[0] in ("op", "ops") else ["const std::shared_ptr<Builder>& builder"]
    return first + [
        f"{KINDS[kind]} {name}" if kind in _PLAIN else f"const {KINDS[kind]}& {name}"
        for kind, name in zip(operator.kinds, _names(operator), strict=True)
    ]


if __name__ == "__main__":
    write()
