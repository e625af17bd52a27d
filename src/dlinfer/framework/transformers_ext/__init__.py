"""transformers on the operators of dlinfer.

Importing it registers `attn_implementation="dlinfer"`; `optimise(model)` puts whole decoders on the operators.
"""

from __future__ import annotations

import transformers

OLDEST = (4, 57)
"""The oldest version of transformers whose caches and masks are known to fit."""

if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < OLDEST:
    raise ImportError(
        f"dlinfer.framework.transformers_ext needs transformers {OLDEST[0]}.{OLDEST[1]} or newer, found"
        f" {transformers.__version__}: pip install --upgrade transformers"
    )

from dlinfer.framework.transformers_ext.attention import NAME, dlinfer_attention, register  # noqa: E402
from dlinfer.framework.transformers_ext.cache import PagedLayer  # noqa: E402
from dlinfer.framework.transformers_ext.optimising import describe, optimise, restore  # noqa: E402

__all__ = ["NAME", "OLDEST", "PagedLayer", "describe", "dlinfer_attention", "optimise", "register", "restore"]

register()
