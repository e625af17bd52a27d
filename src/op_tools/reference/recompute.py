"""Runs one call again on a reference device: in its own dtype, in float64, and with perturbed inputs.

A `Recomputation` never writes to the inputs it is given (functions that write run on clones), and leaves the
random state, grad mode, autocast state and default dtype of the caller as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from op_tools.categories import base_name
from op_tools.reference.autocast_policy import ROUNDS_INSIDE, AutocastPolicy, mapped
from op_tools.reference.call_plan import Plan, plan_for
from op_tools.reference.perturbation import ROUNDING, Factors, InnerRoundings

_RAISED = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}
# So far that every inner rounding falls anew, also where a function is flat; so little that nothing else changes.
_NUDGED_BITS = 13
_SIGNIFICANT = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


class RecomputeError(RuntimeError):
    """The reference could not run the call; the cause is chained."""


def flat_results(value: Any) -> list[Any]:
    """Tensors and numbers of a result in tree order; None and other objects are left out."""
    if isinstance(value, torch.Tensor):
        return [value]
    found: list[Any] = []
    _flatten(value, found)
    return found


def _flatten(value: Any, found: list[Any]) -> None:
    if isinstance(value, (torch.Tensor, bool, int, float, complex)):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _flatten(item, found)
    elif isinstance(value, dict):
        for item in value.values():
            _flatten(item, found)


def flat_tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensor inputs of a call in the order that `wants_grad` and `written` count them."""
    found: list[Any] = []
    _flatten(list(args), found)
    _flatten(dict(kwargs), found)
    return [value for value in found if isinstance(value, torch.Tensor)]


