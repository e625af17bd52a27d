"""A graph of GE's operators as the JSON that its loader reads.

`data_nodes` are the inputs; a size that is known at the call only is one too, INT64 with one element. `common_nodes` are calls,
each after what it reads. Sizes that an operator needs become constants, or are computed from those inputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._sympy.interp import sympy_interp

from dicp.dynamo_bridge.symbols import expression_of
from dicp.errors import UnsupportedError
from dicp.vendor.AscendGraph.codegen.size_arithmetic import SizeArithmetic
from dicp.vendor.AscendGraph.dtypes import name_of
from dicp.vendor.AscendGraph.operators import AscendOperator
from dicp.vendor.AscendGraph.prototypes import PrototypeSlot, prototype

__all__ = ["DYNAMIC_SLOTS", "GraphWriter", "graph_json"]

Json = dict[str, Any]
DYNAMIC_SLOTS = {"ConcatD": "x", "Pack": "x", "IdentityN": "x", "SplitD": "y"}
"""The types of which the loader takes any number of inputs or outputs."""
_CARRIED_IN_JSON = {
    torch.float32: "FLOAT",
    torch.float16: "FLOAT16",
    torch.int32: "INT32",
    torch.int64: "INT64",
}
_INT32 = 1 << 31


def graph_json(gm: GraphModule, name: str) -> Json:
    """The graph as an object for `json.dumps`."""
    return GraphWriter(gm.graph, name).write()


class GraphWriter:
    """One graph on its way to JSON."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name
        self.data: list[Json] = []
        self.common: list[Json] = []
        self.constants: dict[Any, str] = {}
        self.sizes: dict[sympy.Expr, str] = {}
        """Names of the nodes that hold sizes, each with one element."""
        self.arithmetic = SizeArithmetic(self)
        self.is_dynamic = False

    def write(self) -> Json:
        for node in self.graph.find_nodes(op="placeholder"):
            self._data(node)
        for node in self.graph.nodes:
            if node.op == "call_function" and isinstance(node.target, AscendOperator):
                self._call(node, node.target)
        outputs = self._outputs()
        return {
            "name": self.name,
            "input_names": [node["op_name"] for node in self.data],
            "output_names": outputs,
            "has_dynamic_shape": self.is_dynamic,
            "build_options": self._build_options(),
            "data_nodes": self.data,
            "common_nodes": self.common,
        }

    def _build_options(self) -> list[Json]:
        """Sizes that are known at the call only are -1 there too."""
        if not self.is_dynamic:
            return []
        shapes = [f"{node['op_name']}:{','.join(map(str, node['dims']))}" for node in self.data]
        return [
            {"name": "input_format", "value": "ND"},
            {"name": "input_shape", "value": ";".join(shapes)},
        ]

    def _data(self, node: Node) -> None:
        value = node.meta["val"]
        if isinstance(value, Tensor):
            dims, dtype = self._dims(value), name_of(value.dtype)
        else:
            dims, dtype = [1], "INT64"
            expression = expression_of(value)
            assert expression is not None
            self.sizes[expression] = node.name
        self.data.append(
            {
                "op_name": node.name,
                "op_type": "Data",
                "dims": dims,
                "format": "ND",
                "data_type": dtype,
                "cpp_data_type": dtype,
                "index": len(self.data),
            }
        )

    def _dims(self, value: Tensor) -> list[int]:
        found = [size if isinstance(size, int) else -1 for size in value.shape]
        self.is_dynamic |= -1 in found
        return found

    def _call(self, node: Node, operator: AscendOperator) -> None:
        if operator.name == "Const":
            # Written where it is used, once for each value.
            return
        slots, inputs, dynamic = operator.prototype.inputs, [], []
        for slot, given in zip(slots, node.args, strict=False):
            if given is None:
                continue
            if slot.dynamic:
                assert isinstance(given, list | tuple)
                values = [{"index": i, **self._source(x)} for i, x in enumerate(given)]
                dynamic.append({"name": slot.name, "num": len(values), "value": values})
            else:
                inputs.append({"name": slot.name, **self._operand(operator, slot, given)})
        attributes = [
            _attribute(name, operator.prototype.attributes[name].type, value)
            for name, value in node.kwargs.items()
        ]
        self._add(node.name, operator.name, inputs, self._descriptions(node), attributes, dynamic)

    def _add(
        self,
        name: str,
        type_: str,
        inputs: Sequence[Json],
        outputs: Sequence[Json],
        attributes: Sequence[Json] = (),
        dynamic: Sequence[Json] = (),
    ) -> str:
        found: Json = {"op_name": name, "op_type": type_, "inputs": list(inputs), "outputs": list(outputs)}
        found["attrs"] = list(attributes)
        if dynamic:
            found["dynamic_inputs"] = list(dynamic)
        if any(slot.dynamic for slot in prototype(type_).outputs):
            [slot] = prototype(type_).outputs
            found["dynamic_outputs"] = [{"name": slot.name, "num": len(outputs)}]
        self.common.append(found)
        return name

    def _descriptions(self, node: Node) -> list[Json]:
        values = node.meta["val"]
        listed = list(values) if isinstance(values, list | tuple) else [values]
        [*slots] = node.target.prototype.outputs  # type: ignore[union-attr]
        dynamic = {slot.name: len(listed) - len(slots) + 1 for slot in slots if slot.dynamic}
        names = node.target.prototype.output_names(dynamic)  # type: ignore[union-attr]
        format_ = str(node.kwargs.get("data_format", "ND"))
        return [
            {"output_name": name, "update_desc": self._description(value, format_)}
            for name, value in zip(names, listed, strict=True)
        ]

    def _description(self, value: Tensor, format_: str = "ND") -> Json:
        return {
            "format": format_ if value.dim() == len(format_) else "ND",
            "shape": self._dims(value),
            "data_type": name_of(value.dtype),
        }

    # Operands.

    def _operand(self, operator: AscendOperator, slot: PrototypeSlot, given: Any) -> Json:
        if isinstance(given, Node):
            source = self._source(given)
            if "data_format" in operator.prototype.attributes and "index" not in source:
                value = given.meta["val"]
                if value.dim() == len("NCHW"):
                    source["update_desc"] = {**self._description(value, "NCHW"), "output_name": "none"}
            return source
        dtype = "INT64" if slot.allows("INT64") else "INT32"
        if isinstance(given, list | tuple):
            return {"value": self.size_vector(given, dtype)}
        return {"value": self.size_scalar(given, dtype)}

    def _source(self, node: Any) -> Json:
        """What gives a value: a node, and which of its outputs."""
        if node.op == "call_function" and not isinstance(node.target, AscendOperator):
            producer, index = node.args
            return {"value": producer.name, "index": index}
        if isinstance(node.target, AscendOperator) and node.target.name == "Const":
            return {"value": self.constant(node.kwargs["value"], node.kwargs["dtype"])}
        return {"value": node.name}

    def constant(self, value: Any, dtype: torch.dtype) -> str:
        """The name of the node of a constant."""
        tensor = torch.tensor(value, dtype=dtype, device="cpu")
        key = (repr(value), dtype)
        if key not in self.constants:
            attribute = {
                "name": "value",
                "value_type": "tensor",
                "tensor_data_type": name_of(dtype),
                "tensor_cpp_data_type": _CARRIED_IN_JSON[dtype],
                "tensor_format": "ND",
                "tensor_dims": list(tensor.shape),
                "tensor_value": tensor.reshape(-1).tolist(),
            }
            output = {"output_name": "y", "update_desc": self._description(tensor)}
            name = f"const_{len(self.constants)}"
            self.constants[key] = self._add(name, "Const", [], [output], [attribute])
        return self.constants[key]

    # Sizes: INT64 with one element each.

    def size_vector(self, sizes: Sequence[Any], dtype: str = "INT64") -> str:
        wanted = torch.int64 if dtype == "INT64" else torch.int32
        if all(isinstance(size, int) for size in sizes):
            return self.constant(list(map(int, sizes)), wanted)
        names = [self.size(size) for size in sizes]
        if len(names) == 1:
            return self.size_as(names[0], [1], dtype)
        values = [{"index": i, "value": name} for i, name in enumerate(names)]
        joined = self._add(
            f"sizes_{len(self.common)}",
            "ConcatD",
            [],
            [_size_output([len(names)])],
            [_attribute("concat_dim", "Int", 0), _attribute("N", "Int", len(names))],
            [{"name": "x", "num": len(names), "value": values}],
        )
        return self.size_as(joined, [len(names)], dtype)

    def size_scalar(self, size: Any, dtype: str = "INT64") -> str:
        if isinstance(size, int):
            return self.constant(size, torch.int64 if dtype == "INT64" else torch.int32)
        inputs = [{"name": "x", "value": self.size(size)}]
        scalar = self._add(
            f"size_{len(self.common)}", "Squeeze", inputs, [_size_output([])], [_attribute("axis", "ListInt", [0])]
        )  # fmt: skip
        return self.size_as(scalar, [], dtype)

    def size_as(self, name: str, shape: list[int], dtype: str) -> str:
        if dtype == "INT64":
            return name
        attributes = [_attribute("dst_type", "Int", 3)]
        output = _size_output(shape, dtype)
        return self._add(
            f"size_{len(self.common)}", "Cast", [{"name": "x", "value": name}], [output], attributes
        )

    def size(self, size: Any) -> str:
        """The node that holds a size."""
        if isinstance(size, int):
            return self.constant([size], torch.int64)
        expression = expression_of(size)
        assert expression is not None
        if expression not in self.sizes:
            missing = [symbol for symbol in expression.free_symbols if symbol not in self.sizes]
            if missing:
                raise UnsupportedError(f"the size {expression}: no input says what {missing[0]} is")
            known: Any = {symbol: self.sizes[symbol] for symbol in expression.free_symbols}
            found = sympy_interp(self.arithmetic, known, expression)
            self.sizes[expression] = self.constant([found], torch.int64) if isinstance(found, int) else found
        return self.sizes[expression]

    def size_call(self, type_: str, *names: str) -> str:
        """An operator of GE on sizes."""
        slots = prototype(type_).inputs
        inputs = [{"name": slot.name, "value": name} for slot, name in zip(slots, names, strict=True)]
        return self._add(f"size_{len(self.common)}", type_, inputs, [_size_output([1])])

    # Outputs.

    def _outputs(self) -> list[str]:
        """Each output is a node of one output of its own: the loader knows no other."""
        listed: Any = self.graph.output_node().args[0]
        names: list[str] = []
        for node in listed:
            source, value = self._source(node), node.meta["val"]
            single = isinstance(node.target, AscendOperator) and node.target.name != "Const"
            name = source["value"]
            if not single or "index" in source or name in names:
                name = self._copy(source, value, len(names))
            names.append(name)
        return names

    def _copy(self, source: Mapping[str, Any], value: Tensor, number: int) -> str:
        """Identity takes no BF16; a cast to the same dtype is one too."""
        output = {"output_name": "y", "update_desc": self._description(value)}
        if prototype("Identity").inputs[0].allows(name_of(value.dtype)):
            return self._add(f"output_{number}", "Identity", [{"name": "x", **source}], [output])
        attributes = [_attribute("dst_type", "Int", 27)]
        return self._add(f"output_{number}", "Cast", [{"name": "x", **source}], [output], attributes)


def _size_output(shape: list[int], dtype: str = "INT64") -> Json:
    return {"output_name": "y", "update_desc": {"format": "ND", "shape": shape, "data_type": dtype}}


def _attribute(name: str, type_: str, value: Any) -> Json:
    match type_:
        case "Type":
            return {"name": name, "value_type": "dtype_str", "value": name_of(value)}
        case "Int":
            kind = "int" if -_INT32 <= value < _INT32 else "int64"
            return {"name": name, "value_type": kind, "value": int(value)}
        case "Float":
            return {"name": name, "value_type": "float", "value": float(value)}
        case "Bool":
            return {"name": name, "value_type": "bool", "value": bool(value)}
        case "String":
            return {"name": name, "value_type": "str", "value": str(value)}
        case "ListInt":
            if not all(isinstance(item, int) for item in value):
                raise UnsupportedError(f"the attribute {name} holds sizes that are known at the call only")
            return {"name": name, "value_type": "list_int", "value": list(map(int, value))}
        case "ListFloat":
            return {"name": name, "value_type": "list_float", "value": list(map(float, value))}
    raise UnsupportedError(f"the loader knows no attributes of type {type_} ({name})")
