"""An emitted GE graph: its text, its check, and an interpreter that runs it on the CPU from the JSON alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dicp.emitted.program import EmittedProgram
from dicp.errors import InvalidGraphError
from dicp.vendor.AscendGraph.check import check_graph
from dicp.vendor.AscendGraph.dtypes import dtype_named
from dicp.vendor.AscendGraph.operators import AscendOperator, operator_of

__all__ = ["AscendProgram"]

Json = Mapping[str, Any]


class AscendProgram(EmittedProgram):
    """A graph in JSON."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.graph: Json = json.loads(text)

    def texts(self) -> Mapping[str, str]:
        return {"ge_graph.json": self.text}

    def check(self) -> None:
        check_graph(self.graph)

    def interpret(self, inputs: Sequence[Any]) -> list[Tensor]:
        with torch.no_grad():
            values = {
                node["op_name"]: [_given(node, value)]
                for node, value in zip(self.graph["data_nodes"], inputs, strict=True)
            }
            last = _last_uses(self.graph)
            for number, node in enumerate(self.graph["common_nodes"]):
                values[node["op_name"]] = _run(node, values)
                for name in last.get(number, ()):
                    values.pop(name, None)
            return [values[name][0] for name in self.graph["output_names"]]


def _given(node: Json, value: Any) -> Tensor:
    """An input, as its data node announces it."""
    tensor = value if isinstance(value, Tensor) else torch.tensor([value])
    _require_like(f"input {node['op_name']}", tensor, node["dims"], node["data_type"])
    return tensor.contiguous()


def _require_like(what: str, tensor: Tensor, dims: Sequence[int], dtype: str) -> None:
    fits = tensor.dim() == len(dims) and all(n in (-1, m) for n, m in zip(dims, tensor.shape, strict=True))
    if tensor.dtype != dtype_named(dtype) or not fits:
        raise InvalidGraphError(
            f"{what} is {tensor.dtype} {list(tensor.shape)}, the graph says {dtype} {list(dims)}"
        )


def _run(node: Json, values: Mapping[str, list[Tensor]]) -> list[Tensor]:
    operator = operator_of(node["op_type"])
    attributes = {given["name"]: _attribute(given) for given in node["attrs"]}
    if operator.name == "Const":
        attributes = dict(attributes["value"])
    result = operator.computation(*_operands(operator, node, values), **attributes)
    results = list(result) if isinstance(result, list | tuple) else [result]
    where = f"{node['op_name']} ({operator.name})"
    for given, value in zip(node["outputs"], results, strict=True):
        description = given["update_desc"]
        _require_like(f"{where}: {given['output_name']}", value, description["shape"], description["data_type"])  # fmt: skip
    return results


def _operands(operator: AscendOperator, node: Json, values: Mapping[str, list[Tensor]]) -> list[Any]:
    single = {given["name"]: values[given["value"]][given.get("index", 0)] for given in node["inputs"]}
    many = {
        group["name"]: [values[value["value"]][0] for value in group["value"]]
        for group in node.get("dynamic_inputs", ())
    }
    found: list[Any] = []
    for slot in operator.prototype.inputs:
        value: Any = many.get(slot.name) if slot.dynamic else single.get(slot.name)
        found.append(value.tolist() if slot.name in operator.integers and value is not None else value)
    while found and found[-1] is None:
        found.pop()
    return found


def _attribute(given: Json) -> Any:
    match given["value_type"]:
        case "dtype_str":
            return dtype_named(given["value"])
        case "tensor":
            dtype = dtype_named(given["tensor_data_type"])
            return {"value": given["tensor_value"], "dtype": dtype, "shape": given["tensor_dims"]}
    return given["value"]


def _last_uses(graph: Json) -> dict[int, list[str]]:
    """After which node each value is needed no more."""
    last: dict[str, int] = {}
    for number, node in enumerate(graph["common_nodes"]):
        last[node["op_name"]] = number
        groups = (group["value"] for group in node.get("dynamic_inputs", ()))
        for given in (*node["inputs"], *(value for group in groups for value in group)):
            last[given["value"]] = number
    found: dict[int, list[str]] = {}
    for name, number in last.items():
        if name not in graph["output_names"]:
            found.setdefault(number, []).append(name)
    return found
