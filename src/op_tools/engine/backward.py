"""One call in autograd's graph: the nodes it made, where its inputs come from, and the gradients that pass through it.

Nothing is added to the graph: nodes get hooks that return nothing, and a mark that names the forward call. What a node
was given and what it gave are read at that node, after it ran: behind all hooks of the program that change what it is
given, before those that change what it gave. The gradient of an input is what this call contributes to it, not what
other users of the tensor add. No gradient is held beyond the hook that sees it, only copies: autograd adds in place
where it is the only owner, and would run other kernels otherwise.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from op_tools.engine import native, private, site
from op_tools.engine.call import Call, Origin
from op_tools.trees import tensors_of

if TYPE_CHECKING:
    from op_tools.engine.core import Engine

KEY = "op_tools"
InputKey = int | str  # the index of an input, or the name of a weight
Edge = tuple[int, int]  # the number of a node in its call, and which of the node's gradients
Grads = Sequence[torch.Tensor | None]
Gradients = dict[InputKey, torch.Tensor]
# Gradients to inputs and from outputs, and the inputs whose gradients are not the call's own.
Done = Callable[[Gradients, dict[int, torch.Tensor], frozenset[InputKey]], None]


def is_compiled(node: Any) -> bool:
    """Whether a node's backward is code made by torch.compile; the operators in it are not the program's calls."""
    return type(node).__name__.startswith("CompiledFunction")


@dataclasses.dataclass(slots=True)
class CallNode:
    """One node of a call: which outputs it made, and where the gradients that it gives go. Does not hold the node."""

    number: int
    # Which of its gradients come from which output of the call
    outputs: dict[int, int]
    # and which of those it gives go to which input, or to which other node of the call.
    to_inputs: list[tuple[int, InputKey]] = dataclasses.field(default_factory=list)
    inside: list[tuple[int, Edge]] = dataclasses.field(default_factory=list)
    # Whether gradients leave the call here.
    is_last: bool = False


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
        self.first = self._end = private.next_node_number() if first is None else first

    @property
    def is_empty(self) -> bool:
        """Whether the call has made no node by now."""
        return private.next_node_number() == self.first

    def exits(self, outputs: Sequence[torch.Tensor]) -> dict[Any, dict[int, int]]:
        """The nodes of the call that outputs come from, with output of the node -> index of the output."""
        found: dict[Any, dict[int, int]] = {}
        makers = [tensor.grad_fn for tensor in outputs]  # that of a view written to is made when asked for
        self._end = private.next_node_number()
        for index, (tensor, node) in enumerate(zip(outputs, makers, strict=True)):
            if node is None or not self._is_ours(node) or (node, tensor.output_nr) in self._computed:
                continue
            found.setdefault(node, {}).setdefault(tensor.output_nr, index)
        return found

    def nodes(
        self, exits: Mapping[Any, dict[int, int]], origin: Origin | None = None
    ) -> list[tuple[Any, CallNode]]:
        """All nodes of the call; marks them with `origin`.

        Gradients also leave to tensors that are no arguments, such as the parameters of a compiled module.
        """
        known = {node: CallNode(number, outputs) for number, (node, outputs) in enumerate(exits.items())}
        stack = list(known)
        while stack:
            node = stack.pop()
            if origin is not None:
                node.metadata.setdefault(KEY, origin)
            facts = known[node]
            leaves = False
            for slot, (source, number) in enumerate(node.next_functions):
                if source is None:
                    continue
                key = self._input(source, number)
                if key is not None:
                    facts.to_inputs.append((slot, key))
                elif source not in known and (
                    # Numbers are counted by thread: a node of another thread may have one of ours.
                    not self._is_ours(source) or (origin is not None and KEY in source.metadata)
                ):
                    leaves = True
                else:
                    if source not in known:
                        known[source] = CallNode(len(known), {})
                        stack.append(source)
                    facts.inside.append((slot, (known[source].number, number)))
            facts.is_last = leaves or bool(facts.to_inputs) or not facts.inside
        return list(known.items())

    def _input(self, source: Any, number: int) -> InputKey | None:
        key = self._computed.get((source, number))
        if key is None and self._leaves and source._sequence_nr() == private.LEAF_NUMBER:
            return self._leaves.get(id(getattr(source, "variable", None)))
        return key

    def _is_ours(self, node: Any) -> bool:
        return bool(self.first <= node._sequence_nr() < self._end)


class Sent:
    """What the nodes of a call have given to another of them: that must be all the other one gets."""

    def __init__(self, grad: torch.Tensor, senders: int) -> None:
        # One gradient reaches the next node as it is. Several are added up by autograd, in the order of their coming.
        self._sum = _copy(grad) if senders > 1 else None
        self._one = (weakref.ref(grad), grad._version)

    def add(self, grad: torch.Tensor) -> None:
        if self._sum is not None:
            self._sum = _sum(self._sum, grad)

    def is_all(self, grad: torch.Tensor) -> bool:
        """Whether a node was given this and nothing else."""
        if self._sum is None:
            reference, version = self._one
            return reference() is grad and grad._version == version
        return self._sum.layout == grad.layout and torch.equal(self._sum, grad)


class GradientRecorder:
    """Collects the gradients of one call in a run of backward and hands them on when the last has left the call.

    Where a node inside the call was given more than the call's own nodes gave it, or something else, what it gives is
    not the call's own either: the second derivative uses tensors inside the call as well, and the program may hook any
    node. The inputs that such gradients go to are told apart. With `follow` off this is not looked at.

    The hooks hold neither the call nor a tensor of it nor a node: what a graph holds must not grow by them.
    """

    def __init__(
        self,
        done: Done,
        begins: Callable[[], None] | None = None,
        *,
        follow: bool = True,
        once: bool = False,
        values: bool = True,
    ) -> None:
        self._done: Done | None = done
        self._begins = begins
        self._follow = follow
        self._once = once
        self._keep = _copy if values else _hollow_copy
        self._lock = threading.Lock()
        self._nodes = self._last_nodes = 0
        self._senders: dict[Edge, int] = {}
        self._start(-1)

    def attach(self, nodes: Sequence[tuple[Any, CallNode]], guard: Callable[..., Any]) -> None:
        """Hook the nodes. `guard(function, *values)` runs what a hook does."""
        self._nodes = len(nodes)
        self._last_nodes = sum(facts.is_last for _, facts in nodes)
        for _, facts in nodes:
            for _, edge in facts.inside:
                self._senders[edge] = self._senders.get(edge, 0) + 1

        def hook(function: Callable[..., None], facts: CallNode) -> Callable[..., None]:
            def run(*grads: Grads) -> None:
                if self._done is None or any(_stands_for_many(grad) for given in grads for grad in given):
                    return
                if not torch.is_grad_enabled():
                    guard(function, facts, *grads)
                    return
                with torch.no_grad():  # a run that records its own graph is not to record what we do
                    guard(function, facts, *grads)

            return run

        self._guard = guard
        for node, facts in nodes:
            if facts.outputs:
                # A backward written in Python may overwrite what it is given.
                written_in_python = isinstance(node, torch.autograd.function.BackwardCFunction)
                if written_in_python or self._begins is not None:
                    node.register_prehook(hook(self._arrived if written_in_python else self._begun, facts))
            if facts.outputs or facts.is_last or self._follow:
                node.register_hook(hook(self._ran, facts))

    def _start(self, task: int) -> None:
        self._task = task
        self._open = self._last_nodes
        self._given: Gradients = {}  # to inputs
        self._taken: dict[int, torch.Tensor] = {}  # from what uses the outputs
        self._mixed: set[InputKey] = set()
        self._sent: dict[Edge, Sent | None] = {}  # None: what was sent is mixed already
        self._before: dict[Edge, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}

    def _enter_run(self) -> None:
        task = private.graph_task()
        if task == self._task:
            return
        self._start(task)
        if self._nodes > 1 and not self._once:
            # A run that was asked for some gradients only never reaches all nodes, nor does one that starts at some
            # of the outputs.
            private.at_end_of_run(lambda: self._guard(self._ended, task))
        if self._begins is not None:
            self._begins()

    def _begun(self, facts: CallNode, grads: Grads) -> None:
        """Gradients of outputs are about to go through the node that made them."""
        with self._lock:
            self._enter_run()

    def _arrived(self, facts: CallNode, grads: Grads) -> None:
        """The same, and they may be overwritten there."""
        with self._lock:
            self._enter_run()
            for number, grad in enumerate(grads):
                if grad is not None and number in facts.outputs:
                    self._before[facts.number, number] = (weakref.ref(grad), self._keep(grad))

    def _ran(self, facts: CallNode, gave: Grads, got: Grads) -> None:
        """A node has run."""
        with self._lock:
            self._enter_run()
            mixed = self._take(facts, got)
            for slot, key in facts.to_inputs:
                grad = gave[slot]
                if grad is None:
                    continue
                if mixed:
                    self._mixed.add(key)
                # An input used twice inside one call gets two contributions; autograd adds them elsewhere.
                other = self._given.get(key)
                self._given[key] = self._own(grad) if other is None else _sum(other, grad)
            if self._follow:
                self._send(facts, gave, mixed)
            self._open -= facts.is_last
            is_last = self._open == 0
        if is_last:
            self._tell()

    def _own(self, grad: torch.Tensor) -> torch.Tensor:
        """The gradient as it is kept until the last node has run."""
        return grad.detach() if self._nodes == 1 and not grad._is_zerotensor() else self._keep(grad)

    def _take(self, facts: CallNode, got: Grads) -> bool:
        """Note what a node was given for outputs; whether something else was among what it was given."""
        mixed = False
        for number, grad in enumerate(got):
            edge = (facts.number, number)
            if not self._follow or edge not in self._sent:
                if grad is None:
                    continue
                index = facts.outputs.get(number)
                if index is None:
                    mixed = True  # from outside the call, to a tensor inside it
                    continue
                reference, copy = self._before.pop(edge, (None, None))
                same = reference is not None and reference() is grad
                self._taken[index] = copy if same and copy is not None else self._own(grad)
                continue
            sent = self._sent.pop(edge)
            mixed |= sent is None or grad is None or not sent.is_all(grad)
        return mixed and self._follow

    def _send(self, facts: CallNode, gave: Grads, mixed: bool) -> None:
        """Note what a node gave to others of the call."""
        for slot, edge in facts.inside:
            grad = gave[slot]
            if grad is None:
                continue
            if mixed:
                self._sent[edge] = None
            elif edge not in self._sent:
                self._sent[edge] = Sent(grad, self._senders[edge])
            elif (sent := self._sent[edge]) is not None:
                sent.add(grad)

    def _ended(self, task: int) -> None:
        if task == self._task:
            self._tell()

    def finish(self) -> None:
        """Hand on what there is: an output that nothing uses never gets a gradient. After that, nothing is collected."""
        if self._given or self._taken:
            self._tell()
        self._done = None

    def _tell(self) -> None:
        with self._lock:
            done, given, taken, mixed = self._done, self._given, self._taken, frozenset(self._mixed)
            self._start(-1)
            if self._once:
                self._done = None
        if done is not None:
            done({key: grad for key, grad in given.items() if key not in mixed}, taken, mixed)


def _stands_for_many(grad: torch.Tensor | None) -> bool:
    """Whether a run goes in many directions at once: what its calls make is seen at ATen level."""
    return grad is not None and private.is_batched(grad)


def _copy(grad: torch.Tensor) -> torch.Tensor:
    if grad._is_zerotensor():  # it has no memory: not every kernel of every device expects that
        return torch.zeros(grad.shape, dtype=grad.dtype, device=grad.device)
    return grad.detach().clone()


def _hollow_copy(grad: torch.Tensor) -> torch.Tensor:
    """Shape, strides and device of a gradient, without its values."""
    if grad.layout != torch.strided or grad.is_nested:
        return _copy(grad)
    return torch.empty_strided(grad.shape, grad.stride(), dtype=grad.dtype, device=grad.device)


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
        nodes = self.graph.nodes(exits, self.call.as_origin())
        if self.call.subscription.backward:
            self._hook(engine, nodes, len(outputs))

    def _hook(self, engine: Engine, nodes: Any, outputs: int) -> None:
        call, inputs = self.call, self.inputs
        call.hooked = True
        wanting = [(tool, tool.run) for tool in call.tools if tool.wants_backward]

        def tell(hook: str, *values: Any) -> None:
            # A graph may outlive the tool, and even see it started again.
            for tool, run in wanting:
                if tool.running and tool.run == run:
                    engine.guarded(tool, call, getattr(tool, hook), call, *values)

        def done(given: Gradients, taken: dict[int, torch.Tensor], mixed: frozenset[InputKey]) -> None:
            if mixed:
                tell("gradients_mixed", sorted(mixed))
            tell("backward", in_order(given, inputs), in_order(taken, outputs))

        def guard(function: Callable[..., None], *values: Any) -> None:
            private.silently(engine.guarded, None, call, function, *values)

        reads = any(tool.reads_gradients for tool, _ in wanting)
        GradientRecorder(done, lambda: tell("backward_begins"), follow=reads, values=reads).attach(
            nodes, guard
        )


class Marking:
    """The same where no tool asks for gradients: the nodes are only marked, below Python."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.nodes = native.call_nodes(call.tensors())

    def attach(self, result: Any, engine: Engine) -> None:
        self.nodes.mark(result, KEY, self.call.as_origin)


def track(call: Call, engine: Engine) -> Tracking | Marking:
    """What ties the nodes that a call is about to make to it."""
    return Marking(call) if engine.native.walks_graphs and not call.subscription.backward else Tracking(call)


def in_order(gradients: Any, count: int) -> list[torch.Tensor | None]:
    """A list with an entry for each index; None where there is no gradient."""
    return [gradients.get(index) for index in range(count)]


def mark(result: Any, first: int, origin: Callable[[], Origin]) -> None:
    """Tie the nodes that a call has made, numbered from `first` on, to what `origin` says of the call."""
    graph = CallGraph(first=first)
    exits = {
        node: outputs for node, outputs in graph.exits(tensors_of(result)).items() if KEY not in node.metadata
    }
    if exits:
        graph.nodes(exits, origin())


def mark_function(engine: Engine, function: Any, first: int, result: Any) -> None:
    """Tie the node of an autograd function of the program to the line that applied it."""
    name = f"{function.__module__}.{function.__qualname__}"
    mark(result, first, lambda: Origin(name, engine.next_id(), site.read()))
