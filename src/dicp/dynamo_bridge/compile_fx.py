"""Where TorchDynamo hands a graph over: AOTAutograd makes ATen graphs of it, for inference or training, a backend compiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx import GraphModule

from dicp.backend import Backend
from dicp.dynamo_bridge.compiled_graph import GraphKind, compile_graph
from dicp.dynamo_bridge.freezing import compile_frozen
from dicp.dynamo_bridge.options import read_options
from dicp.errors import LOG, DicpError, warn_once
from dicp.registry import find
from dicp.settings import FALLBACK

__all__ = ["compile_fx"]


def compile_fx(
    gm: GraphModule,
    inputs: Sequence[Any],
    name: str,
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """The compiled form of a graph of TorchDynamo, by the backend of that name.

    A backend's function in its folder, which its entry point names, does no more than to call this:

        def mygraph(gm, inputs, **kwargs):
            return compile_fx(gm, inputs, "mygraph", **kwargs)
    """
    backend = find(name)
    chosen = read_options(backend, mode, options)
    try:
        return _compiler(backend, chosen)(gm, inputs)
    except (DicpError, TorchDynamoException):
        raise
    except Exception as error:
        if FALLBACK.get() != "always":
            raise
        # What AOTAutograd cannot trace, Dynamo's own graph still computes.
        LOG.debug("AOTAutograd failed", exc_info=True)
        warn_once(
            f"aot:{type(error)}",
            f"{name}: torch's AOTAutograd could not trace a graph, which runs eagerly instead: {type(error).__name__}: {error}",
        )
        return gm.forward


def _compiler(backend: Backend, options: Mapping[str, Any]) -> Callable[..., Any]:
    def compile_as(kind: GraphKind) -> Callable[..., Any]:
        def compile_one(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            return compile_graph(gm, backend, options, kind)

        return compile_one

    def compile_inference(gm: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        if options["freezing"] and not torch.is_grad_enabled():
            return compile_frozen(gm, backend, options)
        return compile_graph(gm, backend, options, "inference")

    return aot_autograd(
        fw_compiler=compile_as("forward"),
        bw_compiler=compile_as("backward"),
        inference_compiler=compile_inference,
        decompositions=dict(backend.decompositions()),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )
