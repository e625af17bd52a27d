"""What a recipe is: how one pointwise operator is made of primitives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as PromotionKind

from dicp.loops.primitives import ALL, DTYPES, FLOATS, BodyBuilder, Number, Value

__all__ = ["Argument", "PromotionKind", "Recipe", "Recipes"]

Operand = Value | Number
Argument = Value | Number | str | torch.dtype | None
Build = Callable[..., Operand]
"""Called with the builder, the dtype of the arithmetic and the arguments by their names in the schema."""


@dataclass(frozen=True)
class Recipe:
    """How an operator is promoted and computed."""

    build: Build
    kind: PromotionKind | None = PromotionKind.DEFAULT
    """None: the arithmetic is done in the result's dtype."""
    promotes: tuple[str, ...] = ("self", "other", "a", "b")
    """The arguments that take part in promotion."""
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    """Of arguments that are not computed in the common dtype."""
    ignores: tuple[str, ...] = ()
    """Arguments that no element depends on."""
    computes: frozenset[torch.dtype] = ALL
    """Dtypes of the arithmetic that the recipe is right for."""
    stores: frozenset[torch.dtype] = DTYPES
    """Dtypes of the result that it is right for."""
    converts: bool = False
    """The result is the operand converted, rounded if its dtype has 16 bits."""
    opmath: bool = False
    """Beside tensors of a 16-bit float, numbers and tensors of one element are not rounded to that dtype."""
    sees_result: bool = False
    """It is also given the dtype that is stored, as `result`."""


class Recipes(dict[str, Recipe]):
    """A table that is filled by decorators."""

    def define(
        self,
        *names: str,
        kind: PromotionKind | None = PromotionKind.DEFAULT,
        promotes: tuple[str, ...] = ("self", "other", "a", "b"),
        dtypes: Mapping[str, torch.dtype] | None = None,
        ignores: tuple[str, ...] = (),
        computes: frozenset[torch.dtype] | None = None,
        stores: frozenset[torch.dtype] = DTYPES,
        converts: bool = False,
        opmath: bool = False,
        sees_result: bool = False,
    ) -> Callable[[Build], Build]:
        """The decorated function is what the named operators compute."""
        if computes is None:
            computes = FLOATS if kind is PromotionKind.INT_TO_FLOAT else ALL

        def add(build: Build) -> Build:
            for name in names:
                full = name if "." in name and name.split(".")[0] in ("aten", "prims") else f"aten.{name}"
                self[full] = Recipe(
                    build,
                    kind,
                    promotes,
                    dict(dtypes or {}),
                    ignores,
                    computes,
                    stores,
                    converts,
                    opmath,
                    sees_result,
                )
            return build

        return add

    def primitive(
        self, name: str, *names: str, kind: PromotionKind = PromotionKind.DEFAULT, **rest: object
    ) -> None:
        """Operators that are one primitive, of their promoted arguments in order."""

        def build(b: BodyBuilder, dtype: torch.dtype, **operands: Operand) -> Value:
            return b.op(name, *operands.values())

        self.define(*(names or (f"aten.{name}", f"prims.{name}")), kind=kind, **rest)(build)  # type: ignore[arg-type]
