"""Run one pair on both sides and decide.

The device's copy of a sample is made before anything runs, so that an operator which writes to its arguments
does not spoil the comparison. The generators are seeded before each side: a device whose random numbers are
the CPU's is compared exactly, any other by form only, for those samples in which the CPU drew a number.
"""

from __future__ import annotations

import functools
import itertools
import random
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from torch_dipu.testing.opinfo.compare import Comparison, Mismatch, Tolerance, tolerance_of
from torch_dipu.testing.opinfo.model import Options, Outcome, Pair, Problem, State, Sweep
from torch_dipu.testing.opinfo.plan import dtype_named
from torch_dipu.testing.opinfo.transfer import Transfer

SEED = 1234
# The answer when no output depends on an input that wants a gradient.
NOT_DIFFERENTIABLE: tuple[list[Any], list[Any]] = ([], [])


class DeviceError(Exception):
    """The device raised, or did not raise, where the CPU did otherwise."""


class Judge:
    """All samples of one pair."""

    def __init__(self, op: Any, pair: Pair, options: Options, bit_equal_rng: bool) -> None:
        self.op = op
        self.pair = pair
        self.options = options
        self.bit_equal_rng = bit_equal_rng
        self.device_type = torch.device(options.device).type
        self.factory = is_factory(op.aten_name or op.name)
        self.samples = self.compared = self.restrided = 0
        self.refused: Exception | None = None  # the last exception that both sides raised
        self.problems: list[Problem] = []

    def run(self) -> Outcome:
        start = time.perf_counter()
        runner = {
            Sweep.FORWARD: self._forward,
            Sweep.GRADIENT: self._gradient,
            Sweep.REFUSE: self._refuse,
        }[self.pair.sweep]
        try:
            for sample in itertools.islice(self._samples(), self.options.max_samples):
                self._one(runner, sample)
        except Exception as error:  # making samples runs on the CPU only: no fault of the device
            why = f"samples cannot be made: {one_line(error)}"
            self.problems.append(Problem(State.ERROR, why, traceback.format_exc()))
        if not self.compared and not self.problems:
            self.problems.append(Problem(State.ERROR, self._why_nothing()))
        seconds = time.perf_counter() - start
        return Outcome(self.pair, self.samples, seconds, self.problems, self.restrided)

    def _samples(self) -> Iterator[Any]:
        """Samples are made one by one, each from a seed of its own, whatever ran in between.

        `OpInfo.sample_inputs` would do the same, but walks the stack in search of a test: 90 ms a pair.
        """
        if self.pair.sweep is Sweep.REFUSE:
            source = iter(self.op.error_inputs_func(self.op, "cpu"))
        else:
            wants_grad = self.pair.sweep is Sweep.GRADIENT
            dtype = dtype_named(self.pair.dtype)
            source = iter(self.op.sample_inputs_func(self.op, "cpu", dtype, wants_grad))
        for index in itertools.count():
            torch.default_generator.manual_seed(SEED + index)
            random.seed(SEED + index)
            try:
                sample = next(source)
            except StopIteration:
                return
            yield getattr(sample, "sample_input", sample)

    def _one(self, runner: Callable[[Any], None], sample: Any) -> None:
        self.samples += 1
        try:
            runner(sample)
        except Mismatch as mismatch:
            self._problem(State.FAIL, str(mismatch))
        except DeviceError as error:
            self._problem(State.ERROR, str(error), "".join(traceback.format_exception(error.__cause__)))
        except Exception as error:
            self._problem(State.ERROR, f"harness: {one_line(error)}", traceback.format_exc())

    def _why_nothing(self) -> str:
        if self.refused is not None:
            return f"both sides refuse all {self.samples} samples: {one_line(self.refused)}"
        return f"nothing compared in {self.samples} samples"

    def _problem(self, state: State, message: str, detail: str = "") -> None:
        self.problems.append(Problem(state, f"sample {self.samples - 1}: {message}", detail))

    # forward

    def _forward(self, sample: Any) -> None:
        arguments = (sample.input, sample.args, sample.kwargs)
        self._compare_call(self.op.op, arguments)
        if self.options.variants:
            self._in_place(sample, arguments)
            self._out(arguments)

    def _compare_call(self, function: Callable[..., Any], arguments: Any, what: str = "result") -> None:
        transfer = Transfer(self.options.device)
        moved = self._moved(arguments, transfer)
        cpu, drawn = self._seeded(lambda: call(function, arguments))
        device, _ = self._seeded(lambda: self._call_device(function, moved))
        if self._both_raised(cpu, device, "" if what == "result" else f"{what}: "):
            return
        comparison = Comparison(
            self.device_type,
            self._tolerance(),
            values=not drawn and self.op.full_name not in self.options.undefined_values,
            cpu_storages=transfer.source_storages,
            device_storages=transfer.device_storages,
        )
        self._compare(comparison, {what: (cpu, device)})

    def _in_place(self, sample: Any, arguments: Any) -> None:
        function = self.op.inplace_variant
        if function is None or sample.broadcasts_input or not isinstance(sample.input, torch.Tensor):
            return
        self._compare_call(function, Transfer("cpu")(arguments), "in place")

    def _out(self, arguments: Any) -> None:
        if not self.op.supports_out or "out" in arguments[2]:
            return
        result = call(self.op.op, Transfer("cpu")(arguments))
        outs = tree_leaves(result)
        if not all(isinstance(out, torch.Tensor) and out.layout == torch.strided for out in outs):
            return  # also where the result is an exception: already compared
        blank = tuple(torch.empty_strided(o.size(), o.stride(), dtype=o.dtype) for o in outs)
        kwargs = {**arguments[2], "out": blank[0] if isinstance(result, torch.Tensor) else blank}
        kwargs.pop("device", None)
        kwargs.pop("dtype", None)
        self._compare_call(self.op.op, (*Transfer("cpu")(arguments)[:2], kwargs), "out=")

    # gradients

    def _gradient(self, sample: Any) -> None:
        arguments = (sample.input, sample.args, sample.kwargs)
        finish = sample.output_process_fn_grad
        sides = Transfer("cpu")(arguments), self._moved(arguments, Transfer(self.options.device))
        cpu, drawn = self._seeded(lambda: self._backward(sides[0], finish))
        device, _ = self._seeded(lambda: self._backward(sides[1], finish))
        if self._both_raised(cpu, device) or cpu is device is NOT_DIFFERENTIABLE:
            return
        comparison = Comparison(self.device_type, self._tolerance(), values=not drawn)
        self._compare(comparison, {"output": (cpu[0], device[0]), "gradient": (cpu[1], device[1])})

    def _backward(self, arguments: Any, finish: Callable[[Any], Any]) -> Any:
        """Outputs and gradients, or the exception."""
        try:
            result = finish(self.op.op(arguments[0], *arguments[1], **arguments[2]))
            outputs = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad]
            inputs = [t for t in tree_leaves(arguments) if isinstance(t, torch.Tensor) and t.requires_grad]
            if not outputs or not inputs:
                return NOT_DIFFERENTIABLE
            weights = [random_like(output, SEED + index) for index, output in enumerate(outputs)]
            gradients = torch.autograd.grad(outputs, inputs, weights, allow_unused=True)
        except Exception as error:
            return error
        return [output.detach() for output in outputs], list(gradients)

    # inputs that must be refused

    def _refuse(self, sample: Any) -> None:
        arguments = (sample.input, sample.args, sample.kwargs)
        moved = self._moved(arguments, Transfer(self.options.device))
        cpu = call(self.op.op, arguments)
        device = self._call_device(self.op.op, moved)
        self.compared += 1
        if self._both_raised(cpu, device) and type(cpu) is not type(device):
            raise Mismatch(f"refused with {one_line(device)} instead of {one_line(cpu)}")

    # the device's side

    def _moved(self, arguments: Any, transfer: Transfer) -> Any:
        """The arguments on the device; a factory without a device argument gets one."""
        if self.op.full_name in self.options.host_arguments:
            return (transfer(arguments[0]), *Transfer("cpu")(arguments[1:]))
        moved = transfer(arguments)
        if self.factory and "device" not in moved[2]:
            moved[2]["device"] = self.options.device
        return moved

    def _call_device(self, function: Callable[..., Any], arguments: Any) -> Any:
        """Waits for the device: an asynchronous one reports its errors late."""
        result = call(function, arguments)
        try:
            device_function(self.options.device, "synchronize")()
        except Exception as error:
            return error
        return result

    # deciding

    def _seeded(self, run: Callable[[], Any]) -> tuple[Any, bool]:
        """The result, and whether it holds random numbers that the device cannot be expected to repeat."""
        seed_both(self.options.device)
        if self.bit_equal_rng:
            return run(), False
        before = torch.get_rng_state()
        result = run()
        return result, not torch.equal(before, torch.get_rng_state())

    def _both_raised(self, cpu: Any, device: Any, what: str = "") -> bool:
        if isinstance(cpu, Exception) and isinstance(device, Exception):
            self.refused = device
            return True
        if isinstance(device, Exception):
            raise DeviceError(what + one_line(device)) from device
        if isinstance(cpu, Exception):
            raise Mismatch(f"{what}accepted, but the CPU raises {one_line(cpu)}")
        return False

    def _compare(self, comparison: Comparison, parts: dict[str, tuple[Any, Any]]) -> None:
        try:
            for what, (cpu, device) in parts.items():
                comparison.trees(cpu, device, what)
        except Mismatch:
            raise
        except Exception as error:  # reading the result back is the device's work too
            raise DeviceError(f"reading the result: {one_line(error)}") from error
        self.compared += 1
        self.restrided += comparison.restrided

    def _tolerance(self) -> Tolerance:
        return tolerance_of(self.op, dtype_named(self.pair.dtype), self.device_type)


