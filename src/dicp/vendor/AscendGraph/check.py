"""Holds the nodes of an emitted graph against GE's published prototypes and the rules of its loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from dicp.errors import InvalidGraphError
from dicp.vendor.AscendGraph.codegen.graph_json import DYNAMIC_SLOTS
from dicp.vendor.AscendGraph.dtypes import NUMBERS
from dicp.vendor.AscendGraph.prototypes import Attribute, Prototype, PrototypeSlot, prototypes

__all__ = ["check_graph", "problems"]

_FORMATS = {"ND", "NCHW", "NHWC", "FRACTAL_NZ"}
_VALUE_TYPES: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "Int": {"int": int, "int64": int},
    "Float": {"float": (int, float)},
    "Bool": {"bool": bool},
    "String": {"str": str},
    "Type": {"dtype_str": str},
    "ListInt": {"list_int": list},
    "ListFloat": {"list_float": list},
    "Tensor": {"tensor": object},
}


def check_graph(graph: Mapping[str, Any]) -> int:
    """The number of nodes, all of which are right. Raises InvalidGraphError, which names the first that is not."""
    found = next(problems(graph), None)
    if found is not None:
        raise InvalidGraphError(f"graph {graph.get('name')}: {found}")
    return len(graph["data_nodes"]) + len(graph["common_nodes"])


def problems(graph: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a graph, node by node."""
    known = _Known()
    for number, node in enumerate(graph["data_nodes"]):
        yield from _data_problems(node, number)
        known.add(node["op_name"], {"y": node["data_type"]})
    for node in graph["common_nodes"]:
        name, type_ = node["op_name"], node["op_type"]
        where = f"{name} ({type_})"
        if name in known.outputs:
            yield f"{where}: there are two nodes of the name"
        prototype = prototypes().get(type_)
        if prototype is None:
            yield f"{where}: none of the {len(prototypes())} published types"
            continue
        for text in _NodeCheck(node, prototype, known).problems():
            yield f"{where}: {text}"
        known.add(name, {o["output_name"]: o["update_desc"]["data_type"] for o in node["outputs"]})
    for name in graph["input_names"]:
        if all(node["op_name"] != name for node in graph["data_nodes"]):
            yield f"input {name} is no data node"
    for name in graph["output_names"]:
        if len(known.outputs.get(name, {})) != 1:
            yield f"output {name} is no node with one output"


@dataclass
class _Known:
    """The outputs of the nodes so far, and their dtypes."""

    outputs: dict[str, dict[str, str]] = field(default_factory=dict)

    def add(self, name: str, outputs: Mapping[str, str]) -> None:
        self.outputs[name] = dict(outputs)


def _data_problems(node: Mapping[str, Any], number: int) -> Iterator[str]:
    where = f"{node['op_name']} (Data)"
    if node["op_type"] != "Data" or node["index"] != number:
        yield f"{where}: expected Data with the index {number}"
    if node["data_type"] not in NUMBERS:
        yield f"{where}: there is no dtype {node['data_type']}"
    if node["format"] not in _FORMATS or any(size < -1 for size in node["dims"]):
        yield f"{where}: the format {node['format']} or the sizes {node['dims']}"


