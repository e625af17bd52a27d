"""The worker that runs pairs: one thread, its own device context.

A pair can kill its process: that is a result, not an accident, so the parent keeps no state here.
"""

from __future__ import annotations

import traceback
import warnings
from typing import Any

import torch

from _ditorch.torch_tests.model import Options, Outcome, Pair, Problem, Selection, State, WorkerFacts
from _ditorch.torch_tests.opinfo import plan, torch_skips
from _ditorch.torch_tests.opinfo.checks import judged
from _ditorch.torch_tests.opinfo.judge import Judge
from _ditorch.torch_tests.opinfo.sides import device_function, seed_both
from _ditorch.torch_tests.places import answers, place_of
from dicore.workers import Retire, Service

__all__ = ["same_random_numbers", "start"]


def start(_group: str, options: Options) -> Service:
    """Answers a `Selection` with its pairs, a `Pair` with its `Outcome`."""
    facts = _prepare(options)
    ops = plan.operators(options.op_db)

    def run(task: Selection | Pair) -> list[Pair] | Outcome | Retire:
        if isinstance(task, Selection):
            return plan.build(ops.values(), task, options)
        return _judge(ops[task.op], task, options, facts.bit_equal_rng)

    return Service(run, facts)


def _judge(op: Any, pair: Pair, options: Options, bit_equal_rng: bool) -> Outcome | Retire:
    try:
        outcome = judged(Judge(op, pair, options, bit_equal_rng))
    except Exception as error:
        outcome = Outcome(pair, problems=[Problem(State.ERROR, f"harness: {error}", traceback.format_exc())])
    # An assertion inside a kernel ends a device's context: what follows in this process would fail for that reason.
    dead = bool(outcome.problems) and not answers(options.device)
    if outcome.problems and options.torch_skips:
        torch_skips.mark(op, outcome, torch.device(options.device).type)
    return Retire(outcome) if dead else outcome


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
