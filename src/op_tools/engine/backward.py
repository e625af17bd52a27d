"""One call in autograd's graph: the nodes it made, where its inputs come from, and the gradients that pass through it.

Nothing is added to the graph: nodes get hooks that return nothing, and a mark that names the forward call. The
gradient of an input is what this call contributes to it, not what other users of the tensor add.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from op_tools.engine import private, site
from op_tools.engine.call import Call, Origin
from op_tools.trees import tensors_of

if TYPE_CHECKING:
    from op_tools.engine.core import Engine

KEY = "op_tools"
InputKey = int | str  # the index of an input, or the name of a weight
Key = TypeVar("Key", int, int | str)
Gradients = dict[InputKey, torch.Tensor]
Done = Callable[[Gradients, dict[int, torch.Tensor]], None]


def is_compiled(node: Any) -> bool:
    """Whether a node's backward is code made by torch.compile; the operators in it are not the program's calls."""
    return type(node).__name__.startswith("CompiledFunction")


class CallGraph:
    """The part of the graph that one call makes. The inputs are noted before the call can change them."""

    def __init__(
        self, inputs: Iterable[tuple[InputKey, torch.Tensor]] = (), first: int | None = None
    ) -> None:
        # (node, its output) of each input that was computed, and each leaf -> the input
        self._computed: dict[tuple[Any, int], InputKey] = {}
        self._leaves: dict[int, InputKey] = {}
        for key, tensor in inputs:
            if not tensor.requires_grad:
                continue
            if tensor.grad_fn is None:
                self._leaves.setdefault(id(tensor), key)
            else:
                self._computed.setdefault((tensor.grad_fn, tensor.output_nr), key)
        self.first = private.next_node_number() if first is None else first

    @property
    def is_empty(self) -> bool:
        """Whether the call has made no node by now."""
        return private.next_node_number() == self.first

    def exits(self, outputs: Sequence[torch.Tensor]) -> dict[Any, list[tuple[int, int]]]:
        """The nodes of the call that outputs come from, with (output of the node, index of the output)."""
        found: dict[Any, list[tuple[int, int]]] = {}
        for index, tensor in enumerate(outputs):
            node = tensor.grad_fn
            if node is not None and self._is_ours(node):
                found.setdefault(node, []).append((tensor.output_nr, index))
        return found

    def boundary(
        self, exits: Iterable[Any], origin: Origin | None = None
    ) -> list[tuple[Any, list[tuple[int, InputKey]]]]:
        """The nodes where gradients leave the call, with (slot, input) of those that go to inputs; marks all with `origin`.

        Gradients also leave to tensors that are no arguments, such as the parameters of a compiled module.
        """
        stack = list(exits)
        seen = set(stack)
        found: list[tuple[Any, list[tuple[int, InputKey]]]] = []
        while stack:
            node = stack.pop()
            if origin is not None:
                node.metadata.setdefault(KEY, origin)
            crossing: list[tuple[int, InputKey]] = []
            goes_on = leaves = False
            for slot, (source, number) in enumerate(node.next_functions):
                if source is None:
                    continue
                key = self._input(source, number)
                if key is not None:
                    crossing.append((slot, key))
                elif not self._is_ours(source):
                    leaves = True
                else:
                    goes_on = True
                    if source not in seen:
                        seen.add(source)
                        stack.append(source)
            if crossing or leaves or not goes_on:
                found.append((node, crossing))
        return found

    def _input(self, source: Any, number: int) -> InputKey | None:
        key = self._computed.get((source, number))
        if key is None and self._leaves and source._sequence_nr() == private.LEAF_NUMBER:
            return self._leaves.get(id(getattr(source, "variable", None)))
        return key

    def _is_ours(self, node: Any) -> bool:
        return bool(self.first <= node._sequence_nr() < private.LEAF_NUMBER)


class GradientRecorder:
    """Collects the gradients of one call in a run of backward and hands them on when the last has left the call.

    The hooks hold neither the call nor a tensor of it: what a graph holds must not grow by them.
    """

    def __init__(self, done: Done, begins: Callable[[], None] | None = None, *, once: bool = False) -> None:
        self._done: Done | None = done
        self._begins = begins
        self._once = once
        self._lock = threading.Lock()
        self._nodes = 0
        self._start(-1)

    def attach(
        self, exits: dict[Any, Any], boundary: Sequence[tuple[Any, Any]], guard: Callable[..., Any]
    ) -> None:
        """Hook the nodes. `guard(function, *values)` runs what a hook does."""
        self._nodes = len(boundary)

        def hook(function: Callable[..., None], what: Any) -> Callable[..., None]:
            def run(grads: Any, *_: Any) -> None:
                if self._done is not None:
                    guard(function, what, grads)

            return run

        for node, indices in exits.items():
            node.register_prehook(hook(self._arrived, indices))
        for node, crossing in boundary:
            node.register_hook(hook(self._departed, crossing))

    def _start(self, task: int) -> None:
        self._task = task
        self._open = self._nodes
        self._given: Gradients = {}  # to inputs
        self._taken: dict[int, torch.Tensor] = {}  # from what uses the outputs

    def _enter_run(self) -> None:
        # A run that was asked for some gradients only may never reach all nodes: the next one starts anew.
        task = private.graph_task()
        if task != self._task:
            self._start(task)
            if self._begins is not None:
                self._begins()

    def _arrived(self, indices: list[tuple[int, int]], grads: Sequence[torch.Tensor | None]) -> None:
        """Gradients of outputs are about to go through the node that made them."""
        with self._lock:
            self._enter_run()
            self._taken.update(_present(indices, grads))

    def _departed(self, crossing: list[tuple[int, InputKey]], grads: Sequence[torch.Tensor | None]) -> None:
        """A node has made gradients that leave the call."""
        with self._lock:
            self._enter_run()
            for key, grad in _present(crossing, grads):
                other = self._given.get(key)
                # An input used twice inside one call gets two contributions; autograd adds them elsewhere.
                self._given[key] = grad if other is None else _sum(other, grad)
            self._open -= 1
            is_last = self._open == 0
        if is_last:
            self._tell()

    def finish(self) -> None:
        """Hand on what there is: an output that nothing uses never gets a gradient. After that, nothing is collected."""
        if self._given or self._taken:
            self._tell()
        self._done = None

    def _tell(self) -> None:
        with self._lock:
            done, given, taken = self._done, self._given, self._taken
            self._start(-1)
            if self._once:
                self._done = None
        if done is not None:
            done(given, taken)


def _present(
    slots: Sequence[tuple[int, Key]], grads: Sequence[torch.Tensor | None]
) -> Iterator[tuple[Key, torch.Tensor]]:
    """What the slots stand for, with its gradient; a slot may have none."""
    for slot, key in slots:
        grad = grads[slot] if slot < len(grads) else None
        if grad is not None:
            yield key, grad


def _sum(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    # Sparse and dense add up in one order only.
    first, second = (second, first) if first.layout != torch.strided else (first, second)
    return first.detach() + second.detach()


class Tracking:
    """Notes before a call where its inputs come from; afterwards marks and hooks the nodes in between."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.inputs = len(call.tensors())
        self.graph = CallGraph(enumerate(call.tensors()))

    def attach(self, result: Any, engine: Engine) -> None:
        if self.graph.is_empty:
            return
        outputs = tensors_of(result)
        exits = self.graph.exits(outputs)
        if not exits:
            return
        boundary = self.graph.boundary(exits, self.call.as_origin())
        if self.call.subscription.backward:
            self._hook(engine, exits, boundary, len(outputs))

    def _hook(self, engine: Engine, exits: Any, boundary: Any, outputs: int) -> None:
        call, inputs = self.call, self.inputs
        call.hooked = True
        wanting = [(tool, tool.run) for tool in call.tools if tool.wants_backward]

        def tell(hook: str, *values: Any) -> None:
            # A graph may outlive the tool, and even see it started again.
            for tool, run in wanting:
                if tool.running and tool.run == run:
                    engine.guarded(tool, call, getattr(tool, hook), call, *values)

        def done(given: Gradients, taken: dict[int, torch.Tensor]) -> None:
            tell("backward", in_order(given, inputs), in_order(taken, outputs))

        def guard(function: Callable[..., None], *values: Any) -> None:
            private.silently(engine.guarded, None, call, function, *values)

        GradientRecorder(done, lambda: tell("backward_begins")).attach(exits, boundary, guard)


def in_order(gradients: Any, count: int) -> list[torch.Tensor | None]:
    """A list with an entry for each index; None where there is no gradient."""
    return [gradients.get(index) for index in range(count)]


def mark(result: Any, first: int, origin: Callable[[], Origin]) -> None:
    """Tie the nodes that a call has made, numbered from `first` on, to what `origin` says of the call."""
    graph = CallGraph(first=first)
    exits = [node for node in graph.exits(tensors_of(result)) if KEY not in node.metadata]
    if exits:
        graph.boundary(exits, origin())


def mark_function(engine: Engine, function: Any, first: int, result: Any) -> None:
    """Tie the node of an autograd function of the program to the line that applied it."""
    name = f"{function.__module__}.{function.__qualname__}"
    mark(result, first, lambda: Origin(name, engine.next_id(), site.read()))