def seed_both(device: str) -> None:
    """Not `torch.manual_seed`: with CUDA compiled in but absent it formats a traceback at every call."""
    torch.default_generator.manual_seed(SEED)
    device_function(device, "manual_seed_all")(SEED)


@functools.cache
def device_function(device: str, name: str) -> Callable[..., Any]:
    """``torch.<device>.<name>``; one that does nothing where there is none, as on the CPU."""
    namespace = getattr(torch, torch.device(device).type, None)
    found: Callable[..., Any] = getattr(namespace, name, lambda *_: None)
    return found


def call(function: Callable[..., Any], arguments: Any) -> Any:
    """The result, or the exception as a value."""
    first, args, kwargs = arguments
    try:
        return function(first, *args, **kwargs)
    except Exception as error:
        return error


@functools.cache
def is_factory(aten_name: str) -> bool:
    """Does the operator make tensors on a device named by an argument, and not on that of a tensor?"""
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{aten_name}")
    names = [[argument.name for argument in schema.arguments] for schema in schemas if not schema.is_mutable]
    return bool(names) and all("device" in found and found[0] != "self" for found in names)


def random_like(output: torch.Tensor, seed: int) -> torch.Tensor:
    """Fixed random weights for the backward pass; a sparse output is its own weight: the pattern stays."""
    if output.layout != torch.strided:
        return output.detach().clone()
    generator = torch.Generator().manual_seed(seed)
    real = torch.float64 if not output.is_complex() else torch.complex128
    return torch.randn(output.shape, dtype=real, generator=generator).to(output.dtype).to(output.device)


def one_line(error: BaseException) -> str:
    text = " ".join(str(error).split("\nException raised from")[0].split())
    return f"{type(error).__name__}: {text[:300]}"
