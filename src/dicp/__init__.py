"""`torch.compile` backends for any chip: one way from a captured graph to a vendor's compiler, with eager fall-back.

`torch.compile(f, backend="hostgraph")` needs no import of this package: torch finds backends by their entry points.
"""

__version__ = "0.1.0"
