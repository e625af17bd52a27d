"""Tells a call that draws the very numbers of an earlier one: its kernel does not advance the generator, or has its own seed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from op_tools.engine import Call

__all__ = ["EarlierDraws", "generator_states"]

# So many calls are remembered.
MOST_REMEMBERED = 4096

# Of the CPU's generator and of the one that the call draws from; None: unknown.
States = tuple[int, int] | None


def generator_states(call: Call) -> States:
    """Numbers that change with the state of the generators that a call may draw from."""
    generator = call.kwargs.get("generator")
    try:
        if isinstance(generator, torch.Generator):
            own = generator.get_state()
        else:
            device: Any = call.device
            own = torch.get_device_module(device).get_rng_state(device)
        return _number(torch.get_rng_state()), _number(own)
    except (AttributeError, RuntimeError, TypeError):  # a device that does not show its generator
        return None


def _number(state: torch.Tensor) -> int:
    return hash(state.cpu().numpy().tobytes())


class EarlierDraws:
    """What was drawn before, and in which states of the generators."""

    def __init__(self) -> None:
        self._calls: OrderedDict[tuple[str, int], tuple[States, States]] = OrderedDict()

    def seen(self, name: str, before: States, after: States) -> Callable[[int], str]:
        """For a call that found and left the generators so: says what speaks against a fingerprint of what it drew."""

        def told(fingerprint: int) -> str:
            earlier = self._calls.get((name, fingerprint))
            self._calls[name, fingerprint] = (before, after)
            if len(self._calls) > MOST_REMEMBERED:
                self._calls.popitem(last=False)
            if earlier is None or None in (*earlier, before):
                return ""
            # A program may set a generator back: checkpointing draws again what it drew.
            if earlier[0] == before and earlier[1] != earlier[0]:
                return ""
            reason = (
                "it did not advance its generator"
                if before == earlier[0]
                else "its generator was in another state then"
            )
            return f"the same numbers as in an earlier call: {reason}"

        return told
