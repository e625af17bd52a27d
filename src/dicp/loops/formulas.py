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

from dicp.loops import recipes_activation, recipes_arithmetic, recipes_copy, recipes_gradient
from dicp.loops.primitives import DTYPES, BodyBuilder, Number, Value, held
from dicp.loops.recipes import Argument, PromotionKind, Recipe

__all__ = ["FORMULAS", "Formula", "formula_of"]

FORMULAS: Mapping[str, Recipe] = {
    **recipes_arithmetic.RECIPES,
    **recipes_activation.RECIPES,
    **recipes_copy.RECIPES,
    **recipes_gradient.RECIPES,
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
    promoted: torch.dtype
    """What operands are converted to before the arithmetic: `computed_in`, or the 16-bit float that is held in it."""
    dtype: torch.dtype
    """Of the result in memory."""

    def build(self, builder: BodyBuilder, values: Sequence[Value]) -> Value:
        """The result, in `held(dtype)`; it is rounded to a 16-bit dtype only where the node asks for a conversion."""
        by_node = dict(zip(self.operands, values, strict=True))
        if self.recipe.converts:
            return builder.cast(by_node[self.operands[0]], self.dtype)
        given: dict[str, Argument] = {}
        for name, argument in self.arguments.items():
            if isinstance(argument, Node):
                given[name] = self._converted(builder, name, argument, by_node[argument])
            elif self._rounds(name) and isinstance(argument, (int, float)):
                given[name] = torch.tensor(argument, dtype=self.promoted).item()
            else:
                given[name] = argument
        if self.recipe.sees_result:
            given["result"] = self.dtype
        result = self.recipe.build(builder, self.computed_in, **given)
        if isinstance(result, (bool, int, float)):
            return builder.constant(result, held(self.dtype))
        return builder.cast(result, held(self.dtype))

    def _rounds(self, name: str) -> bool:
        """Whether a number is rounded to the 16-bit float of the tensors beside it."""
        return (
            self.promoted is not self.computed_in and not self.recipe.opmath and name in self.recipe.promotes
        )

    def _converted(self, builder: BodyBuilder, name: str, operand: Node, value: Value) -> Value:
        asked = self.recipe.dtypes.get(name)
        if asked is not None or self.promoted is self.computed_in or name not in self.recipe.promotes:
            return builder.cast(value, asked or self.computed_in)
        stored = operand.meta["val"]
        one = not isinstance(stored, torch.Tensor) or stored.dim() == 0
        if getattr(stored, "dtype", None) is not self.promoted and not (one and self.recipe.opmath):
            value = builder.cast(value, self.promoted)
        return builder.cast(value, self.computed_in)


def formula_of(node: Node) -> Formula | None:
    """The formula of a node, or None: it is no pointwise operator, or one of dtypes that formulas do not know."""
    recipe = _recipe_of(node)
    result: Any = node.meta.get("val")
    if recipe is None or not _is_plain(result):
        return None
    arguments = _arguments(node, recipe)
    if arguments is None:
        return None
    operands = tuple(dict.fromkeys(a for a in arguments.values() if isinstance(a, Node)))
    if not all(_is_operand(operand) for operand in operands):
        return None
    tensors = [o.meta["val"] for o in operands if isinstance(o.meta["val"], torch.Tensor)]
    if any((t.device != result.device and t.dim()) or not _broadcasts(t, result) for t in tensors):
        return None
    computed_in, promoted = _computed_in(recipe, arguments, result.dtype)
    if computed_in not in recipe.computes or result.dtype not in recipe.stores:
        return None
    return Formula(node, recipe, operands, arguments, computed_in, promoted, result.dtype)


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


def _broadcasts(operand: torch.Tensor, result: torch.Tensor) -> bool:
    """Not where an operand is a stand-in of no elements."""
    own = operand.shape[::-1]
    return len(own) <= result.dim() and all(
        not isinstance(n, int) or n == 1 or not isinstance(m, int) or n == m
        for n, m in zip(own, result.shape[::-1], strict=False)
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
    for number, argument in enumerate(node.target._schema.arguments):
        if number < len(node.args):
            value = node.args[number]
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


def _computed_in(
    recipe: Recipe, arguments: Mapping[str, Any], dtype: torch.dtype
) -> tuple[torch.dtype, torch.dtype]:
    if recipe.kind is None:
        return held(dtype), dtype
    promoted = [arguments[name] for name in recipe.promotes if arguments.get(name) is not None]
    values: list[torch.Tensor | Number] = [p.meta["val"] if isinstance(p, Node) else p for p in promoted]
    if not values or any(isinstance(v, str) for v in values):
        return held(dtype), dtype
    kind = PromotionKind.DEFAULT if recipe.kind is PromotionKind.ALWAYS_BOOL else recipe.kind
    computed_in, common = elementwise_dtypes(*values, type_promotion_kind=kind)
    return computed_in, common if held(common) is computed_in else computed_in
