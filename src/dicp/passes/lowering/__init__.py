"""From a backend's graph to a program of the loop IR.

A node is a view, a formula of one element, a copy in another order, a reduction, or a call (`definitions`, `reductions`,
`views`, `calls`). A vendor's `Backend.decompositions` is
`loop_decompositions`. `realise` says which values are computed once, `fusion` which of these share a kernel, `writer` writes it.
"""

from __future__ import annotations

from dicp.passes.lowering.decompositions import loop_decompositions
from dicp.passes.lowering.program import lower
from dicp.passes.lowering.support import devices_of, supports

__all__ = ["devices_of", "loop_decompositions", "lower", "supports"]
