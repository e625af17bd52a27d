"""A whole training as one call that op_tools can judge: its losses in float32, in float64, and with moved inputs.

The verdict asks by how much the float64 result moves when every weight, every number of the data and every inner result
moves by one rounding of float32. What a device is off by must be explained by that. So the bound is not a constant: a
network with batch norms over eight values may differ more than a transformer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from op_tools.reference.perturbation import ROUNDING, Factors, InnerRoundings
from op_tools.trees import map_leaves
from op_tools.verdict import Verdict, judge_all, tolerance_for

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "models"))
import training
from all_models import load

# By how much weights and data differ in one more sample of what correct float32 arithmetic does.
_NUDGE = 2.0**-12


def result_tensors(result: Mapping[str, Any], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """What can be judged of a stored result: the losses and, of a model that draws, the picture."""
    found = [torch.tensor(result["losses"], dtype=dtype)]
    drawn = result["generated"]
    if drawn and isinstance(drawn[0], float):
        found.append(torch.tensor(drawn, dtype=dtype))
    return found


class InDouble(TorchFunctionMode):
    """Where a model asks for float32, and means more precision than its weights have, it gets float64."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.float:
            return args[0].double()
        return func(*map_leaves(tuple(args), _widened), **map_leaves(dict(kwargs or {}), _widened))


def _widened(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


@contextmanager
def _double_by_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with InDouble():
            yield
    finally:
        torch.set_default_dtype(before)


class TrainingReference:
    """The training of one model on the CPU; the protocol is that of `op_tools.verdict.Reference`."""

    def __init__(self, name: str, on_cpu: Mapping[str, Any]) -> None:
        self._build = load(name)
        self._own = result_tensors(on_cpu)
        self._truth: list[Tensor] | None = None

    def own(self) -> list[Tensor]:
        return self._own

    def truth(self) -> list[Tensor]:
        if self._truth is None:
            self._truth = self._in_double(Tensor.double)
        return self._truth

    def perturbed(self, seed: int) -> list[Tensor]:
        factors = Factors(seed, ROUNDING)
        with InnerRoundings(factors):
            return self._in_double(lambda value: factors.applied(value.double()))

    def variant(self, seed: int) -> tuple[list[Tensor], list[Tensor]]:
        """(float32, float64) results from slightly other weights and data."""

        def nudged(factors: Factors) -> Callable[[Tensor], Tensor]:
            return lambda value: factors.applied(value.double()).to(torch.float32)

        single = self._run(nudged(Factors(seed, _NUDGE)), torch.float32)
        change = nudged(Factors(seed, _NUDGE))
        return single, self._in_double(lambda value: change(value).double())

    def _in_double(self, change: Callable[[Tensor], Tensor]) -> list[Tensor]:
        return self._run(change, torch.float64)

    def _run(self, change: Callable[[Tensor], Tensor], dtype: torch.dtype) -> list[Tensor]:
        """Build as always, change every floating number, train."""
        torch.manual_seed(training.SEED)
        experiment = self._build()
        _one_expert_after_the_other(experiment.model)

        def changed(value: Tensor) -> Tensor:
            return change(value) if value.is_floating_point() else value

        with torch.no_grad():
            experiment.model._apply(changed)
        experiment.samples = [
            {name: changed(value) for name, value in sample.items()} for sample in experiment.samples
        ]
        options = argparse.Namespace(cpu=True, bf16=False, compile=None, checkpointing=False)
        if dtype is torch.float32:
            return result_tensors(_trained(experiment, options), dtype)
        with _double_by_default():
            return result_tensors(_trained(experiment, options), dtype)


def _trained(experiment: training.Experiment, options: argparse.Namespace) -> dict[str, Any]:
    losses = training.train(experiment, options)
    drawn: list[Any] = []
    if experiment.generate is training.greedy:  # words are compared as they are
        return {"losses": losses, "generated": drawn}
    if experiment.generate is not None:
        drawn = experiment.generate(experiment.model.eval(), "cpu").flatten().tolist()
    return {"losses": losses, "generated": drawn}


def _one_expert_after_the_other(model: Any) -> None:
    """torch multiplies groups of matrices in float32 and shorter only; the loop computes the same."""
    config = getattr(model, "config", None)
    if getattr(config, "_experts_implementation", None):
        model.set_experts_implementation("eager")


def judge(name: str, on_cpu: Mapping[str, Any], on_device: Mapping[str, Any]) -> Verdict:
    """The worse of the verdicts on the losses and, of a model that draws, on the picture."""
    verdicts = judge_all(
        result_tensors(on_device),
        TrainingReference(name, on_cpu),
        category="other",
        tolerance=tolerance_for(name, torch.float32),
    )
    return max(
        verdicts, key=lambda verdict: (not verdict.ok, verdict.status != "same", verdict.error_over_bound)
    )
