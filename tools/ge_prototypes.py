"""Reads the prototypes of GE's operators out of a torch-npu wheel, as facts: the file is parsed, never imported.

    pip download --no-deps torch-npu==2.13.0
    python tools/ge_prototypes.py torch_npu-2.13.0-*.whl src/dicp/vendor/AscendGraph/prototypes.tsv.gz

One line an operator, four columns: type; inputs; outputs; attributes. An input or output is `name:dtypes`, `name?:` if it may be
left out, `name*:` if there may be any number; an attribute is `name:type=default`, or `name:type!` if it has none.
"""

from __future__ import annotations

import ast
import gzip
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

SOURCE = "torch_npu/dynamo/torchair/_ge_concrete_graph/auto_generated_ge_raw_ops.py"
CLAUSE = re.compile(r"\.(\w+)\(\s*(\w+)\s*(?:,\s*(.*?))?\)\s*(?:\\n)?\s*$", re.DOTALL)
MARKS = {"INPUT": "", "OPTIONAL_INPUT": "?", "DYNAMIC_INPUT": "*", "OUTPUT": "", "DYNAMIC_OUTPUT": "*"}
SPELLINGS = {
    "FLOAT32": "FLOAT",
    "FP32": "FLOAT",
    "FLOAT64": "DOUBLE",
    "BFLOAT16": "BF16",
    "FP16": "FLOAT16",
    "HALF": "FLOAT16",
    "DI_UINT16": "UINT16",
    "REALNUMBERTYPE": "RealNumberType",
}
NOT_DTYPES = {"TensorType", "TesnorType", "ListTensorType"}


def dtypes_of(text: str) -> list[str]:
    """`TensorType({DT_FLOAT, BasicType()})` as names; sets keep theirs, which the reader of the table knows."""
    words = (word.removeprefix("DT_") for word in re.findall(r"\w+", text))
    spelled = (SPELLINGS.get(word.upper(), word.upper() if word.islower() else word) for word in words)
    return list(dict.fromkeys(word for word in spelled if word not in NOT_DTYPES))


def prototype_of(text: str) -> tuple[str, str, str, str]:
    """The four columns of one registration."""
    clauses = [found.groups() for line in text.splitlines()[1:] if (found := CLAUSE.match(line.strip()))]
    variables = {name: dtypes_of(rest or "") for kind, name, rest in clauses if kind == "DATATYPE"}
    inputs: list[str] = []
    outputs: list[str] = []
    attributes: list[str] = []
    for kind, name, rest in clauses:
        if kind in MARKS:
            dtypes = [d for word in dtypes_of(rest or "") for d in variables.get(word, [word])]
            entry = f"{name}{MARKS[kind]}:{'|'.join(dict.fromkeys(dtypes))}"
            (inputs if "INPUT" in kind else outputs).append(entry)
        elif kind in ("ATTR", "REQUIRED_ATTR"):
            attribute_type, _, default = (rest or "").partition(",")
            end = "!" if kind == "REQUIRED_ATTR" else f"={default.strip()}"
            attributes.append(f"{name}:{attribute_type.strip()}{end}")
    name = (re.match(r"REG_OP\((\w+)\)", text) or [""])[0][7:-1]
    return name, ";".join(inputs), ";".join(outputs), ";".join(attributes)


def prototypes(wheel: Path) -> Iterator[tuple[str, str, str, str]]:
    tree = ast.parse(zipfile.ZipFile(wheel).read(SOURCE))
    texts = (ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    yield from sorted({row[0]: row for row in map(prototype_of, texts) if row[0]}.values())


def main(wheel: str, table: str) -> None:
    rows = list(prototypes(Path(wheel)))
    version = Path(wheel).name.split("-")[1]
    lines = [f"# {len(rows)} prototypes of torch-npu {version}: type, inputs, outputs, attributes"]
    text = "\n".join([*lines, *("\t".join(row) for row in rows)]) + "\n"
    # No time of day in the file: the same wheel gives the same bytes.
    Path(table).write_bytes(gzip.compress(text.encode(), mtime=0))
    print(f"{len(rows)} prototypes, {len(text)} bytes of text")


if __name__ == "__main__":
    main(*sys.argv[1:3])