class Recomputation:
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
        self._plan: Plan = plan_for(func, reference)
        self._own: list[Any] | None = None
        self._truth: list[Any] | None = None
        self._truth_failed = False
        self._mutated: list[torch.Tensor] = []
        self._written: list[int] = []

    @property
    def name(self) -> str:
        """The function's name, for rules that go by it."""
        return self._plan.name

    @property
    def is_gradient(self) -> bool:
        return self.grad_outputs is not None

    @property
    def written(self) -> list[int]:
        """After `own`: which flat tensor inputs `own` lists behind the outputs (written to, not returned)."""
        self.own()
        return self._written

    def mutated(self) -> list[torch.Tensor]:
        """After `own`: the values of all inputs that the call wrote to, in input order."""
        self.own()
        return self._mutated

    def own(self) -> list[Any]:
        """The flat results in the call's own dtypes, then the inputs it wrote to and did not return."""
        if self._own is None:
            if self._low is not None and base_name(self._plan.name) in ROUNDS_INSIDE:
                raise RecomputeError(
                    f"{self._plan.name} under autocast rounds many times inside: judge it at level aten"
                )
            try:
                self._own = self._run(self.args, self.kwargs, self.grad_outputs, first=True)
            except Exception as error:
                raise RecomputeError(
                    f"{self._plan.name} could not run on {self._reference}: {type(error).__name__}: {error}"
                ) from error
        return self._own

    def truth(self) -> list[Any] | None:
        """The same in float64; None where the reference has no such kernel."""
        if self._truth is None and not self._truth_failed:
            self._truth = self._exact(_raised)
            self._truth_failed = self._truth is None
        return self._truth

    def perturbed(self, seed: int) -> list[Any] | None:
        """The truth of inputs that each moved by about one rounding of float32 (RMS).

        In composites and gradients the results of inner operators move too: they are rounded as well.
        """
        factors = Factors(seed, ROUNDING)

        def moved(value: Any) -> Any:
            return factors.applied(_raised(value))

        if self._plan.overload is not None or not (self.is_gradient or self._plan.is_composite):
            return self._exact(moved)
        with InnerRoundings(factors):
            return self._exact(moved)

    def variant(self, seed: int) -> tuple[list[Any], list[Any]] | None:
        """(own, truth) of inputs that differ by a few units in the last place of a half.

        The values differ from the call's, their errors are of the same kind: one more sample of what correct
        arithmetic does here.
        """

        def nudged(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.dtype not in _SIGNIFICANT:
                return value
            step = 2.0 ** (1 - min(_SIGNIFICANT[value.dtype], _NUDGED_BITS))
            return Factors(seed, step).applied(value.double()).to(value.dtype)

        args, kwargs = mapped(tuple(self.args), nudged), mapped(dict(self.kwargs), nudged)
        grads = None if self.grad_outputs is None else [nudged(grad) for grad in self.grad_outputs]
        try:
            own = self._run(args, kwargs, grads)
        except Exception:
            return None
        truth = Recomputation(
            self.func,
            args,
            kwargs,
            grad_outputs=grads,
            wants_grad=self.wants_grad,
            reference=self._reference,
            autocast=(True, self._low) if self._low is not None else None,
        ).truth()
        return None if truth is None else (own, truth)

    def with_inputs(self, args: Any, kwargs: Any, grad_outputs: Any) -> list[Any]:
        """The same function of other inputs, in the dtypes they have."""
        return self._run(args, kwargs, grad_outputs)

    def _exact(self, change: Callable[[Any], Any]) -> list[Any] | None:
        """The results with every input changed; None where that does not run or is not float64 at the end."""
        plan = self._plan.raised
        args, kwargs = mapped(tuple(self.args), change), mapped(dict(self.kwargs), change)
        grads = None if self.grad_outputs is None else [change(grad) for grad in self.grad_outputs]
        if plan.is_factory and kwargs.get("dtype") is None and not flat_tensors(args, kwargs):
            kwargs["dtype"] = torch.float64
        for attempt in (_unchanged, _integers_raised):
            try:
                results = self._run(mapped(args, attempt), mapped(kwargs, attempt), grads, plan=plan)
            except Exception:
                continue
            if self._is_exact(results):
                return results
        return None

    def _is_exact(self, results: list[Any]) -> bool:
        wide = (torch.float64, torch.complex128)
        return len(results) == len(self.own()) and all(
            not isinstance(mine, torch.Tensor)
            or not (mine.is_floating_point() or mine.is_complex())
            or (isinstance(raised, torch.Tensor) and raised.dtype in wide)
            for mine, raised in zip(self.own(), results, strict=True)
        )

    def _run(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        grads: Sequence[torch.Tensor | None] | None,
        *,
        first: bool = False,
        plan: Plan | None = None,
    ) -> list[Any]:
        exact = plan is not None
        plan = plan or self._plan
        args, kwargs = plan.on_reference(args, kwargs)
        if not plan.needs_care and self._low is None and grads is None and not _state_matters():
            if plan.writes is not None and plan.writes(args, kwargs):
                return self._run_on_clones(plan, args, kwargs, first)
            return _detached(flat_results(plan.func(*args, **kwargs)))
        with _isolated(plan, self._reference, self._low, exact):
            if grads is not None:
                return self._gradients(plan, args, kwargs, grads)
            if plan.writes is not None and plan.writes(args, kwargs):
                return self._run_on_clones(plan, args, kwargs, first)
            return _detached(flat_results(plan.func(*args, **kwargs)))

    def _run_on_clones(
        self, plan: Plan, args: Sequence[Any], kwargs: Mapping[str, Any], first: bool
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

        outputs = flat_results(plan.func(*mapped(tuple(args), cloned), **mapped(dict(kwargs), cloned)))
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
        plan: Plan,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        grads: Sequence[torch.Tensor | None],
    ) -> list[Any]:
        inputs = flat_tensors(args, kwargs)
        wanted = self.wants_grad if self.wants_grad is not None else range(len(inputs))
        leaves = {id(inputs[i]): inputs[i].detach().requires_grad_() for i in wanted}
        writes = plan.writes is not None and plan.writes(args, kwargs)

        def replaced(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            leaf = leaves.get(id(value), value.detach())
            return leaf.clone() if writes else leaf

        with torch.enable_grad():
            outputs = plan.func(*mapped(tuple(args), replaced), **mapped(dict(kwargs), replaced))
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
        return [by_input[id(inputs[i])] for i in wanted]


def _detached(values: list[Any]) -> list[Any]:
    for position, value in enumerate(values):
        if isinstance(value, torch.Tensor) and value.requires_grad:
            values[position] = value.detach()
    return values


def _unchanged(value: Any) -> Any:
    return value


def _integers_raised(value: Any) -> Any:
    """Where only integers go in and floats come out (a division, a mean), they are what must be exact."""
    integer = isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
    return value.to(torch.float64) if integer else value


def _raised(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            return value.to(torch.float64)
        return value.to(torch.complex128) if value.is_complex() else value
    if isinstance(value, torch.dtype):
        return torch.float64 if value.is_floating_point else _RAISED.get(value, value)
    return value


def _state_matters() -> bool:
    """Whether the caller's own modes would change what the reference computes."""
    return torch.is_inference_mode_enabled() or torch.is_autocast_enabled("cpu")


@contextmanager
def _isolated(plan: Plan, reference: str, low: torch.dtype | None, exact: bool) -> Iterator[None]:
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
