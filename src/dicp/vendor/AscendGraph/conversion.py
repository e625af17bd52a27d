"""The conversions of all families as one transformer."""

from __future__ import annotations

from dicp.vendor.AscendGraph.conversions.elementwise import ElementwiseConversions
from dicp.vendor.AscendGraph.conversions.layers import LayerConversions
from dicp.vendor.AscendGraph.conversions.places import PlaceConversions
from dicp.vendor.AscendGraph.conversions.products import ProductConversions
from dicp.vendor.AscendGraph.conversions.reductions import ReductionConversions
from dicp.vendor.AscendGraph.conversions.shapes import ShapeConversions

__all__ = ["AscendConversions"]


class AscendConversions(
    ElementwiseConversions,
    ShapeConversions,
    PlaceConversions,
    ReductionConversions,
    ProductConversions,
    LayerConversions,
):
    """From operators of ATen to operators of GE."""

    conversions = {  # noqa: RUF012  (as the base class declares it)
        **ElementwiseConversions.conversions,
        **ShapeConversions.conversions,
        **PlaceConversions.conversions,
        **ReductionConversions.conversions,
        **ProductConversions.conversions,
        **LayerConversions.conversions,
    }
