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

from op_tools.reference import Reference
from op_tools.trees import map_leaves
from op_tools.verdict import Verdict, judge_all, tolerance_for

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples" / "models"))
import training
from all_models import load


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


class TrainingReference(Reference):
    """The training of one model on the CPU: a function of its weights and of the numbers in its data."""

    def __init__(self, name: str, on_cpu: Mapping[str, Any]) -> None:
        self._build = load(name)
        self._on_cpu = on_cpu
        numbers: list[Tensor] = []
        self._experiment(lambda value: numbers.append(value) or value)  # type: ignore[func-returns-value]
        self.args = [number.detach() for number in numbers]

    def own_results(self) -> list[Any]:
        return result_tensors(self._on_cpu)

    def evaluate(self, args: Any, kwargs: Any, grad_outputs: Any, *, upcast: bool) -> list[Any]:
        given = iter(args)
        experiment = self._experiment(lambda _: next(given).clone())
        options = argparse.Namespace(cpu=True, bf16=False, compile=None, checkpointing=False)
        if not upcast:
            return result_tensors(_trained(experiment, options), torch.float32)
        with _double_by_default():
            return result_tensors(_trained(experiment, options), torch.float64)

    def _experiment(self, change: Callable[[Tensor], Tensor]) -> training.Experiment:
        """Built as always, with every floating number changed, in the same order every time."""
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
        return experiment


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
