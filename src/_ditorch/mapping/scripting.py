"""TorchScript: functions that name a device.

TorchScript reads the source of a function and never calls what Python would call, so no wrapper is asked.
It knows functions by identity, and what it makes of `device='cuda'` is a constant in a graph, which can be
exchanged before the function first runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.jit._builtins

from _ditorch.mapping.patches import Patches
from _ditorch.mapping.translation import Target

__all__ = ["apply"]


def apply(patches: Patches, target: Target) -> None:
    """To be applied after `classes`: it needs the class that stands for `torch.device`."""
    table = torch.jit._builtins._get_builtin_table()  # private, and the only place that TorchScript asks
    for patch in list(patches.attributes()):
        if patch.owner is torch and patch.name == "device":
            patches.set_item(table, id(patch.replacement), table[id(patch.original)])
    original = torch.jit.script

    def script(obj: Any, *args: Any, **kwargs: Any) -> Any:
        # Names are looked up in the frame of the caller, which is one further away from here.
        if len(args) < 2:
            kwargs["_frames_up"] = kwargs.get("_frames_up", 0) + 1
        made = original(obj, *args, **kwargs)
        for graph in _graphs(made):
            _translate_constants(graph, target)
        return made

    patches.wrap(torch.jit._script, script, also=[torch.jit])


def _graphs(made: Any) -> Iterator[Any]:
    """The graphs of a scripted function, or of all methods of a scripted module and of those in it."""
    if isinstance(made, torch.jit.ScriptFunction):
        yield made.graph
    elif isinstance(made, torch.jit.ScriptModule):
        for module in made.modules():
            if isinstance(module, torch.jit.ScriptModule):
                for name in module._c._method_names():
                    yield module._c._get_method(name).graph


def _translate_constants(graph: Any, target: Target) -> None:
    for node in graph.findAllNodes("prim::Constant"):
        if str(node.output().type()) == "Device":
            node.s_("value", target.translate(node.s("value")))
