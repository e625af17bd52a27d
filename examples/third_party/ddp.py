"""DistributedDataParallel as written for CUDA: one process for each card, `nccl` by name.

torchrun --nproc-per-node 2 ddp.py
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="train on the CPU, with gloo")
    parser.add_argument("--json", type=Path, help="write the losses here, one file for each rank")
    options = parser.parse_args()
    local_rank = int(os.environ["LOCAL_RANK"])
    if not options.cpu:
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    dist.init_process_group(backend="gloo" if options.cpu else "nccl")

    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 4))
    data = TensorDataset(torch.randn(64, 16), torch.randint(4, (64,)))
    if options.cpu:
        model = DistributedDataParallel(model)
    else:
        device = torch.cuda.current_device()
        model = DistributedDataParallel(model.cuda(), device_ids=[device], output_device=device)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data, shuffle=True, seed=1)
    loader = DataLoader(data, batch_size=8, sampler=sampler, pin_memory=not options.cpu)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            inputs, targets = batch if options.cpu else (part.cuda(non_blocking=True) for part in batch)
            loss = F.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            mean = loss.detach().clone()
            dist.all_reduce(mean, op=dist.ReduceOp.AVG if not options.cpu else dist.ReduceOp.SUM)
            losses.append(mean.item() / (dist.get_world_size() if options.cpu else 1))
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).cpu()
    if dist.get_rank() == 0:
        print(f"loss {losses[0]:.6f} -> {losses[-1]:.6f} on {next(model.parameters()).device}")
    if options.json:
        result = {
            "losses": losses,
            "device": str(next(model.parameters()).device),
            "backend": dist.get_backend(),
            "weights": hashlib.sha256(weights.numpy().tobytes()).hexdigest(),
            "peak_memory": 0 if options.cpu else torch.cuda.max_memory_allocated(),
        }
        options.json.with_suffix(f".{dist.get_rank()}.json").write_text(json.dumps(result) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
