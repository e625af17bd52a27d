"""transformers on the operators of dlinfer.

Importing it registers `attn_implementation="dlinfer"`; `optimise(model)` puts whole decoders on the operators.
"""

from __future__ import annotations

from dlinfer.framework.transformers_ext.attention import NAME, dlinfer_attention, register
from dlinfer.framework.transformers_ext.cache import PagedLayer
from dlinfer.framework.transformers_ext.optimising import describe, optimise, restore

__all__ = ["NAME", "PagedLayer", "describe", "dlinfer_attention", "optimise", "register", "restore"]

register()
