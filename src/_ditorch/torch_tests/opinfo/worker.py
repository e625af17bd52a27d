"""The process that runs pairs. One thread, its own device context, its own log.

A pair can kill its process: that is a result, not an accident, so the parent keeps no state here.
"""

from __future__ import annotations

import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any

import torch

from _ditorch.torch_tests.model import Options, Outcome, Pair, Problem, Selection, State, WorkerFacts
from _ditorch.torch_tests.opinfo import plan, torch_skips
from _ditorch.torch_tests.opinfo.checks import judged
from _ditorch.torch_tests.opinfo.judge import Judge
from _ditorch.torch_tests.opinfo.sides import device_function, seed_both
from _ditorch.torch_tests.places import answers, place_of
from _ditorch.torch_tests.processes import serve, speak_into

__all__ = ["main", "same_random_numbers"]


def main(connection: Connection, _: str, log: str, options: Options) -> None:
    """Answer a `Selection` with its pairs, a `Pair` with its `Outcome`."""
    speak_into(log)
    facts: list[WorkerFacts] = []

    def prepare() -> WorkerFacts:
        facts.append(_prepare(options))
        return facts[0]

    def answer(request: Selection | Pair) -> list[Pair] | Outcome:
        ops = plan.operators(options.op_db)
        if isinstance(request, Selection):
            return plan.build(ops.values(), request, options)
        return _judge(ops[request.op], request, options, facts[0].bit_equal_rng)

    serve(connection, prepare, answer)


def _judge(op: Any, pair: Pair, options: Options, bit_equal_rng: bool) -> Outcome:
    try:
        outcome = judged(Judge(op, pair, options, bit_equal_rng))
    except Exception as error:
        outcome = Outcome(pair, problems=[Problem(State.ERROR, f"harness: {error}", traceback.format_exc())])
    # An assertion inside a kernel ends a device's context: what follows in this process would fail for that reason.
    outcome.spent = bool(outcome.problems) and not answers(options.device)
    if outcome.problems and options.torch_skips:
        torch_skips.mark(op, outcome, torch.device(options.device).type)
    return outcome


def _prepare(options: Options) -> WorkerFacts:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Numbers are compared as float32, not as what some cards make of it by default.
    # Private: torch's testing modules forbid the public flags for the process.
    torch._C._set_cudnn_allow_tf32(False)
    torch._C._set_cublas_allow_tf32(False)
    plan.operators(options.op_db)
    place_of(options.device).load()
    torch.empty(1, device=options.device)
    rng = options.bit_equal_rng if options.bit_equal_rng is not None else same_random_numbers(options.device)
    vendor = device_function(options.device, "vendor")() or {}
    return WorkerFacts(torch.__version__, rng, vendor)


def same_random_numbers(device: str) -> bool:
    """Measured, not assumed from the device's name: does one seed give both sides the same numbers?"""
    sides = []
    for place in ("cpu", device):
        seed_both(device)
        sides.append([torch.rand(33, device=place).cpu(), torch.randn(33, device=place).cpu()])
    return all(torch.equal(cpu, other) for cpu, other in zip(*sides, strict=True))
