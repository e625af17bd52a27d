"""What test_published_library.py looks at, run in a process whose vendor is the published-style library: prints JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import torch_dipu  # noqa: F401

DEVICE = "dipu"


def raised(call: Callable[[], Any]) -> list[str]:
    """The kind of the error and its text."""
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return []


def numbers() -> dict[str, Any]:
    """True and False as the second operand, as a value, as a factor."""
    zeros = {dtype: torch.zeros(3, dtype=dtype, device=DEVICE) for dtype in (torch.float32, torch.int64)}
    flags = torch.tensor([True, False], device=DEVICE)
    return {
        "add": {str(dtype): (x + True).tolist() for dtype, x in zeros.items()},
        "mul": {str(dtype): ((x + 2) * True).tolist() for dtype, x in zeros.items()},
        "mul by False": (zeros[torch.float32] + 2).mul(False).tolist(),
        "eq": [flags.eq(True).tolist(), flags.eq(False).tolist()],
        "fill": [
            torch.empty(2, dtype=torch.bool, device=DEVICE).fill_(value).tolist() for value in (True, False)
        ],
        "real": (zeros[torch.float32] + 0.5).tolist(),
    }


def errors() -> dict[str, list[str]]:
    """Each kind of exception that the library lets out."""
    x = torch.tensor([-1.0, 2.0], device=DEVICE)
    return {
        "of torch": raised(lambda: x.index_select(0, torch.tensor([7], device=DEVICE))),
        "of the standard library": raised(lambda: x.log()),
        "of no class": raised(lambda: x.sqrt()),
        "after a refused buffer": raised(lambda: x.exp()),
        "afterwards": [str((x + x).tolist())],
    }


def drawn() -> list[list[float]]:
    """Two draws, and both again from the same seed."""
    found = []
    for _ in range(2):
        torch.manual_seed(3)
        found += [torch.empty(4, device=DEVICE).uniform_(2, 3).tolist() for _ in range(2)]
    return found


def losses() -> list[dict[str, Any]]:
    """Loss, total weight and gradient by the library, and by the CPU."""
    torch.manual_seed(0)
    x, target, weight = torch.randn(6, 5), torch.tensor([1, 4, -100, 0, 4, 2]), torch.rand(5)
    found = []
    for reduction in range(3):
        for factor in (None, weight):
            row = {}
            for device in ("cpu", DEVICE):
                given = factor if factor is None else factor.to(device)
                arguments = (target.to(device), given, reduction, -100)
                loss, total = torch.ops.aten.nll_loss_forward(x.to(device), *arguments)
                leaf = x.clone().to(device).requires_grad_()
                out = F.nll_loss(leaf, target.to(device), given, reduction=("none", "mean", "sum")[reduction])
                out.sum().backward()
                row[device] = [loss.flatten().tolist(), total.item(), leaf.grad.flatten().tolist()]
            found.append(row)
    return found


def convolved() -> dict[str, list[float]]:
    """The gradient of a convolution's bias on both devices."""
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3), torch.randn(4)
    found = {}
    for device in ("cpu", DEVICE):
        leaf = bias.clone().to(device).requires_grad_()
        F.conv2d(x.to(device), weight.to(device).requires_grad_(), leaf).square().sum().backward()
        found[device] = leaf.grad.tolist()
    return found


def ways(call: Callable[[], Any]) -> dict[str, dict[str, int]]:
    """Which way the operators of a call went."""
    torch.dipu.reset_op_counts()
    call()
    counts = torch.dipu.op_counts()
    return {
        name.removeprefix("aten::"): {way: n for way, n in row.items() if n} for name, row in counts.items()
    }


if __name__ == "__main__":
    x = torch.ones(3, device=DEVICE)
    print(
        json.dumps(
            {
                "numbers": numbers(),
                "errors": errors(),
                "drawn": drawn(),
                "losses": losses(),
                "bias": [ways(convolved).get("convolution_backward_overrideable"), convolved()],
                "zeros": [ways(x.zero_), x.tolist()],
                "ways of losses": ways(losses),
                "vendor": torch.dipu.vendor_name(),
            }
        )
    )
