"""The operators of a decoder, asked for once in a call of it.

torch's dispatcher and the checks of arguments cost as much as a small kernel, in every layer for every token. A decoder makes
all arguments itself, so it calls the kernels of the chosen vendor directly, unless somebody watches what torch does.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from dicore import observers
from dlinfer.interface.registry import OVERLOADS
from dlinfer.vendors.dispatch import RESOLVED, Values, resolve


class DecoderKernels(NamedTuple):
    """Callables with the arguments of the interface."""

    rms_norm: Any
    add_rms_norm: Any
    apply_rotary_pos_emb: Any
    fill_kv_cache: Any
    prefill_attention: Any
    paged_prefill_attention: Any
    paged_decode_attention: Any
    silu_and_mul: Any
    linear: Any
    weight_quant_matmul: Any


CHECKED = DecoderKernels(*(OVERLOADS[name] for name in DecoderKernels._fields))
"""torch's operators: they check arguments, and modes and profilers see them."""


def kernels(device: str) -> DecoderKernels:
    """The kernels that serve a type of device now; torch's operators where tools, modes or profilers are to see them."""
    if _watched():
        return CHECKED
    return DecoderKernels(*(_kernel(name, device) for name in DecoderKernels._fields))


def _kernel(name: str, device: str) -> Any:
    found = RESOLVED.get((name, device)) or resolve(name, device)
    # Who wants every value checked (a vendor, or DLINFER_CHECK=1) gets it.
    return OVERLOADS[name] if found.values is Values.ALWAYS else found.kernel


def _watched() -> bool:
    # Private: torch has no public question for modes that intercept operators, or for a running profiler.
    return bool(
        observers.ACTIVE or torch._C._len_torch_dispatch_stack() or torch.autograd._profiler_enabled()
    )
