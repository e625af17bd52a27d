"""Functions of tensors compiled by a backend of dicp without TorchDynamo, whose tracing takes longer than all the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch._ops import OpOverload
from torch.func import functionalize
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_leaves

from dicp.backend import Backend
from dicp.dynamo_bridge.compiled_graph import compile_graph
from dicp.dynamo_bridge.options import read_options
from dicp.registry import find, register

__all__ = ["backend_named", "compiled", "traced"]

Function = Callable[..., Any]


def backend_named(name: str) -> Backend:
    """`reference`: the interpreter of loop programs."""
    if name == "reference":
        from dicp.passes.reference_backend import ReferenceBackend

        return register(ReferenceBackend())
    return find(name)


def traced(function: Function, tensors: Sequence[Tensor], backend: Backend) -> GraphModule:
    """The graph of ATen operators that AOTAutograd would give to the backend."""

    def flat(*given: Tensor) -> list[Tensor]:
        own = {t.untyped_storage()._cdata for t in given}
        found = [leaf for leaf in tree_leaves(function(*given)) if isinstance(leaf, Tensor)]
        return [leaf.clone() if leaf.untyped_storage()._cdata in own else leaf for leaf in found]

    table: Any = dict(backend.decompositions())
    gm = make_fx(flat, decomposition_table=table, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)
    if any(isinstance(n.target, OpOverload) and n.target._schema.is_mutable for n in gm.graph.nodes):
        pure = functionalize(gm, remove="mutations")
        gm = make_fx(pure, decomposition_table=table, tracing_mode="fake", _allow_non_fake_inputs=True)(
            *tensors
        )
    gm.graph.eliminate_dead_code()
    gm.recompile()
    return gm


def compiled(function: Function, tensors: Sequence[Tensor], backend: Backend) -> Callable[..., list[Any]]:
    """The function's tensors, flat, by the backend."""
    gm = traced(function, tensors, backend)
    call = compile_graph(gm, backend, read_options(backend, None, None), "inference")
    return lambda *given: call(list(given))
