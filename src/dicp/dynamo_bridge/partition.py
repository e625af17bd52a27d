"""Divides a graph: which nodes are compiled together, and what runs eagerly between them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch.fx import Graph, Node

from dicp.dynamo_bridge.ordering import orderings

__all__ = ["GraphStep", "divide"]


@dataclass(frozen=True)
class GraphStep:
    """Nodes that run one after the other: together as one compiled function, or each by itself."""

    nodes: tuple[Node, ...]
    compiled: bool


def divide(graph: Graph, taken: Callable[[Node], bool]) -> list[GraphStep]:
    """The steps of a graph, in an order in which they can run.

    Each node gets a stage: even stages are eager, odd ones compiled, and a stage follows all stages that its nodes need. A path
    between two nodes of a stage cannot leave the stage, so the nodes of a compiled stage can run as one function; and there are
    as few of them as there can be. Takes time linear in the size of the graph.
    """
    before = orderings(graph)
    compiled: dict[Node, bool] = {}
    stages: dict[Node, int] = {}
    calls = [node for node in graph.nodes if node.op not in ("placeholder", "output")]
    for node in calls:
        source = _source(node)
        compiled[node] = compiled[source] if source is not None and source in compiled else taken(node)
        stage = int(compiled[node])
        for needed in (*node.all_input_nodes, *before.get(node, ())):
            if needed in stages:
                stage = max(stage, stages[needed] + (compiled[needed] != compiled[node]))
        stages[node] = stage
    _postpone(calls, compiled, before, stages)
    steps: dict[int, list[Node]] = {}
    for node in calls:
        steps.setdefault(stages[node], []).append(node)
    return [GraphStep(tuple(steps[stage]), stage % 2 == 1) for stage in sorted(steps)]


def _source(node: Node) -> Node | None:
    """The call with several results of which this is one: both are in the same stage."""
    if node.op == "call_function" and node.target is operator.getitem and isinstance(node.args[0], Node):
        return node.args[0]
    return None


def _postpone(
    calls: Sequence[Node],
    compiled: Mapping[Node, bool],
    before: Mapping[Node, Sequence[Node]],
    stages: dict[Node, int],
) -> None:
    """Moves what hangs on inputs of the graph alone, such as a transposed weight, to the first compiled stage that reads it.

    There it can be fused; where it stood it would have been a result to keep until then.
    """
    waited_for = {needed for waits in before.values() for needed in waits}
    latest: dict[Node, int] = {}
    for node in reversed(calls):
        fixed = not compiled[node] or node in before or node in waited_for or _source(node) is not None
        readers = list(node.users)
        if (
            not fixed
            and readers
            and all(compiled.get(reader) and _source(reader) is None for reader in readers)
        ):
            latest[node] = min(latest.get(reader, stages[reader]) for reader in readers)
    moved: set[Node] = set()
    for node in calls:
        if node not in latest or latest[node] == stages[node]:
            continue
        if all(needed not in stages or needed in moved for needed in node.all_input_nodes):
            moved.add(node)
            stages[node] = latest[node]
