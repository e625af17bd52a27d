"""What torch offers for its own devices only, refused in one sentence instead of an error from inside.

Everything of torch that is pinned for this is in this file.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing.reductions  # registers torch's own reducers, which ours are put in front of
import torch.nn.attention.flex_attention

__all__ = ["register"]

_COMPILE_WITH = (
    "Compile with a backend of dicp, which generates code for it (torch.compile(f, backend=...); torch.compiler.list_backends() "
    "names those installed), or with backend='aot_eager'."
)
_MOVE = "Share tensor.cpu() and move it to the device in the other process."


def register() -> None:
    """Called once, when the device is registered."""
    _refuse_sharing()
    _refuse_inductor()
    _refuse_flex_attention()


def _on_device(values: Iterable[object]) -> bool:
    return any(isinstance(value, torch.Tensor) and value.device.type == "dipu" for value in values)


# -- between processes ----------------------------------------------------------------------------------------


def _refuse_sharing() -> None:
    share = torch.UntypedStorage.share_memory_

    @functools.wraps(share)
    def share_memory_(self: torch.UntypedStorage, *args: Any, **kwargs: Any) -> torch.UntypedStorage:
        if self.device.type == "dipu":
            raise NotImplementedError(f"dipu: device memory cannot be shared between processes. {_MOVE}")
        return share(self, *args, **kwargs)

    torch.UntypedStorage.share_memory_ = share_memory_  # type: ignore[method-assign]
    for kind in (torch.Tensor, torch.nn.Parameter):
        ForkingPickler.register(kind, _refusing(ForkingPickler._extra_reducers[kind]))  # type: ignore[attr-defined]


def _refusing(reduce: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    @functools.wraps(reduce)
    def reduce_tensor(tensor: torch.Tensor) -> Any:
        if tensor.device.type == "dipu":
            raise NotImplementedError(
                f"dipu: a tensor on {tensor.device} cannot be sent to another process. {_MOVE}"
            )
        return reduce(tensor)

    return reduce_tensor


# -- compilers ------------------------------------------------------------------------------------------------


def _refuse_inductor() -> None:
    wrapper: Any = (
        torch._TorchCompileInductorWrapper
    )  # what torch.compile makes of backend="inductor", its default
    compile_graph = wrapper.__call__

    @functools.wraps(compile_graph)
    def __call__(self: Any, model: Any, inputs: Sequence[Any], **options: Any) -> Any:
        if _on_device(inputs) or _on_device(_results(model)):
            raise NotImplementedError(
                f"dipu: torch's inductor generates no code for this device. {_COMPILE_WITH}"
            )
        return compile_graph(self, model, inputs, **options)

    wrapper.__call__ = __call__


def _results(model: Any) -> Iterable[object]:
    """The values that a graph computes: one without inputs may make tensors on the device."""
    nodes = model.graph.nodes if isinstance(model, torch.fx.GraphModule) else ()
    return (node.meta.get("example_value") for node in nodes)


def _refuse_flex_attention() -> None:
    # The package may hold the function under the module's name.
    module: Any = sys.modules["torch.nn.attention.flex_attention"]
    validate = module._validate_device

    @functools.wraps(validate)
    def _validate_device(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        if _on_device((query, key, value)):
            raise NotImplementedError(
                "dipu: flex_attention needs code that torch's inductor generates, which it does not for this device. "
                "Use torch.nn.functional.scaled_dot_product_attention with attn_mask, or dicp, which generates code for it."
            )
        validate(query, key, value)

    module._validate_device = _validate_device
