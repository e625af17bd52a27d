"""What the operators of GE compute, by families."""

from dicp.vendor.AscendGraph.semantics import elementwise, layers, products, reductions, shapes

__all__ = ["elementwise", "layers", "products", "reductions", "shapes"]
