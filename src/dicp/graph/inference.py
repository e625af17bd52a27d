"""Types of a graph's nodes, inferred from those of its inputs by running every call on fake tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, Node

from dicp.errors import InvalidGraphError

__all__ = ["fake_mode_of", "infer_types", "inferred", "inferring"]


def fake_mode_of(graph: Graph) -> FakeTensorMode:
    """The mode that the fake tensors of a graph belong to; a new one where it has none."""
    found = detect_fake_mode([node.meta.get("val") for node in graph.nodes])
    return found if found is not None else FakeTensorMode(allow_non_fake_inputs=True)


@contextmanager
def inferring(graph: Graph) -> Iterator[FakeTensorMode]:
    """The state in which calls on a graph's fake tensors give new ones; no guard of the program comes of it."""
    mode = fake_mode_of(graph)
    with ExitStack() as stack:
        if mode.shape_env is not None:
            stack.enter_context(mode.shape_env.suppress_guards())
            stack.enter_context(mode.shape_env.ignore_fresh_unbacked_symbols())
        stack.enter_context(torch.no_grad())
        stack.enter_context(mode)
        yield mode


def infer_types(graph: Graph, nodes: Iterable[Node] | None = None) -> list[Node]:
    """Infers `meta["val"]` of calls (all, or these, in the order of the graph); gives those whose type is another now."""
    wanted = None if nodes is None else set(nodes)
    changed = []
    with inferring(graph):
        for node in graph.nodes:
            if node.op != "call_function" or (wanted is not None and node not in wanted):
                continue
            if not infers(node):
                continue
            before, node.meta["val"] = node.meta.get("val"), inferred(node)
            if difference(before, node.meta["val"]):
                changed.append(node)
    return changed


def infers(node: Node) -> bool:
    """Whether a call says by its arguments' types alone what it gives: not so where data decides about sizes."""
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return False
    if isinstance(target, OpOverload):
        return not {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(target.tags)
    return True


def inferred(node: Node) -> Any:
    """What a call gives; only inside `inferring`."""
    missing = [argument for argument in node.all_input_nodes if "val" not in argument.meta]
    if missing:
        raise InvalidGraphError(f"{node.format_node()}: its argument {missing[0].name} has no type.")
    arguments, keywords = torch.fx.map_arg((node.args, node.kwargs), lambda given: given.meta["val"])
    target: Any = node.target
    try:
        return target(*arguments, **keywords)
    except InvalidGraphError:
        raise
    except Exception as error:
        raise InvalidGraphError(f"{node.format_node()}: {type(error).__name__}: {error}") from error


def difference(before: Any, after: Any) -> str:
    """What differs between two types; nothing where they are one."""
    if isinstance(before, list | tuple) and isinstance(after, list | tuple):
        if len(before) != len(after):
            return f"{len(before)} results and {len(after)}"
        return next(
            (text for one, other in zip(before, after, strict=True) if (text := difference(one, other))), ""
        )
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor):
        return "" if type(before) is type(after) and _same_number(before, after) else f"{before} and {after}"
    for what, one, other in (
        ("dtypes", before.dtype, after.dtype),
        ("devices", before.device, after.device),
        ("layouts", before.layout, after.layout),
        ("dimensions", before.dim(), after.dim()),
    ):
        if one != other:
            return f"{what} {one} and {other}"
    if not _same_numbers(before.shape, after.shape):
        return f"sizes {list(before.shape)} and {list(after.shape)}"
    if before.layout is torch.strided and not _same_strides(before, after):
        return f"strides {list(before.stride())} and {list(after.stride())}"
    return ""


def _same_strides(before: torch.Tensor, after: torch.Tensor) -> bool:
    """Of dimensions of size 1, and of tensors without elements, strides mean nothing."""
    if any(isinstance(size, int) and size == 0 for size in before.shape):
        return True
    pairs = zip(before.shape, before.stride(), after.stride(), strict=True)
    return all((isinstance(size, int) and size == 1) or _same_number(a, b) for size, a, b in pairs)


def _same_numbers(before: Iterable[Any], after: Iterable[Any]) -> bool:
    return all(_same_number(one, other) for one, other in zip(before, after, strict=True))


def _same_number(one: Any, other: Any) -> bool:
    symbolic = (torch.SymInt, torch.SymFloat, torch.SymBool)
    if isinstance(one, symbolic) or isinstance(other, symbolic):
        first, second = (n.node.expr if isinstance(n, symbolic) else n for n in (one, other))
        return bool(first == second) or _is_zero(first, second)
    return bool(one == other) if one is not None else other is None


def _is_zero(first: Any, second: Any) -> bool:
    import sympy

    return sympy.simplify(sympy.sympify(first) - sympy.sympify(second)) == 0
