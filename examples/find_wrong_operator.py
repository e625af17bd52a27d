"""A wrong loss, and the operator that is to blame: OpAutoCompare names it, OpFallback proves it.

The device `dipu` gets one deliberately wrong kernel: the backward of GELU forgets the last columns. Nothing crashes, no
value is strange; the model only learns worse than on the CPU. Run: python examples/find_wrong_operator.py
"""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F

import op_tools

STEPS = 50


class Model(torch.nn.Module):
    """Two layers with a GELU between them."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(16, 32)
        self.down = torch.nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Predict one number for each row."""
        hidden = F.gelu(self.up(x))
        return self.down(hidden)


def break_gelu() -> torch.library.Library:
    """Register the wrong kernel; it stays as long as the returned object lives."""

    def gelu_backward(grad: torch.Tensor, x: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
        right = torch.ops.aten.gelu_backward(grad.cpu(), x.cpu(), approximate=approximate).to(x.device)
        right[..., 20:] = 0  # a kernel that works in blocks of 20 and forgets the rest
        return right

    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that the kernel of the device is replaced: that is meant
        library.impl("gelu_backward", gelu_backward, "PrivateUse1", allow_override=True)
    return library


def train(device: str, steps: int = STEPS) -> float:
    """The loss after some steps from the same start."""
    torch.manual_seed(0)
    model, x = Model(), torch.randn(64, 16)
    target = x.norm(dim=1, keepdim=True)
    model, x, target = model.to(device), x.to(device), target.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    """Show the wrong loss, find the operator, run it on the CPU."""
    print(f"loss on the CPU:    {train('cpu'):.6f}")
    kernel = break_gelu()
    print(f"loss on the device: {train('dipu'):.6f}  <- which operator is wrong?\n")

    with op_tools.OpAutoCompare(list="torch.nn.functional.*"):
        train("dipu", steps=1)

    with op_tools.OpFallback(list="torch.nn.functional.gelu"):
        loss = train("dipu")
    print(f"\nloss on the device, gelu on the CPU: {loss:.6f}")
    del kernel


if __name__ == "__main__":
    main()
