"""The worker that runs pairs: one thread, its own device context.

A pair can kill its process: that is a result, not an accident, so the parent keeps no state here.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from _ditorch.torch_tests.device_under_test import answers, device_under_test
from _ditorch.torch_tests.opinfo import pairs
from _ditorch.torch_tests.opinfo.checks import judged
from _ditorch.torch_tests.opinfo.inputs import device_function, seed_both
from _ditorch.torch_tests.opinfo.judge import PairJudge
from _ditorch.torch_tests.opinfo.pairs import NO_DTYPE, dtype_named
from _ditorch.torch_tests.outcomes import (
    OpInfoCheck,
    OpInfoOptions,
    Pair,
    PairOutcome,
    PairSelection,
    Problem,
    State,
    WorkerFacts,
)
from dicore.workers import Retire, Service

__all__ = ["mark_skipped_by_torch", "same_random_numbers", "start"]


def start(_group: str, options: OpInfoOptions) -> Service:
    """Answers a `PairSelection` with its pairs, a `Pair` with its `PairOutcome`."""
    facts = _prepare(options)
    ops = pairs.operators(options.op_db)

    def run(task: PairSelection | Pair) -> list[Pair] | PairOutcome | Retire:
        if isinstance(task, PairSelection):
            return pairs.build(ops.values(), task, options)
        return _judge(ops[task.op], task, options, facts.bit_equal_rng)

    return Service(run, facts)


def _judge(op: Any, pair: Pair, options: OpInfoOptions, bit_equal_rng: bool) -> PairOutcome | Retire:
    try:
        outcome = judged(PairJudge(op, pair, options, bit_equal_rng))
    except Exception as error:
        outcome = PairOutcome(
            pair, problems=[Problem(State.ERROR, f"harness: {error}", traceback.format_exc())]
        )
    # An assertion inside a kernel ends a device's context: what follows in this process would fail for that reason.
    dead = bool(outcome.problems) and not answers(options.device)
    if outcome.problems and options.torch_skips:
        mark_skipped_by_torch(op, outcome, torch.device(options.device).type)
    return Retire(outcome) if dead else outcome


def _prepare(options: OpInfoOptions) -> WorkerFacts:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Numbers are compared as float32, not as what some cards make of it by default.
    # Private: torch's testing modules forbid the public flags for the process.
    torch._C._set_cudnn_allow_tf32(False)
    torch._C._set_cublas_allow_tf32(False)
    pairs.operators(options.op_db)
    device_under_test(options.device).load()
    torch.empty(1, device=options.device)
    rng = options.bit_equal_rng if options.bit_equal_rng is not None else same_random_numbers(options.device)
    vendor = device_function(options.device, "vendor")() or {}
    return WorkerFacts(torch.__version__, rng, vendor)


def same_random_numbers(device: str) -> bool:
    """Measured, not assumed from the device's name: does one seed give both sides the same numbers?"""
    sides = []
    for side in ("cpu", device):
        seed_both(device)
        sides.append([torch.rand(33, device=side).cpu(), torch.randn(33, device=side).cpu()])
    return all(torch.equal(cpu, other) for cpu, other in zip(*sides, strict=True))


# -- what torch itself skips: decorators of a database entry that turn off torch's own test of the question ----

# Torch's own test of each question: class and method in test_ops.py and test_ops_gradients.py.
_TESTS = {
    OpInfoCheck.FORWARD: ("TestCommon", "test_compare_cpu"),
    OpInfoCheck.GRADIENT: ("TestBwdGradients", "test_fn_grad"),
    OpInfoCheck.OUT: ("TestCommon", "test_out"),
    OpInfoCheck.INPLACE: ("TestCommon", "test_variant_consistency_eager"),
    OpInfoCheck.NONCONTIGUOUS: ("TestCommon", "test_noncontiguous_samples"),
    OpInfoCheck.DTYPES: ("TestCommon", "test_dtypes"),
    OpInfoCheck.ERRORS: ("TestCommon", "test_errors"),
}


def mark_skipped_by_torch(op: Any, outcome: PairOutcome, device_type: str) -> None:
    """Call a failure torch's own where torch skips its test of it, or expects it to fail; never a crash or a hang."""
    if outcome.lost:
        return
    class_name, test = _TESTS[outcome.pair.check]
    dtype = None if outcome.pair.dtype == NO_DTYPE else dtype_named(outcome.pair.dtype)
    for decorator in _active(op, class_name, test, device_type, dtype):
        if _turns_off(decorator):
            outcome.listed_as = State.ARTEFACT
            outcome.reason = (
                f"Torch turns its own {class_name}.{test} off for this operator on {device_type}."
            )
            return


def _active(op: Any, class_name: str, test: str, device_type: str, dtype: Any) -> Iterator[Any]:
    for entry in getattr(op, "decorators", ()):
        if hasattr(entry, "is_active") and entry.is_active(class_name, test, device_type, dtype, {}):
            yield from entry.decorators


def _turns_off(decorator: Any) -> bool:
    """Seen from what it does to a function: unittest leaves its mark on it."""

    def test(self: Any) -> None:
        """Something to decorate."""

    try:
        decorated = decorator(test)
    except Exception:  # some decorators want the real test; they are not the ones looked for
        return False
    return bool(
        getattr(decorated, "__unittest_skip__", False)
        or getattr(decorated, "__unittest_expecting_failure__", False)
    )
