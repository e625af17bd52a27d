"""What a call of a pointwise operator computes for one element.

`formula_of(node)` joins a recipe (the table of `recipes*.py`: which arguments are promoted, and how primitives make the result)
with the arguments of one node. What is not pointwise, and what holds complex or quantised numbers, has no formula.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._prims_common import elementwise_dtypes
from torch.fx import Node

from dicp.loops import recipes_activation, recipes_arithmetic, recipes_copy
from dicp.loops.primitives import DTYPES, BodyBuilder, Number, Value, held
from dicp.loops.recipes import Argument, Recipe

__all__ = ["FORMULAS", "Formula", "formula_of"]

FORMULAS: Mapping[str, Recipe] = {
    **recipes_arithmetic.RECIPES,
    **recipes_activation.RECIPES,
    **recipes_copy.RECIPES,
}
"""By `namespace.packet.overload`, or by `namespace.packet` for those of its overloads that are not named."""


@dataclass(frozen=True)
class Formula:
    """One node as a function of one element of each operand; operands broadcast to the result's shape."""

    node: Node
    recipe: Recipe
    operands: tuple[Node, ...]
    """Tensors, and numbers that are only known when the graph runs (their value is int64, float64 or bool)."""
    arguments: Mapping[str, Any]
    computed_in: torch.dtype
    dtype: torch.dtype
    """Of the result in memory."""

    def build(self, builder: BodyBuilder, values: Sequence[Value]) -> Value:
        """The result, in `held(dtype)`; it is rounded to a 16-bit dtype only where the node asks for a conversion."""
        by_node = dict(zip(self.operands, values, strict=True))
        given: dict[str, Argument] = {}
        for name, argument in self.arguments.items():
            if isinstance(argument, Node):
                given[name] = builder.cast(by_node[argument], self.recipe.dtypes.get(name, self.computed_in))
            else:
                given[name] = argument
        result = self.recipe.build(builder, self.computed_in, **given)
        if isinstance(result, (bool, int, float)):
            return builder.constant(result, held(self.dtype))
        if self.recipe.converts:
            return builder.cast(by_node[self.operands[0]], self.dtype)
        return builder.cast(result, held(self.dtype))


def formula_of(node: Node) -> Formula | None:
    """The formula of a node, or None: it is no pointwise operator, or one of dtypes that formulas do not know."""
    recipe = _recipe_of(node)
    result = node.meta.get("val")
    if recipe is None or not _is_plain(result):
        return None
    arguments = _arguments(node, recipe)
    if arguments is None:
        return None
    operands = tuple(dict.fromkeys(a for a in arguments.values() if isinstance(a, Node)))
    if not all(_is_operand(operand) for operand in operands):
        return None
    computed_in = _computed_in(recipe, arguments, result.dtype)
    if computed_in not in recipe.computes:
        return None
    return Formula(node, recipe, operands, arguments, computed_in, result.dtype)


def _recipe_of(node: Node) -> Recipe | None:
    target = node.target
    if (
        node.op != "call_function"
        or not isinstance(target, torch._ops.OpOverload)
        or target._schema.is_mutable
    ):
        return None
    packet = f"{target.namespace}.{target._opname}"
    return FORMULAS.get(f"{packet}.{target._overloadname}") or FORMULAS.get(packet)


def _is_plain(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dtype in DTYPES
        and value.layout is torch.strided
        and not value.is_neg()
    )


def _is_operand(node: Node) -> bool:
    value = node.meta.get("val")
    return _is_plain(value) or isinstance(
        value, (torch.SymInt, torch.SymFloat, torch.SymBool, bool, int, float)
    )


def _arguments(node: Node, recipe: Recipe) -> dict[str, Any] | None:
    """By name, with defaults; None if one of them is of a kind that the recipe does not know."""
    assert isinstance(node.target, torch._ops.OpOverload)
    found: dict[str, Any] = {}
    for place, argument in enumerate(node.target._schema.arguments):
        if place < len(node.args):
            value = node.args[place]
        elif argument.name in node.kwargs:
            value = node.kwargs[argument.name]
        elif argument.has_default_value():
            value = argument.default_value
        else:
            return None
        if argument.name in recipe.ignores:
            continue
        if not isinstance(value, (Node, bool, int, float, str, torch.dtype, type(None))):
            return None
        found[_NAMES.get(argument.name, argument.name)] = value
    return found


_NAMES = {"lambda": "lambd"}


def _computed_in(recipe: Recipe, arguments: Mapping[str, Any], dtype: torch.dtype) -> torch.dtype:
    if recipe.kind is None:
        return held(dtype)
    promoted = [arguments[name] for name in recipe.promotes if arguments.get(name) is not None]
    values: list[torch.Tensor | Number] = [p.meta["val"] if isinstance(p, Node) else p for p in promoted]
    if not values or any(isinstance(v, str) for v in values):
        return held(dtype)
    computed_in, _ = elementwise_dtypes(*values, type_promotion_kind=recipe.kind)
    return computed_in
