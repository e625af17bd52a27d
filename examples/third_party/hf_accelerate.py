"""accelerate: `Accelerator` finds the device, prepares model, optimizer and data, scales and clips."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="train on the CPU")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16 where that is safe")
    parser.add_argument("--json", type=Path, help="write the losses here")
    options = parser.parse_args()

    precision = "bf16" if options.bf16 else "no"
    accelerator = Accelerator(cpu=options.cpu, mixed_precision=precision, gradient_accumulation_steps=2)
    set_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4))
    data = TensorDataset(torch.randn(64, 16), torch.randint(4, (64,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=4)
    model, optimizer, loader, schedule = accelerator.prepare(
        model, optimizer, DataLoader(data, batch_size=16), schedule
    )
    losses = []
    for _ in range(2):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(accelerator.gather(loss.detach()[None]).mean().item())
    accelerator.wait_for_everyone()
    device = next(model.parameters()).device
    accelerator.print(
        f"accelerate on {device} ({accelerator.device}): loss {losses[0]:.6f} -> {losses[-1]:.6f}"
    )
    if options.json:
        result = {
            "losses": losses,
            "device": str(device),
            "peak_memory": 0 if options.cpu else torch.cuda.max_memory_allocated(),
        }
        options.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
