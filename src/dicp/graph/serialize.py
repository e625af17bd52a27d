"""Typed graphs as files: plain data and tensors, which load without running anything that is in them.

A file is what `torch.load(path, weights_only=True)` reads: the graph as JSON, and the tensors it holds by name.
"""

from __future__ import annotations

import io
import json
import math
import operator
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_symbols

from dicore.files import write_bytes
from dicp.errors import DicpError
from dicp.graph.inference import fake_mode_of
from dicp.graph.sizes import number_of, symbol_entry, symbol_of, text_of

__all__ = ["graph_from_json", "graph_to_json", "load_graph", "save_graph"]

VERSION = 1
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_NAMED = {
    torch.dtype: "dtype",
    torch.layout: "layout",
    torch.memory_format: "memory_format",
    torch.device: "device",
}
_MODULES = {"_operator": operator, "operator": operator, "math": math, "torch": torch}


def save_graph(gm: GraphModule, path: str | Path) -> None:
    """Writes a graph with its types and the tensors it holds. Raises DicpError for what a file cannot hold, OSError."""
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(graph_to_json(gm, tensors))
    buffer = io.BytesIO()
    torch.save({"graph": text, "tensors": tensors}, buffer)
    write_bytes(path, buffer.getvalue())


def load_graph(path: str | Path) -> GraphModule:
    """The graph of a file, with fake tensors and symbols of its own. Raises DicpError where it is none, OSError."""
    try:
        found = torch.load(path, weights_only=True)
        data, tensors = json.loads(found["graph"]), found["tensors"]
    except (KeyError, TypeError, ValueError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise DicpError(f"{path} is not a graph that dicp saved: {type(error).__name__}: {error}") from error
    return graph_from_json(data, tensors)


def graph_to_json(gm: GraphModule, tensors: dict[str, torch.Tensor], prefix: str = "") -> dict[str, Any]:
    """Plain data; tensors that the graph holds are added to `tensors`."""
    env = fake_mode_of(gm.graph).shape_env
    symbols: dict[Any, None] = {}
    nodes, children = [], {}
    for node in gm.graph.nodes:
        for value in torch.utils._pytree.tree_leaves(node.meta.get("val")):
            if isinstance(value, (torch.Tensor, *_SYMBOLIC)):
                symbols.update(dict.fromkeys(sorted(free_symbols(value), key=str)))
        entry: dict[str, Any] = {"name": node.name, "op": node.op}
        if "val" in node.meta:
            entry["type"] = _type(node.meta["val"])
        if node.op == "placeholder" and "constant" in node.meta:
            entry["constant"] = prefix + node.name
            entry["lifted"] = bool(node.meta.get("lifted"))
            tensors[prefix + node.name] = node.meta["constant"].detach()
        if node.op == "get_attr":
            entry["target"] = str(node.target)
            held = operator.attrgetter(str(node.target))(gm)
            if isinstance(held, GraphModule):
                children[str(node.target)] = graph_to_json(held, tensors, f"{prefix}{node.target}.")
            elif isinstance(held, torch.Tensor):
                tensors[prefix + str(node.target)] = held.detach()
            else:
                raise DicpError(f"a graph with {node.target}, a {type(held).__name__}, cannot be saved.")
        if node.op == "call_function":
            entry["target"] = _target(node.target)
        if node.op in ("call_function", "output"):
            entry["args"] = [_argument(argument) for argument in node.args]
            entry["kwargs"] = {name: _argument(argument) for name, argument in node.kwargs.items()}
        nodes.append(entry)
    return {
        "version": VERSION,
        "torch": torch.__version__,
        "symbols": [symbol_entry(symbol, env) for symbol in symbols],
        "nodes": nodes,
        "children": children,
    }


def graph_from_json(
    data: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    prefix: str = "",
    mode: FakeTensorMode | None = None,
) -> GraphModule:
    """The graph again. Raises DicpError for an operator that is not there."""
    if data.get("version") != VERSION:
        raise DicpError(
            f"a graph of version {data.get('version')}, expected {VERSION}. Save it again with this version of dicp."
        )
    if mode is None:
        mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    assert mode.shape_env is not None
    symbols = {str(entry["name"]): symbol_of(entry, mode.shape_env) for entry in data["symbols"]}
    root, graph, nodes = torch.nn.Module(), Graph(), dict[str, Node]()
    for name, child in data["children"].items():
        root.add_module(name, graph_from_json(child, tensors, f"{prefix}{name}."))
    for entry in data["nodes"]:
        args = _given(entry.get("args", []), nodes)
        kwargs = {name: _given(value, nodes) for name, value in entry.get("kwargs", {}).items()}
        match entry["op"]:
            case "placeholder":
                node = graph.placeholder(entry["name"])
                if "constant" in entry:
                    node.meta.update(constant=tensors[entry["constant"]], lifted=entry["lifted"])
            case "get_attr":
                if prefix + entry["target"] in tensors:
                    root.register_buffer(entry["target"], tensors[prefix + entry["target"]])
                node = Graph.create_node(graph, "get_attr", entry["target"], name=entry["name"])
            case "output":
                node = graph.output(*args)
            case _:
                node = graph.create_node(
                    "call_function", _function(entry["target"]), tuple(args), kwargs, entry["name"]
                )
        if "type" in entry:
            with mode.shape_env.suppress_guards(), mode:
                node.meta["val"] = _value(entry["type"], symbols)
        nodes[entry["name"]] = node
    return GraphModule(root, graph)


# -- types


def _type(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            raise DicpError(f"a graph with a tensor of layout {value.layout} cannot be saved.")
        numbers = [
            [text_of(n) for n in given] for given in (value.shape, value.stride(), (value.storage_offset(),))
        ]
        return {"tensor": [str(value.dtype), *numbers, str(value.device)]}
    if isinstance(value, _SYMBOLIC):
        return {"symbolic": text_of(value)}
    if isinstance(value, list | tuple):
        return {"tuple": [_type(item) for item in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise DicpError(f"a graph with a value of type {type(value).__name__} cannot be saved.")


def _value(written: Mapping[str, Any], symbols: Mapping[str, Any]) -> Any:
    if "tensor" in written:
        dtype, shape, strides, offset, device = written["tensor"]
        sizes, steps, [start] = ([number_of(n, symbols) for n in given] for given in (shape, strides, offset))
        options = {"dtype": getattr(torch, dtype.removeprefix("torch.")), "device": torch.device(device)}
        if isinstance(start, int) and start == 0:
            return torch.empty_strided(sizes, steps, **options)
        extent = sum(((size - 1) * step for size, step in zip(sizes, steps, strict=True)), start + 1)
        return torch.as_strided(torch.empty(extent, **options), sizes, steps, start)
    if "symbolic" in written:
        return number_of(written["symbolic"], symbols)
    if "tuple" in written:
        return tuple(_value(item, symbols) for item in written["tuple"])
    return written["value"]


# -- calls


def _target(target: Any) -> dict[str, str]:
    if isinstance(target, OpOverload):
        return {"operator": str(target)}
    if isinstance(target, HigherOrderOperator):
        return {"higher_order": target.name()}
    module, name = getattr(target, "__module__", ""), getattr(target, "__name__", "")
    if getattr(_MODULES.get(module), name, None) is target:
        return {"function": f"{module}.{name}"}
    raise DicpError(f"a graph with a call of {target} cannot be saved: it is not an operator of torch.")


def _function(written: Mapping[str, str]) -> Any:
    [(kind, name)] = written.items()
    try:
        if kind == "function":
            module, _, name = name.partition(".")
            return getattr(_MODULES[module], name)
        return operator.attrgetter(name)(torch.ops if kind == "operator" else torch.ops.higher_order)
    except (AttributeError, KeyError) as error:
        raise DicpError(
            f"a saved graph calls {name}, which is not there. Import the package that defines it."
        ) from error


def _argument(argument: Any) -> Any:
    if isinstance(argument, Node):
        return {"node": argument.name}
    if isinstance(argument, list):
        return [_argument(item) for item in argument]
    if isinstance(argument, tuple):
        return {"tuple": [_argument(item) for item in argument]}
    if isinstance(argument, slice):
        return {"slice": [_argument(item) for item in (argument.start, argument.stop, argument.step)]}
    if isinstance(argument, dict):
        return {"dict": {str(name): _argument(item) for name, item in argument.items()}}
    if isinstance(argument, complex):
        return {"complex": [argument.real, argument.imag]}
    for kind, name in _NAMED.items():
        if isinstance(argument, kind):
            return {name: str(argument)}
    if isinstance(argument, OpOverload):
        return {"operator": str(argument)}
    if argument is None or isinstance(argument, bool | int | float | str):
        return argument
    raise DicpError(f"a graph with an argument of type {type(argument).__name__} cannot be saved.")


def _given(written: Any, nodes: Mapping[str, Node]) -> Any:
    if isinstance(written, list):
        return [_given(item, nodes) for item in written]
    if not isinstance(written, dict):
        return written
    [(kind, value)] = written.items()
    match kind:
        case "node":
            return nodes[value]
        case "tuple":
            return tuple(_given(item, nodes) for item in value)
        case "slice":
            return slice(*(_given(item, nodes) for item in value))
        case "dict":
            return {name: _given(item, nodes) for name, item in value.items()}
        case "complex":
            return complex(*value)
        case "device":
            return torch.device(value)
        case "operator":
            return _function(written)
        case "dtype" | "layout" | "memory_format":
            return getattr(torch, value.removeprefix("torch."))
    raise DicpError(f"a saved graph has an argument of kind {kind!r}, which is not known.")
