"""Another accelerator in the process of the device: its tensors compute, its backward passes are refused by name.

PyTorch's autograd knows the streams of one accelerator, and where a device is plugged in it is that one. A backward pass over
tensors of another (a real `cuda`) ends in an internal assertion of PyTorch, which says nothing to a user; here it says what is
wrong.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["explain_backward", "follow_backward"]

# What the engine and its buffers assert (torch 2.11 to 2.13): that a stream is known.
_ASSERTED = ("opt_ready_stream && opt_parent_stream", "opt_consumer_stream && opt_producer_stream")
# Who calls the engine by its private name.
_CALLERS = (torch.autograd, torch.autograd.graph)
_ENGINE = "_engine_run_backward"


def follow_backward() -> None:
    """Explains backward passes of this process from now on, if torch has another accelerator at all."""
    if torch.version.cuda is None and torch.version.hip is None:
        return
    explain_backward()


def explain_backward() -> Callable[[], None]:
    """The same in any case. Gives what takes it back."""
    own = {caller: getattr(caller, _ENGINE) for caller in _CALLERS}
    for caller, run in own.items():
        setattr(caller, _ENGINE, _explaining(run))

    def undo() -> None:
        for caller, run in own.items():
            setattr(caller, _ENGINE, run)

    return undo


def _explaining(run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def explained(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return run(outputs, *args, **kwargs)
        except RuntimeError as error:
            if not any(text in str(error) for text in _ASSERTED):
                raise
            raise RuntimeError(_refusal(outputs)) from error

    return explained


def _refusal(outputs: Any) -> str:
    devices = {str(t.device) for t in outputs if isinstance(t, torch.Tensor) and t.device.type != "cpu"}
    others = sorted(name for name in devices if not name.startswith("dipu")) or [
        "another accelerator than dipu"
    ]
    return (
        f"dipu: a backward pass over tensors of {', '.join(others)} is refused: torch_dipu is in this process, and PyTorch's "
        "autograd knows the streams of one accelerator only, which is dipu then. Train on dipu, or train on the other one in a "
        "process without torch_dipu (TORCH_DEVICE_BACKEND_AUTOLOAD=0, and no import of torch_dipu)."
    )
