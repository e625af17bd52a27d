"""Runs models through LMDeploy with decoding as a graph, and writes what came out, as JSON.

A process of its own: the adaptor gives torch's names for cuda another meaning, which other tests must not see.

    python tests/dlinfer/lmdeploy_graph_worker.py OUT.json
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lmdeploy
import lmdeploy_models
import torch
from lmdeploy import GenerationConfig, PytorchEngineConfig
from lmdeploy_jobs import Answer, write_answers

import dlinfer.graph
from dlinfer.graph import Backend
from dlinfer.graph.backends import run_graph
from dlinfer.graph.cuda_graphs import RecordedGraph

#: Lengths that cross a block of 64 at different steps, and answers that end one after the other: batches of 8 down to 1.
PROMPTS = tuple("The quick brown fox jumps over the lazy dog. "[: 5 * turn] * turn for turn in range(1, 9))
NEW_TOKENS = (40, 7, 12, 24, 3, 16, 33, 20)
MODELS = ("llama3", "internlm25", "mixtral")


class Again:
    """Stands for a device that records: replays by calling again, into the same memory of results."""

    device = "cpu"

    def prepare(self, call: Callable[[], Any]) -> Any:
        """Runs it."""
        return call()

    def record(self, call: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """Every step writes the same into the caches however often it runs, so it may run to find the results' shapes."""
        results = [torch.full_like(value, float("nan")) for value in call()]

        def replay() -> None:
            for result, value in zip(results, call(), strict=True):
                result.copy_(value)

        return replay, results


RECORDED: list[RecordedGraph] = []


def _recorded(graph: torch.fx.GraphModule, inputs: list[Any]) -> RecordedGraph:
    RECORDED.append(RecordedGraph(graph, inputs, Again()))
    return RECORDED[-1]


RUNS = Counter[str]()


def _counted(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """The eager executor, which also tells how often the graph really ran."""
    run = run_graph(graph, inputs)

    def counted(*values: Any) -> Any:
        RUNS["graph"] += 1
        return run(*values)

    return counted


@contextmanager
def served(model: Any, backend: str) -> Iterator[Any]:
    """A pipeline of a saved model on the CPU, in graph mode."""
    os.environ["DLINFER_GRAPH_BACKEND"] = backend
    config = PytorchEngineConfig(
        device_type="ascend", num_gpu_blocks=64, session_len=512, max_batch_size=8, eager_mode=False
    )
    with lmdeploy.pipeline(
        str(model.folder), config, trust_remote_code=model.remote_code, log_level="ERROR"
    ) as pipe:
        yield pipe


def _graphs() -> list[dlinfer.graph.CompiledGraph]:
    """The graphs of the engine, wherever it keeps them."""
    found = [value for value in gc.get_objects() if type(value) is dlinfer.graph.CompiledGraph]
    return [graph for graph in found if graph.graphs]


def answers(name: str, backend: str) -> Answer:
    """Eight prompts whose answers have different lengths, then one alone; beside transformers with each alone."""
    with tempfile.TemporaryDirectory() as folder:
        model = lmdeploy_models.BUILDERS[name](Path(folder))
        expected = [model.greedy(*asked) for asked in zip(PROMPTS, NEW_TOKENS, strict=True)]
        RECORDED.clear()
        RUNS.clear()
        with served(model, backend) as pipe:
            settings = [GenerationConfig(max_new_tokens=new, ignore_eos=True) for new in NEW_TOKENS]
            got = pipe(list(PROMPTS), gen_config=settings, do_preprocess=False)
            alone = pipe([PROMPTS[0]], gen_config=settings[0], do_preprocess=False)
            (graph,) = _graphs()
            answer = {
                "expected": expected,
                "got": [one.token_ids for one in got],
                "alone": alone[0].token_ids,
                "graphs": len(graph.graphs),
                "runs": RUNS["graph"],
                "operators": dict(Counter(graph.graphs[0].operators)),
                "writes": len(graph.graphs[0].writes),
                "sizes": sorted(
                    {
                        result.shape[1]
                        for one in RECORDED
                        for it in one.recordings.values()
                        for result in it.results
                    }
                ),
            }
            graph.reset()
            return answer


def padding_sizes() -> Answer:
    """What LMDeploy is told about sizes, with a backend that serves all and one that does not."""
    from dlinfer.framework.lmdeploy_ext.cudagraph.ascend_cudagraph import get_ascend_compatible_size

    found = {}
    for backend in ("eager", "none", "recorded"):
        os.environ["DLINFER_GRAPH_BACKEND"] = backend
        found[backend] = [get_ascend_compatible_size(n) for n in (1, 2, 3, 8, 9, 16, 17, 48, 250, 257, 600)]
    return found


def main(out: Path) -> None:
    """Answer everything."""
    dlinfer.graph.register(Backend("recorded", _recorded, fixed_sizes=True))
    dlinfer.graph.register(Backend("counted", _counted))
    jobs: dict[str, Callable[[], Answer]] = {name: partial(answers, name, "counted") for name in MODELS}
    jobs["recorded"] = partial(answers, "llama3", "recorded")
    jobs["sizes"] = padding_sizes
    write_answers(jobs, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
