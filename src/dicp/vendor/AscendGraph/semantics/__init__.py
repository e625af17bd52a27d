"""What the operators of GE compute, by families."""

from dicp.vendor.AscendGraph.semantics import elementwise, products, reductions, shapes

__all__ = ["elementwise", "products", "reductions", "shapes"]
