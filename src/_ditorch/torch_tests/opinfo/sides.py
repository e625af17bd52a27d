"""What both sides of a comparison need: seeds, the device's functions, the tolerance of a pair."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from _ditorch.torch_tests.model import Options, Pair
from _ditorch.torch_tests.opinfo.compare import Tolerance, declared_tolerance
from _ditorch.torch_tests.opinfo.plan import NO_DTYPE, dtype_named

__all__ = ["SEED", "Draws", "device_function", "is_factory", "random_like", "seed_both", "tolerance_for"]

SEED = 1234


def seed_both(device: str) -> None:
    """Not `torch.manual_seed`: with CUDA compiled in but absent it formats a traceback at every call."""
    torch.default_generator.manual_seed(SEED)
    device_function(device, "manual_seed_all")(SEED)


class Draws(TorchDispatchMode):
    """Whether what runs inside draws random numbers from the default generator.

    The state of the generator does not tell: many entries of the database put it back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        self.seen |= torch.Tag.nondeterministic_seeded in func.tags and given.get("generator") is None
        return func(*args, **given)


@functools.cache
def device_function(device: str, name: str) -> Callable[..., Any]:
    """``torch.<device>.<name>``; one that does nothing where there is none, as on the CPU."""
    namespace = getattr(torch, torch.device(device).type, None)
    found: Callable[..., Any] = getattr(namespace, name, lambda *_: None)
    return found


@functools.cache
def is_factory(aten_name: str) -> bool:
    """Does the operator make tensors on a device named by an argument, and not on that of a tensor?"""
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{aten_name}")
    names = [[argument.name for argument in schema.arguments] for schema in schemas if not schema.is_mutable]
    return bool(names) and all("device" in found and found[0] != "self" for found in names)


def random_like(output: torch.Tensor, seed: int, rounded_to: torch.dtype | None = None) -> torch.Tensor:
    """Fixed random weights for the backward pass; a sparse output is its own weight: the pattern stays.

    `rounded_to`: a wider run must be given the weights of the narrow one.
    """
    if output.layout != torch.strided:
        return output.detach().clone()
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if output.is_complex() else torch.float64
    weights = torch.randn(output.shape, dtype=wide, generator=generator)
    if rounded_to is not None:
        weights = weights.to(rounded_to.to_complex() if output.is_complex() else rounded_to.to_real())
    return weights.to(output.dtype).to(output.device)


def tolerance_for(op: Any, pair: Pair, options: Options) -> Tolerance:
    """The widest of what the operator and the device's file declare; torch's default for the dtype holds besides."""
    if pair.dtype == NO_DTYPE:
        return Tolerance()
    found = declared_tolerance(op, dtype_named(pair.dtype), torch.device(options.device).type)
    for rule in options.tolerances:
        fits = rule.dtypes is None or pair.dtype in rule.dtypes
        fits = fits and (rule.checks is None or pair.check in rule.checks)
        if fits and re.fullmatch(rule.op, pair.op):
            found = found.or_wider(rule.rtol, rule.atol)
    return found
