"""The process that runs pairs. One thread, its own device context, its own log.

A pair can kill its process: that is a result, not an accident, so the parent keeps no state here.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import traceback
import warnings
from multiprocessing.connection import Connection
from typing import Any

import torch

from torch_dipu.testing.opinfo import plan
from torch_dipu.testing.opinfo.judge import Judge, device_function, seed_both
from torch_dipu.testing.opinfo.model import Options, Outcome, Pair, Problem, Selection, State, WorkerFacts


def main(connection: Connection, options: Options, log: str) -> None:
    """Until the parent closes its end: answer a `Selection` with its pairs, a `Pair` with its `Outcome`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    _speak_into(log)
    try:
        facts = _prepare(options)
    except BaseException:
        connection.send(traceback.format_exc())
        return
    connection.send(facts)
    ops = plan.operators(options.op_db)
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        if isinstance(request, Selection):
            connection.send(plan.build(ops.values(), request))
        else:
            connection.send(_judge(ops[request.op], request, options, facts.bit_equal_rng))


def _judge(op: Any, pair: Pair, options: Options, bit_equal_rng: bool) -> Outcome:
    try:
        outcome = Judge(op, pair, options, bit_equal_rng).run()
    except Exception as error:
        outcome = Outcome(pair, problems=[Problem(State.ERROR, f"harness: {error}", traceback.format_exc())])
    outcome.worker_is_spent = outcome.state is State.ERROR and not _answers(options.device)
    return outcome


def _answers(device: str) -> bool:
    """After some errors (an assertion in a kernel, say) a device refuses everything in this process."""
    try:
        return (torch.ones(1, device=device) + 1).item() == 2
    except Exception:
        return False


def _speak_into(log: str) -> None:
    """Whatever libraries print would tear the parent's progress bar; a crash leaves its traceback here."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    faulthandler.enable(file=2)


def _prepare(options: Options) -> WorkerFacts:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    plan.operators(options.op_db)
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
