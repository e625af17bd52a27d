"""All conversions: operators of ATen as operators of the builder."""

from __future__ import annotations

from dicp.vendor.TopsGraph.conversions.shapes import TopsShapes

__all__ = ["TopsConversions"]


class TopsConversions(TopsShapes):
    """The families, each a class that extends the one before."""
