"""The gradients that one call of a module takes in and gives out.

Nothing is added to autograd's graph: the nodes between a call's outputs and its inputs get hooks that return nothing.
The gradient of an input or a weight is what this call contributes to it, not what other users of the tensor add.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from op_tools.engine import private

__all__ = ["Passage", "Sources"]

Key = int | str  # the place of an input, or the name of a weight
Done = Callable[[dict[Key, torch.Tensor], dict[int, torch.Tensor]], None]
Guard = Callable[..., Any]


class Sources:
    """Where the inputs and weights of a call come from in the graph, noted before it can change them."""

    def __init__(self, inputs: Sequence[torch.Tensor], weights: Mapping[str, torch.Tensor]) -> None:
        self._computed: dict[tuple[Any, int], Key] = {}
        self._leaves: dict[int, Key] = {}
        for place, tensor in enumerate(inputs):
            self._note(tensor, place)
        for name, tensor in weights.items():
            self._note(tensor, name)
        self._first = private.next_node_number()

    def _note(self, tensor: torch.Tensor, key: Key) -> None:
        if not tensor.requires_grad:
            return
        node = tensor.grad_fn
        if node is None:
            self._leaves.setdefault(id(tensor), key)
        else:
            self._computed.setdefault((node, tensor.output_nr), key)

    def attach(self, outputs: Sequence[torch.Tensor], done: Done, guard: Guard) -> Passage | None:
        """Hook the nodes that the call has made; `done` is told the gradients once they are known."""
        exits: dict[Any, list[tuple[int, int]]] = {}
        for place, tensor in enumerate(outputs):
            node = tensor.grad_fn
            if node is not None and self._is_ours(node):
                exits.setdefault(node, []).append((place, tensor.output_nr))
        if not exits:
            return None
        boundary = self._boundary(list(exits))
        passage = Passage(len(exits) + len(boundary), done)
        for node, places in exits.items():
            node.register_prehook(_hook(passage, places, guard, passage.arrived))
        for node, crossing in boundary:
            node.register_hook(_hook(passage, crossing, guard, passage.departed))
        return passage

    def _boundary(self, stack: list[Any]) -> list[tuple[Any, list[tuple[int, Key]]]]:
        """The nodes that lead to inputs or weights, with the slots that do."""
        boundary: list[tuple[Any, list[tuple[int, Key]]]] = []
        seen = set(stack)
        while stack:
            node = stack.pop()
            crossing: list[tuple[int, Key]] = []
            for slot, (source, number) in enumerate(node.next_functions):
                if source is None:
                    continue
                key = self._key(source, number)
                if key is not None:
                    crossing.append((slot, key))
                elif source not in seen and self._is_ours(source):
                    seen.add(source)
                    stack.append(source)
            if crossing:
                boundary.append((node, crossing))
        return boundary

    def _key(self, source: Any, number: int) -> Key | None:
        key = self._computed.get((source, number))
        if key is None and self._leaves and source._sequence_nr() == private.LEAF_NUMBER:
            return self._leaves.get(id(getattr(source, "variable", None)))
        return key

    def _is_ours(self, node: Any) -> bool:
        return bool(self._first <= node._sequence_nr() < private.LEAF_NUMBER)


class Passage:
    """The first run of backward through one call. Holds gradients only until they are told."""

    def __init__(self, nodes: int, done: Done) -> None:
        self._nodes = nodes
        self._done: Done | None = done
        self._lock = threading.Lock()
        self._begin(-1)

    def _begin(self, task: int) -> None:
        self._task = task
        self._open = self._nodes
        self._given: dict[Key, torch.Tensor] = {}  # to the inputs and weights
        self._taken: dict[int, torch.Tensor] = {}  # from what uses the outputs

    @property
    def is_over(self) -> bool:
        """Whether the gradients have been told."""
        return self._done is None

    def _current(self) -> None:
        # A run that was asked for some gradients only may never reach all nodes: the next one starts anew.
        task = private.graph_task()
        if task != self._task:
            self._begin(task)

    def arrived(self, places: list[tuple[int, int]], grads: Sequence[torch.Tensor | None]) -> None:
        """Gradients of outputs are about to go through the node that made them."""
        with self._lock:
            if self._done is None:
                return
            self._current()
            for place, number in places:
                grad = grads[number] if number < len(grads) else None
                if grad is not None:
                    self._taken[place] = grad
            self._open -= 1
            self._end_if_complete()

    def departed(self, crossing: list[tuple[int, Key]], grads: Sequence[torch.Tensor | None]) -> None:
        """A node has made gradients of inputs or weights."""
        with self._lock:
            if self._done is None:
                return
            self._current()
            for slot, key in crossing:
                grad = grads[slot] if slot < len(grads) else None
                if grad is not None:
                    known = self._given.get(key)
                    # An input used twice inside one call gets two contributions; autograd adds them elsewhere.
                    self._given[key] = grad if known is None else _sum(known, grad)
            self._open -= 1
            self._end_if_complete()

    def _end_if_complete(self) -> None:
        if self._open == 0:
            self._tell()

    def finish(self) -> None:
        """Tell what is known: an output that nothing uses never gets a gradient."""
        with self._lock:
            if self._done is not None and (self._given or self._taken):
                self._tell()
            self._done = None

    def _tell(self) -> None:
        done, self._done = self._done, None
        given, taken, self._given, self._taken = self._given, self._taken, {}, {}
        if done is not None:
            done(given, taken)


def _sum(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    # Sparse and dense add up in one order only.
    first, second = (second, first) if first.layout != torch.strided else (first, second)
    return first.detach() + second.detach()


def _hook(passage: Passage, what: Any, guard: Guard, function: Callable[..., None]) -> Callable[..., None]:
    def run(grads: Any, *_: Any) -> None:
        if not passage.is_over:
            guard(function, what, grads)

    return run
