"""Run one pair on both sides and decide.

The device's copy of a sample is made before anything runs, so that an operator which writes to its arguments
does not spoil the comparison. The generators are seeded before each side: a device whose random numbers are
the CPU's is compared exactly, any other by form only, for those samples in which the CPU drew a number.
"""

from __future__ import annotations

import itertools
import random
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch

from _ditorch.torch_tests.opinfo.compare import Mismatch, ResultComparison, ValueMismatch
from _ditorch.torch_tests.opinfo.inputs import (
    SEED,
    Draws,
    Transfer,
    device_function,
    is_factory,
    seed_both,
    tolerance_for,
)
from _ditorch.torch_tests.opinfo.pairs import NO_DTYPE, dtype_named
from _ditorch.torch_tests.opinfo.upcast import UpcastReference, can_upcast, category_for
from _ditorch.torch_tests.outcomes import OpInfoCheck, OpInfoOptions, Pair, PairOutcome, Problem, State
from dicore.workers import one_line

__all__ = ["Arguments", "DeviceError", "PairJudge", "call", "parts_of"]

Arguments = tuple[Any, Any, dict[str, Any]]
"""First argument, further ones, keywords: the parts of a sample."""


class DeviceError(Exception):
    """The device raised, or did not raise, where the CPU did otherwise."""