@dataclass
class _NodeCheck:
    node: Mapping[str, Any]
    prototype: Prototype
    known: _Known

    def problems(self) -> Iterator[str]:
        dtypes: dict[str, str] = {}
        for slot, name, dtype in self._inputs():
            if not dtype:
                yield f"its input {name} reads what is not there"
                continue
            yield from self._slot_problems(f"input {name}", slot, dtype, dtypes)
        yield from self._missing_inputs()
        for slot, name, dtype in self._outputs():
            yield from self._slot_problems(f"output {name}", slot, dtype, dtypes)
        yield from self._count_problems()
        yield from self._attribute_problems()

    def _inputs(self) -> Iterator[tuple[PrototypeSlot | None, str, str]]:
        for given in self.node["inputs"]:
            slot = self.prototype.input(given["name"])
            yield (None if slot is not None and slot.dynamic else slot), given["name"], self._dtype(given)
        for group in self.node.get("dynamic_inputs", ()):
            slot = self.prototype.input(group["name"])
            for value in group["value"]:
                yield slot, f"{group['name']}{value['index']}", self._dtype(value)

    def _dtype(self, given: Mapping[str, Any]) -> str:
        """That of the output that is read; nothing where there is none."""
        outputs = list(self.known.outputs.get(given["value"], {}).values())
        index = given.get("index", 0) if "name" in given else 0
        if "name" not in given and "edge" in given:
            return self.known.outputs.get(given["value"], {}).get(given["edge"], "")
        if index >= len(outputs) or ("index" not in given and len(outputs) != 1):
            return ""
        return outputs[index]

    def _slot_problems(
        self, what: str, slot: PrototypeSlot | None, dtype: str, dtypes: dict[str, str]
    ) -> Iterator[str]:
        if slot is None:
            yield f"there is no {what}"
            return
        if not slot.allows(dtype) or dtype not in NUMBERS:
            yield f"{what} is {dtype}, expected one of {', '.join(sorted(slot.dtypes or NUMBERS))}"
        if slot.variable in ("", "T1", "T2", "T3") or dtypes.setdefault(slot.variable, dtype) == dtype:
            return
        yield f"{what} is {dtype}, expected {dtypes[slot.variable]} as all of {slot.variable}"

    def _missing_inputs(self) -> Iterator[str]:
        given = [entry["name"] for entry in (*self.node["inputs"], *self.node.get("dynamic_inputs", ()))]
        for slot in self.prototype.inputs:
            if slot.name not in given and not slot.optional:
                yield f"it has no input {slot.name}"
        for name in {name for name in given if given.count(name) > 1}:
            yield f"its input {name} is given twice"

    def _outputs(self) -> Iterator[tuple[PrototypeSlot | None, str, str]]:
        counts = {group["name"]: group["num"] for group in self.node.get("dynamic_outputs", ())}
        by_name = {
            name: slot
            for slot in self.prototype.outputs
            for name in ([f"{slot.name}{i}" for i in range(counts.get(slot.name, 0))] if slot.dynamic else [slot.name])
        }  # fmt: skip
        for given in self.node["outputs"]:
            yield by_name.get(given["output_name"]), given["output_name"], given["update_desc"]["data_type"]

    def _count_problems(self) -> Iterator[str]:
        counts = {group["name"]: group["num"] for group in self.node.get("dynamic_outputs", ())}
        names = [given["output_name"] for given in self.node["outputs"]]
        expected = self.prototype.output_names(counts)
        if names != expected:
            yield f"it has the outputs {', '.join(names)}, expected {', '.join(expected)}"
        for given in self.node["outputs"]:
            description = given["update_desc"]
            if description["format"] not in _FORMATS or any(size < -1 for size in description["shape"]):
                yield f"output {given['output_name']}: the format or the sizes of {description}"
        for group in self.node.get("dynamic_inputs", ()):
            if group["num"] != len(group["value"]):
                yield f"input {group['name']}: {group['num']} are announced, {len(group['value'])} given"
        many = [*self.node.get("dynamic_inputs", ()), *self.node.get("dynamic_outputs", ())]
        if any(DYNAMIC_SLOTS.get(self.prototype.type) != group["name"] for group in many):
            yield f"the loader takes any number of {', '.join(DYNAMIC_SLOTS)} alone"

    def _attribute_problems(self) -> Iterator[str]:
        given = {attribute["name"]: attribute for attribute in self.node["attrs"]}
        for name, attribute in given.items():
            declared = self.prototype.attributes.get(name)
            if declared is None:
                yield f"it has no attribute {name}"
            else:
                yield from _value_problems(attribute, declared)
        for name, declared in self.prototype.attributes.items():
            if declared.required and name not in given:
                yield f"its attribute {name} is missing"


def _value_problems(given: Mapping[str, Any], declared: Attribute) -> Iterator[str]:
    kinds = _VALUE_TYPES.get(declared.type, {})
    kind = kinds.get(given["value_type"])
    if kind is None:
        yield f"attribute {declared.name} is a {given['value_type']}, expected {declared.type}"
        return
    value = given.get("value")
    if declared.type == "Type" and value not in NUMBERS:
        yield f"attribute {declared.name}: there is no dtype {value}"
    elif declared.type == "Tensor":
        count = 1
        for size in given["tensor_dims"]:
            count *= size
        if count != len(given["tensor_value"]) or given["tensor_data_type"] not in NUMBERS:
            yield f"attribute {declared.name}: {len(given['tensor_value'])} values for {given['tensor_dims']}"
    elif not isinstance(value, kind) or (declared.type != "Bool" and isinstance(value, bool)):
        yield f"attribute {declared.name} is {value!r}, expected {declared.type}"
