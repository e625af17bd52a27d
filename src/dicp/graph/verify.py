"""Checks a typed graph between passes, so that an error is found where it was made: `DICP_VERIFY`."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from dicp.errors import InvalidGraphError
from dicp.graph.inference import difference, inferred, inferring, infers
from dicp.settings import VERIFY

__all__ = ["verify_graph"]

_OPERATIONS = {"placeholder", "get_attr", "call_function", "output"}


def verify_graph(gm: GraphModule, made_by: str, level: str | None = None) -> None:
    """Raises InvalidGraphError, which names the pass and the node, where a graph breaks a rule.

    `rules`: nodes stand before their users, every value has a type, calls fit their operators' schemas. `types`: also, what is
    inferred anew from the arguments is what is written at each node. `off`: nothing is checked.
    """
    level = str(VERIFY.get()) if level is None else level
    if level == "off":
        return
    try:
        _check_rules(gm)
        if level == "types":
            _check_types(gm)
    except InvalidGraphError as error:
        raise InvalidGraphError(f"after the pass {made_by}: {error}") from error


def _check_rules(gm: GraphModule) -> None:
    try:
        gm.graph.lint()
    except (RuntimeError, AssertionError) as error:
        raise InvalidGraphError(str(error)) from error
    for node in gm.graph.nodes:
        if node.op not in _OPERATIONS:
            raise InvalidGraphError(
                f"{node.format_node()}: {node.op}, expected one of {', '.join(sorted(_OPERATIONS))}."
            )
        if node.op in ("placeholder", "call_function") and "val" not in node.meta:
            raise InvalidGraphError(
                f"{node.format_node()} has no type: a pass must set meta['val'], or call infer_types."
            )
        if node.op == "call_function" and isinstance(node.target, OpOverload):
            _check_call(node, node.target)


def _check_call(node: Node, target: OpOverload) -> None:
    """The arguments are those of the schema."""
    arguments = target._schema.arguments
    positional = [argument for argument in arguments if not argument.kwarg_only]
    if len(node.args) > len(positional):
        raise InvalidGraphError(
            f"{node.format_node()}: {len(node.args)} arguments, {target} takes {len(positional)} by position."
        )
    given: dict[str, Any] = dict(zip((argument.name for argument in positional), node.args, strict=False))
    unknown = set(node.kwargs) - {argument.name for argument in arguments}
    if unknown or given.keys() & node.kwargs.keys():
        name = min(unknown or given.keys() & node.kwargs.keys())
        what = "has no argument" if unknown else "is given twice the argument"
        raise InvalidGraphError(f"{node.format_node()}: {target} {what} {name!r}.")
    given.update(node.kwargs)
    for argument in arguments:
        if argument.name not in given:
            if not argument.has_default_value():
                raise InvalidGraphError(
                    f"{node.format_node()}: {target} needs the argument {argument.name!r}."
                )
            continue
        if isinstance(argument.type, torch.TensorType):
            _check_tensor(node, argument.name, given[argument.name])


def _check_tensor(node: Node, name: str, given: Any) -> None:
    value = given.meta.get("val") if isinstance(given, Node) else given
    # Operators that are called from Python take numbers for tensors.
    if not isinstance(
        value, torch.Tensor | bool | int | float | complex | torch.SymInt | torch.SymFloat | torch.SymBool
    ):
        raise InvalidGraphError(
            f"{node.format_node()}: the argument {name!r} of {node.target} is a {type(value).__name__}, expected a tensor."
        )


def _check_types(gm: GraphModule) -> None:
    with inferring(gm.graph):
        for node in gm.graph.nodes:
            if node.op != "call_function" or not infers(node):
                continue
            found = difference(node.meta["val"], inferred(node))
            if found:
                raise InvalidGraphError(
                    f"{node.format_node()}: what is written at it and what follows from its arguments: {found}."
                )
