"""The published prototypes of GE's operators: what inputs, outputs, attributes and dtypes each type has.

`prototypes.tsv.gz` holds facts that `tools/ge_prototypes.py` read out of a torch-npu wheel (its first line has the version).
Three types that every graph needs are not in that file of the wheel; they are below, as the headers of the CANN toolkit
register them.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["Attribute", "Prototype", "PrototypeSlot", "prototype", "prototypes"]

_TABLE = Path(__file__).with_name("prototypes.tsv.gz")
_CAST = (
    "BOOL|FLOAT16|FLOAT|INT8|INT32|UINT32|UINT8|INT64|UINT64|INT16|UINT16|DOUBLE|COMPLEX64|COMPLEX128|BF16"
)
_FROM_HEADERS = (
    ("Cast", f"x:{_CAST}", f"y:{_CAST}", "dst_type:Int!"),  # op_proto/inc/elewise_calculation_ops.h
    ("Const", "", "y:ALL", "value:Tensor!"),  # op_proto/inc/array_ops.h
    ("Data", "x?:ALL", "y:ALL", "index:Int=0"),  # op_proto/inc/array_ops.h
)

_INTEGERS = "INT16|INT32|INT64|INT8|UINT16|UINT32|UINT64|UINT8"
_REAL = f"DOUBLE|FLOAT|FLOAT16|{_INTEGERS}|BF16"
_NUMBERS = f"COMPLEX128|COMPLEX64|{_REAL}|QINT32|QINT8|QUINT8"
# The sets of dtypes that prototypes name (struct TensorType of graph/types.h).
_SETS = {
    "NumberType": _NUMBERS,
    "BasicType": f"{_NUMBERS}|QINT16|QUINT16",
    "OrdinaryType": f"BOOL|COMPLEX128|COMPLEX64|{_REAL}",
    "RealNumberType": _REAL,
    "IntegerDataType": _INTEGERS,
    "FloatingDataType": "DOUBLE|FLOAT|FLOAT16",
    "IndexNumberType": "INT32|INT64",
    "UnaryDataType": "COMPLEX128|COMPLEX64|DOUBLE|FLOAT|FLOAT16|BF16",
}
_VARIABLE = re.compile(r"T\d*$")
_NUMBER = re.compile(r"-?\d+(\.\d*)?(e-?\d+)?f?$")


@dataclass(frozen=True)
class PrototypeSlot:
    """An input or output."""

    name: str
    optional: bool
    dynamic: bool
    """There may be any number of it: `name0`, `name1`, ..."""
    dtypes: frozenset[str] | None
    """The dtypes that it may have; None where the prototype does not say."""
    variable: str = ""
    """Slots of one variable have one dtype."""

    def allows(self, dtype: str) -> bool:
        return self.dtypes is None or dtype in self.dtypes


@dataclass(frozen=True)
class Attribute:
    name: str
    type: str
    required: bool
    default: Any = None


@dataclass(frozen=True)
class Prototype:
    """What a node of one type may look like."""

    type: str
    inputs: tuple[PrototypeSlot, ...]
    outputs: tuple[PrototypeSlot, ...]
    attributes: Mapping[str, Attribute]

    def input(self, name: str) -> PrototypeSlot | None:
        return next((slot for slot in self.inputs if slot.name == name), None)

    def output_names(self, counts: Mapping[str, int]) -> list[str]:
        """The names of a node's outputs, given how many there are of the dynamic ones."""
        return [
            name
            for slot in self.outputs
            for name in (
                (f"{slot.name}{i}" for i in range(counts.get(slot.name, 0))) if slot.dynamic else (slot.name,)
            )
        ]


@cache
def prototypes() -> Mapping[str, Prototype]:
    """All types that are known."""
    text = gzip.decompress(_TABLE.read_bytes()).decode()
    rows = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
    return {row[0]: _prototype(*row) for row in (*_FROM_HEADERS, *rows)}


def prototype(type_: str) -> Prototype:
    return prototypes()[type_]


def _prototype(type_: str, inputs: str, outputs: str, attributes: str) -> Prototype:
    parsed = [_attribute(text) for text in attributes.split(";") if text]
    return Prototype(type_, _slots(inputs), _slots(outputs), {a.name: a for a in parsed})


def _slots(text: str) -> tuple[PrototypeSlot, ...]:
    return tuple(_slot(*entry.split(":")) for entry in text.split(";") if entry)


def _slot(name: str, dtypes: str) -> PrototypeSlot:
    words = [word for word in dtypes.split("|") if word]
    variable = words[0] if len(words) == 1 and _VARIABLE.match(words[0]) else ""
    unknown = not words or variable or "ALL" in words
    known = frozenset(dtype for word in words for dtype in _SETS.get(word, word).split("|"))
    bare = name.rstrip("?*")
    return PrototypeSlot(bare, name.endswith("?"), name.endswith("*"), None if unknown else known, variable)


def _attribute(text: str) -> Attribute:
    name, _, rest = text.partition(":")
    if rest.endswith("!"):
        return Attribute(name, rest[:-1], required=True)
    type_, _, default = rest.partition("=")
    return Attribute(name, type_, required=False, default=_value(type_, default))


def _value(type_: str, text: str) -> Any:
    """The default of an attribute; the text itself where it is none of the plain kinds."""
    if type_.startswith("List"):
        words = [word.strip() for word in text.strip("{}").split(",") if word.strip()]
        return [_value(type_[4:], word) for word in words]
    if type_ == "Bool":
        return text in ("true", "1")
    if type_ == "String":
        return text.strip('"')
    if type_ in ("Int", "Float") and _NUMBER.match(text):
        return int(text) if type_ == "Int" else float(text.rstrip("f"))
    return text
