"""Ties a call to the autograd nodes it made, and collects the gradients that pass through it.

Nothing is added to the graph: nodes get hooks that return nothing, and a mark that names the forward call. The
gradient of an input is what this call contributes to it, not what other users of the tensor add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from op_tools.engine import private, site
from op_tools.engine.call import Call, Origin, tensors_of

if TYPE_CHECKING:
    from op_tools.engine.core import Engine

KEY = "op_tools"


def is_compiled(node: Any) -> bool:
    """Whether a node's backward is code made by torch.compile; the operators in it are not the program's calls."""
    return type(node).__name__.startswith("CompiledFunction")


class Passage:
    """The gradients of one run of backward through one call."""

    __slots__ = ("grad_inputs", "grad_outputs", "open_nodes", "task")

    def __init__(self, task: int, outputs: int, inputs: int, nodes: int) -> None:
        self.task = task
        self.grad_outputs: list[torch.Tensor | None] = [None] * outputs
        self.grad_inputs: list[torch.Tensor | None] = [None] * inputs
        self.open_nodes = nodes


class Tracking:
    """Notes before the call where its inputs come from; afterwards hooks the nodes in between."""

    def __init__(self, call: Call) -> None:
        self.call = call
        # (node, its output) of each input that was computed, and each leaf -> the input's place among the tensors
        self.sources: dict[tuple[Any, int], int] = {}
        self.leaves: dict[int, int] = {}
        self.inputs = call.tensors()
        for place, tensor in enumerate(self.inputs):
            if tensor.requires_grad:
                node = tensor.grad_fn
                if node is None:
                    self.leaves.setdefault(id(tensor), place)
                else:
                    self.sources.setdefault((node, tensor.output_nr), place)
        self.first = private.next_node_number()

    def attach(self, result: Any, engine: Engine) -> None:
        """Mark and hook the nodes this call made."""
        if private.next_node_number() == self.first:
            return
        outputs = tensors_of(result)
        exits: dict[Any, list[tuple[int, int]]] = {}
        for place, tensor in enumerate(outputs):
            node = tensor.grad_fn
            if node is not None and self._is_ours(node):
                exits.setdefault(node, []).append((place, tensor.output_nr))
        if not exits:
            return
        boundary = self._walk(list(exits), self.call.as_origin())
        if boundary and self.call.plan.backward:
            self._hook(engine, exits, boundary, len(outputs))

    def _walk(self, stack: list[Any], origin: Origin) -> list[tuple[Any, list[tuple[int, int]]]]:
        """Mark the nodes between the outputs and the inputs; those that lead to inputs, with slot and place."""
        boundary: list[tuple[Any, list[tuple[int, int]]]] = []
        seen = set(stack)
        while stack:
            node = stack.pop()
            node.metadata[KEY] = origin
            crossing = []
            leaves_call = False
            for slot, (source, number) in enumerate(node.next_functions):
                if source is None:
                    continue
                place = self._place(source, number)
                if place is not None:
                    crossing.append((slot, place))
                elif not self._is_ours(source):
                    leaves_call = True  # to a tensor that is no argument: a parameter of a compiled module
                elif source not in seen:
                    seen.add(source)
                    stack.append(source)
            if crossing or leaves_call:
                boundary.append((node, crossing))
        return boundary

    def _place(self, source: Any, number: int) -> int | None:
        place = self.sources.get((source, number))
        if place is None and self.leaves and source._sequence_nr() == private.LEAF_NUMBER:
            return self.leaves.get(id(getattr(source, "variable", None)))
        return place

    def _is_ours(self, node: Any) -> bool:
        number = node._sequence_nr()
        return bool(self.first <= number < private.LEAF_NUMBER)

    def _hook(self, engine: Engine, exits: Any, boundary: Any, outputs: int) -> None:
        # The hooks hold neither this object nor a tensor of the call: what a graph holds must not grow by them.
        call, inputs, nodes = self.call, len(self.inputs), len(boundary)
        call.hooked = True
        wanting = [(tool, tool.run) for tool in call.tools if tool.wants_backward]
        passage: Passage | None = None

        def tell(hook: str, *values: Any) -> None:
            # A graph may outlive the tool, and even see it started again.
            for tool, run in wanting:
                if tool.running and tool.run == run:
                    engine.guarded(tool, call, getattr(tool, hook), call, *values)

        def current() -> Passage:
            # A run that was asked for some gradients only may never reach all nodes: the next one starts anew.
            nonlocal passage
            task = private.graph_task()
            if passage is None or passage.task != task:
                passage = Passage(task, outputs, inputs, nodes)
                tell("backward_begins")
            return passage

        def arrived(places: list[tuple[int, int]], grads: Any) -> None:
            known = current()
            for place, number in places:
                if number < len(grads):
                    known.grad_outputs[place] = grads[number]

        def departed(crossing: list[tuple[int, int]], grads: Any) -> None:
            nonlocal passage
            done = current()
            for slot, place in crossing:
                grad = grads[slot] if slot < len(grads) else None
                if grad is not None:
                    known = done.grad_inputs[place]
                    # An input used twice inside one call gets two contributions; autograd adds them elsewhere.
                    both = engine.guarded(None, call, _sum, known, grad) if known is not None else grad
                    done.grad_inputs[place] = both
            done.open_nodes -= 1
            if done.open_nodes == 0:
                passage = None
                tell("backward", done.grad_inputs, done.grad_outputs)

        def hook(function: Any, what: list[tuple[int, int]]) -> Any:
            def run(grads: Any, *_: Any) -> None:
                engine.quietly(function, what, grads)

            return run

        for node, places in exits.items():
            node.register_prehook(hook(arrived, places))
        for node, crossing in boundary:
            node.register_hook(hook(departed, crossing))


def _sum(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    # Sparse and dense add up in one order only.
    first, second = (second, first) if first.layout != torch.strided else (first, second)
    return first.detach() + second.detach()


def mark(result: Any, first: int, origin: Callable[[], Origin]) -> None:
    """Tie the nodes that a call has made, numbered from `first` on, to what `origin` says of the call."""

    def made(nodes: Iterable[Any]) -> list[Any]:
        return [
            node
            for node in nodes
            if node is not None
            and KEY not in node.metadata
            and first <= node._sequence_nr() < private.LEAF_NUMBER
        ]

    stack = made(tensor.grad_fn for tensor in tensors_of(result))
    known = origin() if stack else None
    while stack:
        node = stack.pop()
        node.metadata[KEY] = known
        stack += made(source for source, _ in node.next_functions)


def mark_function(engine: Engine, function: Any, first: int, result: Any) -> None:
    """Tie the node of an autograd function of the program to the line that applied it."""
    name = f"{function.__module__}.{function.__qualname__}"
    mark(result, first, lambda: Origin(name, engine.next_id(), site.read()))
