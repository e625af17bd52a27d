"""Random functions compiled by a backend of dicp: each must give what eager PyTorch gives, and write what it writes.

    python tests/dicp/dicp_fuzz.py --graphs 2000                                # hostgraph
    python tests/dicp/dicp_fuzz.py --backend reference --graphs 10000           # the interpreter of loop programs: quicker
    python tests/dicp/dicp_fuzz.py --graph 17                                   # one function again, with its text

Every second function is compiled for any size and called with two sets of sizes. Ends with 1 if something was found.
"""

from __future__ import annotations

import argparse
import os
import random
import warnings
from collections.abc import Callable
from typing import Any

import torch
from dicp_graphs import Graph, random_graph

from dicp.dynamo_bridge.compile_fx import compile_fx
from dicp.passes.reference_backend import ReferenceBackend
from dicp.registry import register

__all__ = ["compiled", "problems_of"]


def compiled(function: Callable[..., Any], backend: str, dynamic: bool) -> Callable[..., Any]:
    """`reference`: the interpreter of loop programs."""
    if backend == "reference":
        register(ReferenceBackend())

    def compile_it(gm: Any, inputs: Any, **options: Any) -> Callable[..., Any]:
        return compile_fx(gm, inputs, backend, **options)

    found: Callable[..., Any] = torch.compile(function, backend=compile_it, dynamic=dynamic)
    return found


def problems_of(graph: Graph, backend: str) -> list[str]:
    """What the backend gives that eager PyTorch does not."""
    found = _problems(graph, compiled(graph.function(), backend, len(graph.inputs) > 1))
    if found:  # torch's own tracing forgets some writes to tensors without dimensions
        traced = torch.compile(graph.function(), backend="aot_eager", dynamic=len(graph.inputs) > 1)
        theirs = _problems(graph, traced)
        found = [problem for problem in found if problem not in theirs]
    return found


def _problems(graph: Graph, call: Callable[..., Any]) -> list[str]:
    torch._dynamo.reset()
    found = []
    for sizes in range(len(graph.inputs)):
        try:
            with torch.no_grad():
                found += [f"sizes {sizes}: {problem}" for problem in graph.problems(call, sizes)]
        except Exception as error:
            found.append(f"sizes {sizes}: {type(error).__name__}: {str(error)[:300]}")
    return found


def graph_of(seed: int, number: int) -> Graph:
    return random_graph(random.Random(f"{seed}:{number}"), dynamic=number % 2 == 1)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="hostgraph")
    parser.add_argument("--graphs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--graph", type=int, help="this one again")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.setdefault("DICP_FALLBACK", "unsupported")  # an error of the compiler is a finding
    torch.set_num_threads(1)
    numbers = range(options.first, options.first + options.graphs)
    wrong = 0
    for number in numbers if options.graph is None else [options.graph]:
        graph = graph_of(options.seed, number)
        problems = problems_of(graph, options.backend)
        wrong += bool(problems)
        for problem in problems:
            print(f"graph {number}: {problem}", flush=True)
        if options.graph is not None:
            print(graph.source, *(f"{list(t.shape)} {t.dtype}" for t in graph.inputs[0]))
    print(f"{wrong} of {len(numbers) if options.graph is None else 1} graphs are wrong by {options.backend}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
