"""`torch.compile` backends for any chip: one way from a captured graph to a vendor's compiler, with eager fall-back.

`torch.compile(f, backend="hostgraph")` needs no import of this package: torch finds backends by their entry points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dicp.explanation import Explanation

__all__ = ["__version__", "explain"]

__version__ = "0.1.0"


def explain(
    function: Callable[..., Any],
    *args: Any,
    backend: str = "hostgraph",
    dynamic: bool | None = None,
    gradients: bool = False,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Explanation:
    """Compiles a function or module for these arguments, runs it once, and says what became of it.

    `print(dicp.explain(f, x))` shows graphs, what is compiled together, what runs eagerly and why, kernels and code. Tensors
    among the arguments are copied first; state of a module may change as in any call. `gradients`: the backward graph as well.
    """
    from dicp.explanation import explained

    return explained(function, args, kwargs, backend, dynamic=dynamic, gradients=gradients, options=options)
