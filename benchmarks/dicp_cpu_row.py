"""One row of `dicp_cpu` in a process of its own, whose settings are fixed before torch is imported; prints its figures as JSON.

python benchmarks/dicp_cpu_row.py '{"what": "speed", "row": "pointwise"}'
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

BACKENDS = ("inductor", "hostgraph")


@dataclass(frozen=True)
class Request:
    """What is measured: `speed`, `training`, `compile`, `shapes` or `decode`."""

    what: str
    row: str = ""
    threads: int = 1
    dtype: str = "float32"
    frozen: bool = False
    rounds: int = 15
    backend: str = "hostgraph"


def compiled(model: Any, backend: str, frozen: bool = False) -> Any:
    import torch

    if backend == "inductor":
        torch._inductor.config.freezing = frozen
        return torch.compile(model, backend="inductor", dynamic=False)
    return torch.compile(model, backend=backend, dynamic=False, options={"freezing": frozen})


def rounds_of(works: dict[str, Callable[[], Any]], request: Request) -> dict[str, list[float]]:
    """Seconds a call of each, in turn: of the CPU on one thread, of the wall on more."""
    clock = time.process_time if request.threads == 1 else time.perf_counter
    start = clock()
    works["hostgraph"]()
    calls = max(1, min(400, round(0.06 / max(clock() - start, 1e-5))))
    seconds: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for number in range(request.rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            work = works[name]
            start = clock()
            for _ in range(calls):
                work()
            seconds[name].append((clock() - start) / calls)
    return seconds


def speed(request: Request) -> dict[str, Any]:
    """Eager, Inductor and hostgraph in turn."""
    import torch

    from dicp_models import subject

    subject_of_row = subject(request.row, getattr(torch, request.dtype))
    model, inputs = subject_of_row.model, subject_of_row.inputs
    with torch.no_grad():
        works: dict[str, Callable[[], Any]] = {"eager": lambda: model(*inputs)}
        expected = model(*inputs)
        errors = {}
        for backend in BACKENDS:
            function = compiled(model, backend, request.frozen)
            works[backend] = partial(function, *inputs)
            errors[backend] = float((works[backend]().double() - expected.double()).abs().max())
            works[backend]()
        return {"seconds": rounds_of(works, request), "largest_error": errors}


def training(request: Request) -> dict[str, Any]:
    from dicp_models import TrainingStep

    works = {name or "eager": TrainingStep(name) for name in (None, *BACKENDS)}
    losses = {name: [work() for _ in range(3)] for name, work in works.items()}
    return {"seconds": rounds_of(dict(works), request), "losses": losses}


def compiling(request: Request) -> dict[str, Any]:
    """The first call of a new process: wall seconds, and what of them the backend itself takes."""
    import torch

    from dicp_models import subject

    subject_of_row = subject(request.row)
    # What every process imports for its first graph is no part of compiling one.
    with torch.no_grad():
        torch.compile(lambda x: x + 1, backend=request.backend)(torch.ones(3))
    own = own_seconds(request.backend)
    with torch.no_grad():
        function = compiled(subject_of_row.model, request.backend)
        start, used = time.perf_counter(), time.process_time()
        function(*subject_of_row.inputs)
        wall, used = time.perf_counter() - start, time.process_time() - used
    return {"wall": wall, "cpu": used, "own": own()}


def own_seconds(backend: str) -> Callable[[], float | None]:
    """Seconds inside of the backend, without Dynamo, AOTAutograd and the run: of the CPU, those of the C++ compiler included."""
    if backend != "hostgraph":
        return lambda: None
    bridge: Any = importlib.import_module("dicp.dynamo_bridge.compile_fx")
    original, spent = bridge.compile_graph, [0.0]

    def timed(*arguments: Any, **options: Any) -> Any:
        start = sum(os.times()[:4])
        try:
            return original(*arguments, **options)
        finally:
            spent[0] += sum(os.times()[:4]) - start

    bridge.compile_graph = timed
    return lambda: spent[0]


def shapes(request: Request) -> dict[str, Any]:
    """Eight lengths by one library, each beside a library of its own."""
    import torch

    from dicp_models import Transformer, tokens

    torch.manual_seed(0)
    model = Transformer().eval().requires_grad_(False)
    lengths = [24, 48, 64, 80, 96, 112, 128, 160]
    builds = Builds()
    found = {}
    with torch.no_grad():
        dynamic = torch.compile(model, backend="hostgraph", dynamic=True)
        for length in lengths:
            dynamic(*tokens(1000, 4, length))
        libraries = builds.count
        for length in lengths:
            torch._dynamo.reset_code(type(model).forward.__code__)
            inputs = tokens(1000, 4, length)
            static = torch.compile(
                Transformer().eval().requires_grad_(False), backend="hostgraph", dynamic=False
            )
            static(*inputs)
            works = {"hostgraph": partial(static, *inputs), "dynamic": partial(dynamic, *inputs)}
            works["dynamic"]()
            found[str(length)] = rounds_of(dict(works), request)
    return {"libraries": libraries, "seconds": found}


def decode(request: Request) -> dict[str, Any]:
    """A decode step of SmolLM2 at four positions, behind a prompt that filled the static cache eagerly."""
    import torch
    from transformers import StaticCache

    from dicp_models import smollm2

    wrapped: Any = smollm2()
    model = wrapped.model.eval().requires_grad_(False)
    builds, logits = Builds(), dict[str, list[torch.Tensor]]()
    torch._dynamo.utils.counters.clear()
    for name in ("eager", "hostgraph"):
        cache = StaticCache(config=model.config, max_cache_len=64)
        step = (
            torch.compile(model, backend=name, fullgraph=True, dynamic=False)
            if name == "hostgraph"
            else model
        )
        logits[name] = []
        with torch.no_grad():
            prompt = torch.arange(100, 105)[None]
            model(input_ids=prompt, past_key_values=cache, cache_position=torch.arange(5), use_cache=True)
            for position in range(5, 9):
                ids = torch.tensor([[100 + position]])
                at = torch.tensor([position])
                out = step(input_ids=ids, past_key_values=cache, cache_position=at, use_cache=True)
                logits[name].append(out.logits)
    pairs = zip(logits["eager"], logits["hostgraph"], strict=True)
    errors = [float((a - b).abs().max()) for a, b in pairs]
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return {"graphs": graphs, "libraries": builds.count, "largest_error": max(errors)}


class Builds:
    """Counts the libraries that are asked for."""

    def __init__(self) -> None:
        config: Any = importlib.import_module("dicp.vendor.HostGraph.config")
        self.count, original = 0, config.build

        def counted(source: str) -> Any:
            self.count += 1
            return original(source)

        config.build = counted


MEASURED: dict[str, Callable[[Request], dict[str, Any]]] = {
    "speed": speed,
    "training": training,
    "compile": compiling,
    "shapes": shapes,
    "decode": decode,
}


def main() -> None:
    request = Request(**json.loads(sys.argv[1]))
    os.environ["OMP_NUM_THREADS"] = str(request.threads)
    import torch

    torch.set_num_threads(request.threads)
    print(json.dumps(MEASURED[request.what](request)))


if __name__ == "__main__":
    main()
