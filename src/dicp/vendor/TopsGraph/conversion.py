"""All conversions: operators of ATen as operators of the builder."""

from __future__ import annotations

from dicp.vendor.TopsGraph.conversions.places import TopsPlaces

__all__ = ["TopsConversions"]


class TopsConversions(TopsPlaces):
    """The families, each a class that extends the one before."""
