"""The backend `hostgraph` beside eager and Inductor on the CPU: speed of six models, frozen, trained, on two threads.

Each row runs in a process of its own, the three in turn, rounds of milliseconds: CPU time of one thread, wall time on more. A
figure is how many times as fast as Inductor hostgraph is, the median over rounds. `--only speed,ResNet` chooses parts and rows;
`--threads` and `--dtype` say how `speed` and `frozen` run. Timing rows use the caches of both compilers, `cold` empty ones.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dicp_cpu_row import Request
from dicp_models import ROWS, SMALL
from report import Case, Options, Report, Speedup

HERE = Path(__file__).resolve().parent
SPEED = {"pointwise": 1.4, "transformer B1 T1": 1.8, "SmolLM2 T=1": 1.3}
LEAST, MEAN = 0.97, 1.3
BFLOAT16 = ("pointwise", "SmolLM2 T=1", "SmolLM2 T=64")
PARTS = ("speed", "frozen", "threads", "bfloat16", "training", "cold", "warm", "shapes", "decode")
Figures = dict[str, Any]


class RowError(RuntimeError):
    """A row's process failed; says what it said last."""


def figures(request: Request, settings: Mapping[str, str] | None = None) -> Figures:
    """What a process of its own measured."""
    command = [sys.executable, str(HERE / "dicp_cpu_row.py"), json.dumps(asdict(request))]
    environment = {**os.environ, "OMP_NUM_THREADS": str(request.threads), **(settings or {})}
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RowError(f"{request}: {done.stderr.strip()[-2000:]}")
    found: Figures = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def speedup(name: str, found: Figures, target: float | None = None) -> Speedup:
    """How many times as fast as Inductor."""
    seconds = found["seconds"]
    ratios = [a / b for a, b in zip(seconds["inductor"], seconds["hostgraph"], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    medians = {side: 1e3 * statistics.median(given) for side, given in seconds.items()}
    figure = statistics.median(ratios)
    cells = [*(f"{medians[side]:.3f}" for side in ("eager", "inductor", "hostgraph"))]
    cells += [f"{figure:.2f}x", f"{low:.2f} - {high:.2f}"]
    raw = {**found, "quartiles": [low, high], "milliseconds": medians}
    return Speedup(name, figure, cells, target, raw)


class Selection:
    """What `--only` leaves."""

    def __init__(self, options: Options) -> None:
        known = {*PARTS, *ROWS}
        unknown = [word for word in options.only if word not in known]
        if unknown:
            raise SystemExit(f"--only {unknown[0]}: expected some of {', '.join([*PARTS, *ROWS])}")
        self.parts = [part for part in PARTS if part in options.only] or list(PARTS)
        self.rows = [row for row in ROWS if row in options.only] or list(ROWS)


def speeds(
    part: str, rows: list[str], request: Request, options: Options, targets: Mapping[str, float]
) -> list[Case]:
    cases: list[Case] = []
    for row in rows:
        options.say(f"{part}: {row} ...")
        found = figures(Request(**{**asdict(request), "what": "speed", "row": row}))
        cases.append(speedup(f"{part} {row}", found, targets.get(row)))
    return cases


def mean_of(part: str, cases: list[Case], target: float | None) -> Speedup:
    figure = math.exp(statistics.mean(math.log(case.figure) for case in cases))
    return Speedup(f"{part} geometric mean", figure, ["", "", "", f"{figure:.2f}x", ""], target)


def timed(selection: Selection, options: Options) -> Iterator[Case]:
    """Everything that compares calls."""
    rounds = 3 if options.quick else 15
    own = options.threads is not None or options.dtype is not None
    request = Request("speed", "", options.threads or 1, options.dtype or "float32", rounds=rounds)
    if "speed" in selection.parts:
        targets = {} if own else {row: SPEED.get(row, LEAST) for row in ROWS}
        cases = speeds("speed", selection.rows, request, options, targets)
        yield from cases
        if len(cases) == len(ROWS):
            yield mean_of("speed", cases, None if own else MEAN)
    if "frozen" in selection.parts:
        frozen = Request(**{**asdict(request), "frozen": True})
        yield from speeds("frozen", selection.rows, frozen, options, {} if own else dict.fromkeys(ROWS, 1.0))
    if "threads" in selection.parts and not own:
        two = Request(**{**asdict(request), "threads": 2})
        yield from speeds("threads", selection.rows, two, options, dict.fromkeys(ROWS, 0.95))
    if "bfloat16" in selection.parts and not own:
        half = Request(**{**asdict(request), "dtype": "bfloat16"})
        rows = [row for row in BFLOAT16 if row in selection.rows]
        yield from speeds("bfloat16", rows, half, options, dict.fromkeys(ROWS, 1.1))
    if "training" in selection.parts:
        options.say("training ...")
        yield speedup("training step", figures(Request("training", rounds=rounds)), 1.05)


def compile_times(selection: Selection, options: Options) -> Iterator[Case]:
    """First with empty caches, then in a new process with what these have left."""
    for row in selection.rows if {"cold", "warm"} & set(selection.parts) else ():
        options.say(f"compile time: {row} ...")
        found: dict[str, Figures] = {}
        with tempfile.TemporaryDirectory() as folder:
            settings = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "DICP_CACHE_DIR": f"{folder}/dicp"}
            for state in ("cold", "warm"):
                for backend in ("inductor", "hostgraph"):
                    request = Request("compile", row, backend=backend)
                    found[f"{state} {backend}"] = figures(request, settings)
        for state in selection.parts:
            if state in ("cold", "warm"):
                yield from compile_cases(state, row, found)


def compile_cases(state: str, row: str, found: Mapping[str, Figures]) -> Iterator[Case]:
    inductor, ours = found[f"{state} inductor"], found[f"{state} hostgraph"]
    ratio = inductor["wall"] / ours["wall"]
    cells = [
        "",
        f"{inductor['wall']:.2f} s",
        f"{ours['wall']:.2f} s",
        f"{ratio:.1f}x",
        f"own {ours['own']:.2f} s",
    ]
    raw = {"inductor": inductor, "hostgraph": ours}
    target = (8.0 if row in SMALL else 4.0) if state == "cold" else None
    yield Speedup(f"{state} {row}", ratio, cells, target, raw)
    limit = 0.5 if state == "warm" else None if row in SMALL else 2.0
    yield Case(f"{state} {row}, own seconds", ours["own"], ["", "", f"{ours['own']:.2f} s", "", ""], limit)


def many_shapes(options: Options) -> Iterator[Case]:
    options.say("eight shapes ...")
    found = figures(Request("shapes", rounds=3 if options.quick else 9))
    ratios = {}
    for length, seconds in found["seconds"].items():
        pairs = zip(seconds["dynamic"], seconds["hostgraph"], strict=True)
        ratios[length] = statistics.median(a / b for a, b in pairs)
    worst = max(ratios.values())
    yield Case("shapes, libraries for 8", found["libraries"], ["", "", str(found["libraries"]), "", ""], 1)
    yield Case(
        "shapes, dynamic / static", worst, ["", "", "", f"{worst:.2f}", ""], 1.05, {"ratios": ratios, **found}
    )


def decode_step(options: Options) -> Iterator[Case]:
    options.say("decode step ...")
    found = figures(Request("decode"))
    yield Case(
        "decode step of SmolLM2, graphs", found["graphs"], ["", "", str(found["graphs"]), "", ""], 1, found
    )


def measure(options: Options) -> Report:
    selection = Selection(options)
    cases = [*timed(selection, options), *compile_times(selection, options)]
    if "shapes" in selection.parts:
        cases += many_shapes(options)
    if "decode" in selection.parts:
        cases += decode_step(options)
    notes = {"quick": options.quick, "threads": options.threads, "dtype": options.dtype}
    columns = ["eager ms", "Inductor ms", "hostgraph ms", "faster", "middle half"]
    return Report("hostgraph beside Inductor", columns, cases, notes)


if __name__ == "__main__":
    import run

    run.main(["dicp_cpu", *sys.argv[1:]])
