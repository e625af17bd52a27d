"""Runs one call again on a reference device: in its own dtype, in float64, and with perturbed inputs.

A `Recomputation` never writes to the inputs it is given (functions that write run on clones), and leaves the
random state, grad mode, autocast state and default dtype of the caller as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from op_tools.categories import base_name
from op_tools.reference.autocast_policy import ROUNDS_INSIDE, AutocastPolicy
from op_tools.reference.base import Reference
from op_tools.reference.call_plan import CallPlan, plan_for
from op_tools.trees import flat_results, flat_tensors, map_leaves


class RecomputeError(RuntimeError):
    """The reference could not run the call; the cause is chained."""


class Recomputation(Reference):
    """One call on the reference device; every answer is computed when asked for and kept.

    `func` is an API function or an operator overload; `args` and `kwargs` are its inputs as they were before
    the call, as tensors on the reference device. With `grad_outputs` the results are the gradients of the
    inputs that `wants_grad` counts instead of the outputs. `autocast` is the state (enabled, dtype) of the
    device at the call; calls of operator overloads need none.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None = None,
        *,
        grad_outputs: Sequence[torch.Tensor | None] | None = None,
        wants_grad: Sequence[int] | None = None,
        reference: str = "cpu",
        autocast: tuple[bool, torch.dtype] | None = None,
    ) -> None:
        self.func = func
        self.args = args
        self.kwargs: Mapping[str, Any] = kwargs if kwargs is not None else {}
        self.grad_outputs = grad_outputs
        self.wants_grad = wants_grad
        self._reference = reference
        self._low = autocast[1] if autocast is not None and autocast[0] else None
        self._plan: CallPlan = plan_for(func, reference)
        self.name = self._plan.name
        self.is_gradient = grad_outputs is not None
        self.is_composite = self._plan.overload is None and (self.is_gradient or self._plan.is_composite)
        self._mutated: list[torch.Tensor] = []
        self._written: list[int] = []

    @property
    def written(self) -> list[int]:
        """After `own`: which flat tensor inputs `own` lists behind the outputs (written to, not returned)."""
        self.own()
        return self._written

    def mutated(self) -> list[torch.Tensor]:
        """After `own`: the values of all inputs that the call wrote to, in input order."""
        self.own()
        return self._mutated

    def own_results(self) -> list[Any]:
        """The flat results in the call's own dtypes, then the inputs it wrote to and did not return."""
        if self._low is not None and base_name(self._plan.name) in ROUNDS_INSIDE:
            raise RecomputeError(
                f"{self._plan.name} under autocast rounds many times inside: judge it at level aten"
            )
        try:
            return self._run(self._plan, self.args, self.kwargs, self.grad_outputs, first=True)
        except Exception as error:
            raise RecomputeError(
                f"{self._plan.name} could not run on {self._reference}: {type(error).__name__}: {error}"
            ) from error

    def evaluate(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        grad_outputs: Sequence[torch.Tensor | None] | None,
        *,
        upcast: bool,
    ) -> list[Any]:
        if not upcast:
            return self._run(self._plan, args, kwargs, grad_outputs)
        plan = self._plan.upcast
        if plan.is_factory and kwargs.get("dtype") is None and not flat_tensors(args, kwargs):
            kwargs = {**kwargs, "dtype": torch.float64}
        return self._run(plan, args, kwargs, grad_outputs, exact=True)

    def _run(
        self,
        plan: CallPlan,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        grads: Sequence[torch.Tensor | None] | None,
        *,
        first: bool = False,
        exact: bool = False,
    ) -> list[Any]:
        args, kwargs = plan.on_reference(args, kwargs)
        careful = plan.needs_care or self._low is not None or grads is not None or _state_matters()
        with _isolated(plan, self._reference, self._low, exact) if careful else nullcontext():
            if grads is not None:
                return self._gradients(plan, args, kwargs, grads)
            if plan.writes(args, kwargs):
                return self._run_on_clones(plan, args, kwargs, first)
            return _detached(flat_results(plan.func(*args, **kwargs)))

    def _run_on_clones(
        self, plan: CallPlan, args: Sequence[Any], kwargs: Mapping[str, Any], first: bool
    ) -> list[Any]:
        if plan.writes_only_first(args, kwargs):
            # The common case, without walking through nested arguments.
            target = args[0]
            clone = target.detach().clone()
            rest = [clone if value is target else value for value in args[1:]]
            outputs = flat_results(plan.func(clone, *rest, **kwargs))
            is_listed = any(value is clone for value in outputs)
            if first and plan.has_written(clone, target):
                self._mutated, self._written = [clone], [] if is_listed else [0]
            return _detached(outputs if is_listed else [*outputs, clone])
        inputs = flat_tensors(args, kwargs)
        targets = {id(tensor) for tensor in plan.targets(args, kwargs)}
        clones: dict[int, torch.Tensor] = {}

        def cloned(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or id(value) not in targets:
                return value
            if id(value) not in clones:
                clones[id(value)] = value.detach().clone()
            return clones[id(value)]

        outputs = flat_results(
            plan.func(*map_leaves(tuple(args), cloned), **map_leaves(dict(kwargs), cloned))
        )
        returned = {id(value) for value in outputs}
        mutated, written, seen = [], [], set()
        for position, tensor in enumerate(inputs):
            clone = clones.get(id(tensor))
            if clone is None or id(tensor) in seen or not plan.has_written(clone, tensor):
                continue
            seen.add(id(tensor))
            mutated.append(clone)
            if id(clone) not in returned:
                written.append(position)
                outputs.append(clone)
        if first:
            self._mutated, self._written = mutated, written
        return _detached(outputs)

    def _gradients(
        self,
        plan: CallPlan,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        grads: Sequence[torch.Tensor | None],
    ) -> list[Any]:
        inputs = flat_tensors(args, kwargs)
        wanted = self.wants_grad if self.wants_grad is not None else range(len(inputs))
        leaves = {id(inputs[i]): inputs[i].detach().requires_grad_() for i in wanted}
        writes = plan.writes(args, kwargs)

        def replaced(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            leaf = leaves.get(id(value), value.detach())
            return leaf.clone() if writes else leaf

        with torch.enable_grad():
            outputs = plan.func(*map_leaves(tuple(args), replaced), **map_leaves(dict(kwargs), replaced))
            tensors = [value for value in flat_results(outputs) if isinstance(value, torch.Tensor)]
            pairs = [
                (out, grad.to(out.dtype))
                for out, grad in zip(tensors, grads, strict=False)
                if grad is not None and out.requires_grad
            ]
            if not pairs:
                return [None for _ in wanted]
            found = torch.autograd.grad(
                [out for out, _ in pairs],
                list(leaves.values()),
                [grad for _, grad in pairs],
                allow_unused=True,
            )
        by_input = dict(zip(leaves, found, strict=True))
        return _detached([by_input[id(inputs[i])] for i in wanted])


def _detached(values: list[Any]) -> list[Any]:
    for position, value in enumerate(values):
        if isinstance(value, torch.Tensor) and (value.requires_grad or value._is_zerotensor()):
            values[position] = value.clone().detach() if value._is_zerotensor() else value.detach()
    return values


def _state_matters() -> bool:
    """Whether the caller's own modes would change what the reference computes."""
    return torch.is_inference_mode_enabled() or torch.is_autocast_enabled("cpu")


@contextmanager
def _isolated(plan: CallPlan, reference: str, low: torch.dtype | None, exact: bool) -> Iterator[None]:
    kind = torch.device(reference).type
    with ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        if plan.draws:
            stack.enter_context(_random_state_kept(kind))
        if plan.is_factory:
            stack.enter_context(torch.device(reference))
        wanted = low is not None and not exact
        if wanted:
            stack.enter_context(torch.autocast(kind, low, cache_enabled=False))
        elif torch.is_autocast_enabled(kind):
            stack.enter_context(torch.autocast(kind, enabled=False))
        if low is not None:
            stack.enter_context(AutocastPolicy(low, exact=exact))
        yield


@contextmanager
def _random_state_kept(kind: str) -> Iterator[None]:
    module = None if kind == "cpu" else torch.get_device_module(kind)
    state = torch.get_rng_state()
    device_state = None if module is None else module.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        if module is not None:
            module.set_rng_state(device_state)