class PairJudge:
    """All samples of one pair; what is asked of each sample is a function in `checks`."""

    def __init__(self, op: Any, pair: Pair, options: OpInfoOptions, bit_equal_rng: bool) -> None:
        self.op = op
        self.pair = pair
        self.options = options
        self.bit_equal_rng = bit_equal_rng
        self.device_type = torch.device(options.device).type
        self.factory = is_factory(op.aten_name or op.name)
        self.dtype = None if pair.dtype == NO_DTYPE else dtype_named(pair.dtype)
        self.tolerance = tolerance_for(op, pair, options)
        self.samples = self.compared = self.restrided = 0
        self.wider = self.verdict = self.refused = 0
        self.formless = 0  # samples that have no such form, e.g. one that broadcasts has none in place
        self.last_refusal: Exception | None = None  # the last exception that both sides raised
        self.problems: list[Problem] = []

    def run(self, ask: Callable[[PairJudge, Any], None], samples: Iterator[Any]) -> PairOutcome:
        """`ask` raises `Mismatch` or `DeviceError` for a sample that does not agree."""
        start = time.perf_counter()
        try:
            for sample in samples:
                self._one(ask, sample)
        except Exception as error:  # making samples runs on the CPU only: no fault of the device
            why = f"samples cannot be made: {one_line(error)}"
            self.problems.append(Problem(State.ERROR, why, traceback.format_exc()))
        counts = (self.restrided, self.wider, self.verdict, self.refused)
        outcome = PairOutcome(self.pair, self.samples, time.perf_counter() - start, self.problems, *counts)
        if self.formless and self.formless == self.samples:
            outcome.listed_as, outcome.reason = State.SKIPPED, "No sample of the operator has this form."
        elif not self.compared and not self.problems:
            outcome.problems.append(Problem(State.ERROR, self._why_nothing()))
        return outcome

    def sample_inputs(self, dtype: torch.dtype, wants_grad: bool = False) -> Iterator[Any]:
        """Samples of the database on the CPU.

        `OpInfo.sample_inputs` would do the same, but walks the stack in search of a test: 90 ms a pair.
        """
        return self._made(iter(self.op.sample_inputs_func(self.op, "cpu", dtype, wants_grad)))

    def error_inputs(self) -> Iterator[Any]:
        """Inputs that must be refused, each with the error that is due."""
        return self._made(iter(self.op.error_inputs_func(self.op, "cpu")))

    def _made(self, source: Iterator[Any]) -> Iterator[Any]:
        """Made one by one, each from a seed of its own, whatever ran in between."""
        for index in (
            itertools.count() if self.options.max_samples is None else range(self.options.max_samples)
        ):
            torch.default_generator.manual_seed(SEED + index)
            random.seed(SEED + index)
            try:
                yield next(source)
            except StopIteration:
                return

    def _one(self, ask: Callable[[PairJudge, Any], None], sample: Any) -> None:
        self.samples += 1
        try:
            ask(self, sample)
        except Mismatch as mismatch:
            self._problem(State.FAILED, str(mismatch))
        except DeviceError as error:
            self._problem(State.ERROR, str(error), "".join(traceback.format_exception(error.__cause__)))
        except Exception as error:
            self._problem(State.ERROR, f"harness: {one_line(error)}", traceback.format_exc())

    def _why_nothing(self) -> str:
        if self.last_refusal is not None:
            return f"both sides refuse all {self.samples} samples: {one_line(self.last_refusal)}"
        return f"nothing compared in {self.samples} samples"

    def _problem(self, state: State, message: str, detail: str = "") -> None:
        self.problems.append(Problem(state, f"sample {self.samples - 1}: {message}", detail))

    # both sides

    def compare_call(self, function: Callable[..., Any], arguments: Arguments, what: str = "result") -> None:
        """Call on both sides and compare; the arguments may be written to."""
        self.compare_run(lambda given: call(function, given), arguments, what)

    def compare_run(self, run: Callable[[Any], Any], arguments: Arguments, what: str = "result") -> None:
        """`run` gives the result or an exception."""
        transfer = Transfer(self.options.device)
        moved = self.moved(arguments, transfer)
        pristine = self._kept(arguments)
        cpu, drawn = self.seeded(lambda: run(arguments))
        device, _ = self.seeded(lambda: self.waited(run, moved))
        if self.both_raised(cpu, device, "" if what == "result" else f"{what}: "):
            return
        comparison = ResultComparison(
            self.device_type,
            self.tolerance,
            values=not drawn and self.op.full_name not in self.options.undefined_values,
            cpu_storages=transfer.source_storages,
            device_storages=transfer.device_storages,
        )
        self.compare(comparison, cpu, device, what, run, pristine)

    def compare(
        self,
        comparison: ResultComparison,
        cpu: Any,
        device: Any,
        what: str,
        run: Callable[[Any], Any],
        pristine: Arguments | None,
    ) -> None:
        """`run` and arguments as they were make the call once more, upcast, should the numbers differ."""
        try:
            comparison.trees(cpu, device, what)
        except ValueMismatch:
            agreement = self._upcast_agreement(cpu, device, run, pristine)
            if not agreement:
                raise
            self.wider += agreement == "wider"
            self.verdict += agreement == "verdict"
        except Mismatch:
            raise
        except Exception as error:  # reading the result back is the device's work too
            raise DeviceError(f"reading the result: {one_line(error)}") from error
        self.compared += 1
        self.restrided += comparison.restrided

    def _kept(self, arguments: Arguments) -> Arguments | None:
        """A copy from which a wider reference can be made after the call has written to its arguments."""
        return Transfer("cpu")(arguments) if self.dtype is not None and can_upcast(self.dtype) else None

    def _upcast_agreement(self, cpu: Any, device: Any, run: Callable[[Any], Any], pristine: Any) -> str:
        if pristine is None or self.dtype is None or not can_upcast(self.dtype):
            return ""
        call_again = UpcastReference(
            lambda arguments: self.seeded(lambda: run(arguments))[0],
            pristine,
            cpu,
            device,
            self.dtype,
            category_for(self.op),
            self.pair.check is OpInfoCheck.GRADIENT,
        )
        return call_again.agreement(self.tolerance)

    # the device's side

    def moved(self, arguments: Arguments, transfer: Transfer) -> Arguments:
        """The arguments on the device; a factory without a device argument gets one."""
        if self.op.full_name in self.options.host_arguments:
            return (transfer(arguments[0]), *Transfer("cpu")(arguments[1:]))
        moved: Arguments = transfer(arguments)
        if self.factory and "device" not in moved[2] and "out" not in moved[2]:
            moved[2]["device"] = self.options.device
        return moved

    def waited(self, run: Callable[[Any], Any], arguments: Arguments) -> Any:
        """Waits for the device: an asynchronous one reports its errors late."""
        result = run(arguments)
        try:
            device_function(self.options.device, "synchronize")()
        except Exception as error:
            return error
        return result

    # deciding

    def seeded(self, run: Callable[[], Any]) -> tuple[Any, bool]:
        """The result, and whether it holds random numbers that the device cannot be expected to repeat."""
        seed_both(self.options.device)
        if self.bit_equal_rng:
            return run(), False
        with Draws() as draws:
            result = run()
        return result, draws.seen

    def both_raised(self, cpu: Any, device: Any, what: str = "") -> bool:
        """Whether neither side answered; raises where only one did."""
        if isinstance(cpu, Exception) and isinstance(device, Exception):
            self.last_refusal = device
            self.refused += 1
            if self.pair.check in _REFUSALS_COUNT:
                self.compared += 1
            return True
        if isinstance(device, Exception):
            raise DeviceError(what + one_line(device)) from device
        if isinstance(cpu, Exception):
            raise Mismatch(f"{what}accepted, but the CPU raises {one_line(cpu)}")
        return False


# An integer tensor cannot hold the sine of itself, and some operators want dense memory: where both sides say so, that is
# agreement. The samples of the other checks are supposed to run.
_REFUSALS_COUNT = (
    OpInfoCheck.OUT,
    OpInfoCheck.INPLACE,
    OpInfoCheck.NONCONTIGUOUS,
    OpInfoCheck.ERRORS,
    OpInfoCheck.DTYPES,
)


def parts_of(sample: Any) -> Arguments:
    """What a sample of the database passes to its operator."""
    return sample.input, sample.args, sample.kwargs


def call(function: Callable[..., Any], arguments: Arguments) -> Any:
    """The result, or the exception as a value."""
    first, args, kwargs = arguments
    try:
        return function(first, *args, **kwargs)
    except Exception as error:
        return error
