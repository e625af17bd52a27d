"""Twelve wrong kernels for the device, put in from outside one at a time: what the tools for people must find.

Each computes the right answer on the CPU and then makes the kind of mistake kernels make: a forgotten tail, a wrong
constant, a lost term, a value off by a thousandth. `install(name)` replaces the device's kernel in this process.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

Mistake = Callable[[Tensor], None]


def tail(right: Tensor) -> None:
    """A kernel that works in blocks and forgets the rest."""
    right.flatten()[-max(1, right.numel() // 8) :] = 0


def off(right: Tensor) -> None:
    """A constant with too few digits."""
    right.mul_(1.002)


def one_element(right: Tensor) -> None:
    """A race: one value is what another should be."""
    flat = right.view(-1)
    middle = flat.numel() // 2
    flat[middle] = ~flat[middle] if flat.dtype == torch.bool else flat[0] + 1


def shifted(right: Tensor) -> None:
    """An index that is off by one, in the last row."""
    rows = right.view(-1, right.shape[-1])
    rows[-1] = rows[-1].roll(1)


# ATen overload -> the mistake. The first seven run in forward, four in backward only, the last in the optimizer.
WRONG: dict[str, Mistake] = {
    "mm": tail,
    "bmm": one_element,
    "silu": off,
    "rsqrt": off,
    "_softmax": shifted,
    "embedding": shifted,
    "mean.dim": off,
    "silu_backward": tail,
    "_softmax_backward_data": one_element,
    "embedding_dense_backward": tail,
    "_log_softmax_backward_data": one_element,
    "addcdiv_": off,
}

_libraries: list[torch.library.Library] = []


def overload_of(name: str) -> Any:
    """`mean.dim` -> torch.ops.aten.mean.dim"""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def aten_name(name: str) -> str:
    """`silu` -> `aten.silu.default`, as the tools write it."""
    return f"aten.{name}" if "." in name else f"aten.{name}.default"


def install(
    name: str, mistake: Mistake | None = None, *, only_in_backward: bool = False
) -> torch.library.Library:
    """Replace the device's kernel of one operator; it stays as long as the returned object lives.

    The kernel copies its arguments to the CPU, computes there, makes its mistake in the first result that a call gives
    back or writes to, and copies what was written back.
    """
    overload, mistake = overload_of(name), mistake or WRONG[name]
    written = [
        (index, argument.name)
        for index, argument in enumerate(overload._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        device = next(leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
        near, near_named = tree_map_only(Tensor, lambda tensor: tensor.cpu(), (args, kwargs))
        with torch.no_grad():
            results = overload(*near, **near_named)
            if not only_in_backward or torch._C._current_autograd_node() is not None:
                changes = [near[place] if place < len(args) else near_named[key] for place, key in written]
                given = tree_leaves(results if results is not None else changes)
                found = [leaf for leaf in given if isinstance(leaf, Tensor) and leaf.numel()]
                for right in sorted(found, key=lambda leaf: not leaf.is_floating_point())[:1]:
                    changed = right.contiguous()
                    mistake(changed)
                    right.copy_(changed)
        targets = {}
        for place, key in written:
            by_place = place < len(args)
            here, there = (near[place], args[place]) if by_place else (near_named[key], kwargs[key])
            for mine, theirs in zip(tree_leaves(here), tree_leaves(there), strict=True):  # lists, of foreach
                targets[id(mine)] = theirs.copy_(mine)
        return tree_map_only(Tensor, lambda result: targets.get(id(result), result.to(device)), results)

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        library.impl(name, kernel, "PrivateUse1", allow_override=True)
    _libraries.append(library)
    return library
