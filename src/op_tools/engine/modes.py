"""The two modes that see operator calls. Their fast path is a dict lookup and nothing else.

A decision is cached per function: `None` means that nobody wants it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from op_tools.engine.private import dispatch_modes_on, function_modes_on, no_function_modes

if TYPE_CHECKING:
    from op_tools.engine.core import Engine

UNKNOWN: Any = object()
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class ApiMode(TorchFunctionMode):
    """Sees what the program calls: torch.Tensor.add, torch.nn.functional.linear."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.subscriptions = engine.api_subscriptions
        self.run = engine.run_api
        self.run_parent = engine.run_parent

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        subscription = self.subscriptions.get(func, UNKNOWN)
        if subscription is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        if subscription is not UNKNOWN and subscription.only_parent:
            return self.run_parent(subscription, func, args, kwargs or {})
        return self.run(subscription, func, args, kwargs or {})


class AtenMode(TorchDispatchMode):
    """Sees what reaches the kernels: aten.add.Tensor; also what backward and C++ call."""

    # Operators that take functions (cond, while_loop, flex attention) go through it like any other.
    supports_higher_order_operators = True

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.subscriptions = engine.aten_subscriptions
        self.run = engine.run_aten

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        subscription = self.subscriptions.get(func, UNKNOWN)
        for kind in types:
            if kind not in _PLAIN_TYPES:
                # A wrapper tensor (DTensor, ...) unfolds first; the calls on what it wraps come back here. Only
                # modes of torch itself lie below ours: they know better what such a tensor is.
                return func(*args, **(kwargs or {})) if dispatch_modes_on() else NotImplemented
        if not function_modes_on():
            if subscription is None:
                return func(*args, **kwargs) if kwargs else func(*args)
            return self.run(subscription, func, args, kwargs or {})
        # In backward they are on, and calling an operator from Python would show it to them.
        with no_function_modes():
            if subscription is None:
                return func(*args, **kwargs) if kwargs else func(*args)
            return self.run(subscription, func, args, kwargs or {})

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """What torch.compile compiles is one call of ours; the compiler does not see this mode."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # The wrapper torch would put around __torch_dispatch__ costs a third of the mode; engine.compiled marks
        # the code to be skipped when the compiler is loaded instead.
        return False
