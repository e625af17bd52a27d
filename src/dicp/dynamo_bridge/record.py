"""What happened to each graph on its way through a backend: for `dicp explain`, DICP_DUMP_DIR and tests.

Nothing is recorded unless somebody asked: a graph's text takes time to write.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch.fx import GraphModule, Node

from dicp.graph.text import graph_text, node_text, target_text, type_text
from dicp.settings import DUMP_DIR

__all__ = ["GraphRecord", "RecordedNode", "RecordedPass", "RecordedStep", "begin_record", "recording"]


@dataclass(frozen=True)
class RecordedNode:
    """A node of a graph, for a drawing."""

    name: str
    operator: str
    type: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class RecordedPass:
    """The graph as a pass left it."""

    name: str
    text: str
    seconds: float
    changed: bool


@dataclass
class RecordedStep:
    """Part of a graph: compiled, or run eagerly for reasons."""

    compiled: bool
    nodes: tuple[RecordedNode, ...]
    text: str
    reasons: dict[str, str] = field(default_factory=dict)
    """Of calls that run eagerly; by the name of the node."""
    artifacts: dict[str, str] = field(default_factory=dict)
    """What the backend made: names of files and their texts."""
    kernels: dict[str, str] = field(default_factory=dict)
    """By the name of a node the kernel it is fused into, as far as the backend says it (`graph.meta["kernels"]`)."""
    seconds: float = 0.0


@dataclass
class GraphRecord:
    """One graph that AOTAutograd gave to a backend."""

    backend: str
    kind: str
    inputs: tuple[RecordedNode, ...]
    passes: list[RecordedPass] = field(default_factory=list)
    """The first is the graph as it came."""
    steps: list[RecordedStep] = field(default_factory=list)
    executor: str = ""
    """The Python function that runs the steps."""
    failure: str = ""
    """Why all of it runs eagerly."""
    outputs: tuple[str, ...] = ()

    def note_pass(self, name: str, gm: GraphModule, seconds: float) -> None:
        """The graph after a pass."""
        text = graph_text(gm)
        changed = not self.passes or text != self.passes[-1].text
        self.passes.append(RecordedPass(name, text, seconds, changed))

    def note_step(self, nodes: Sequence[Node], reasons: Mapping[Node, str]) -> RecordedStep:
        """A step; whether it could be compiled is known later."""
        lines = [node_text(node) + (f"  # {reasons[node]}" if node in reasons else "") for node in nodes]
        step = RecordedStep(
            False,
            tuple(map(recorded_node, nodes)),
            "\n".join(lines) + "\n",
            {node.name: reason for node, reason in reasons.items() if node in set(nodes)},
        )
        self.steps.append(step)
        return step

    @property
    def operators(self) -> int:
        """How many calls there are that compute something."""
        return sum(_computes(node) for step in self.steps for node in step.nodes)

    @property
    def compiled_operators(self) -> int:
        return sum(_computes(node) for step in self.steps if step.compiled for node in step.nodes)


def _computes(node: RecordedNode) -> bool:
    return not node.operator.startswith(("operator.", "math.", "torch.", "aten.sym_"))


def recorded_node(node: Node) -> RecordedNode:
    """What a drawing needs of a node."""
    operator = target_text(node.target) if node.op == "call_function" else node.op
    inputs = tuple(argument.name for argument in node.all_input_nodes)
    return RecordedNode(node.name, operator, type_text(node.meta.get("val")), inputs)


_LISTENERS: list[list[GraphRecord]] = []


@contextmanager
def recording() -> Iterator[list[GraphRecord]]:
    """Collects the records of all graphs that are compiled meanwhile, by any thread."""
    records: list[GraphRecord] = []
    _LISTENERS.append(records)
    try:
        yield records
    finally:
        _LISTENERS.remove(records)


def begin_record(gm: GraphModule, backend: str, kind: str) -> GraphRecord | None:
    """The record of a graph, if somebody wants one."""
    if not _LISTENERS and not DUMP_DIR.get():
        return None
    inputs = tuple(recorded_node(node) for node in gm.graph.find_nodes(op="placeholder"))
    record = GraphRecord(backend, kind, inputs)
    record.note_pass("AOTAutograd", gm, 0.0)
    record.outputs = tuple(node.name for node in gm.graph.output_node().all_input_nodes)
    for records in _LISTENERS:
        records.append(record)
    return record
