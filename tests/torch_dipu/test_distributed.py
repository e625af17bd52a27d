"""Collectives and DistributedDataParallel over the backend `dicl`, with two processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from forked_python import run_ranks

ROOT = Path(__file__).parents[2]

COLLECTIVES = """
import sys, torch, torch.distributed as dist
dist.init_process_group("dicl")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("dipu", rank)
torch.dipu.set_device(rank)

def check(got, expected):
    assert got.device.type == "dipu" and got.cpu().tolist() == expected, (got, expected)

x = torch.tensor([1.0, 2.0], device=device) * (rank + 1)
y = x.clone(); dist.all_reduce(y); check(y, [3.0, 6.0])
y = x.clone(); dist.all_reduce(y, op=dist.ReduceOp.AVG); check(y, [1.5, 3.0])
y = x.clone(); dist.all_reduce(y, op=dist.ReduceOp.MAX); check(y, [2.0, 4.0])
y = x.clone(); dist.broadcast(y, src=1); check(y, [2.0, 4.0])
parts = [torch.empty(2, device=device) for _ in range(world)]
dist.all_gather(parts, x); check(torch.stack(parts), [[1.0, 2.0], [2.0, 4.0]])
whole = torch.empty(4, device=device)
dist.all_gather_into_tensor(whole, x); check(whole, [1.0, 2.0, 2.0, 4.0])
piece = torch.empty(1, device=device)
dist.reduce_scatter_tensor(piece, x); check(piece, [3.0 if rank == 0 else 6.0])
y = x.clone(); dist.reduce(y, dst=0)
if rank == 0: check(y, [3.0, 6.0])
out = torch.empty(2, device=device)
dist.all_to_all_single(out, x); check(out, [1.0, 2.0] if rank == 0 else [2.0, 4.0])
if rank == 0: dist.send(x, dst=1)
else:
    y = torch.empty(2, device=device); dist.recv(y, src=0); check(y, [1.0, 2.0])
gathered = [torch.empty(2, device=device) for _ in range(world)] if rank == 0 else None
dist.gather(x, gathered, dst=0)
if rank == 0: check(gathered[1], [2.0, 4.0])
scattered = torch.empty(2, device=device)
dist.scatter(scattered, [torch.full((2,), float(i), device=device) for i in range(world)] if rank == 0 else None, src=0)
check(scattered, [float(rank)] * 2)
work = dist.all_reduce(x, async_op=True); work.wait(); check(x, [3.0, 6.0])
host = torch.ones(1); dist.all_reduce(host); assert host.item() == 2.0
objects = [None] * world
dist.all_gather_object(objects, {"rank": rank}); assert objects == [{"rank": 0}, {"rank": 1}]
dist.barrier()
sys.stdout.write(f"collectives fine {rank}\\n")
dist.destroy_process_group()
"""

TRAIN = """
import sys, torch, torch.distributed as dist
sys.path.insert(0, "EXAMPLES")
from gpt import GPT, GPTConfig
from torch.nn.parallel import DistributedDataParallel as DDP

world = int(sys.argv[1])
if world > 1:
    dist.init_process_group("dicl")
rank = dist.get_rank() if world > 1 else 0
device = torch.device("dipu", rank)
torch.dipu.set_device(rank)
torch.manual_seed(0)
net = GPT(GPTConfig(vocabulary=40, context=16, layers=2, heads=2, width=32)).to(device)
model = DDP(net, device_ids=[rank]) if world > 1 else net
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
generator = torch.Generator().manual_seed(1)
for step in range(5):
    tokens = torch.randint(0, 40, (8, 17), generator=generator)
    mine = tokens.chunk(world)[rank].to(device)
    logits = model(mine[:, :-1])
    logits = logits[0] if isinstance(logits, tuple) else logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), mine[:, 1:].flatten())
    opt.zero_grad(); loss.backward(); opt.step()
if rank == 0:
    torch.save({k: v.cpu() for k, v in net.state_dict().items()}, sys.argv[2])
if world > 1:
    dist.barrier(); dist.destroy_process_group()
"""


@pytest.mark.parametrize("alias", ["1", "0"])
def test_collectives(alias: str, tmp_path: Path) -> None:
    out = run_ranks(COLLECTIVES, env={**os.environ, "DIPU_HOST_ALIAS": alias}, cwd=tmp_path)
    assert "collectives fine 0" in out
    assert "collectives fine 1" in out


def test_two_processes_train_like_one_with_the_double_batch(tmp_path: Path) -> None:
    import torch

    script = tmp_path / "train.py"
    script.write_text(TRAIN.replace("EXAMPLES", str(ROOT / "examples")))
    one, two = tmp_path / "one.pt", tmp_path / "two.pt"
    subprocess.run([sys.executable, str(script), "1", str(one)], check=True, timeout=240)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*torchrun, str(script), "2", str(two)], check=True, timeout=240)
    single, double = torch.load(one), torch.load(two)
    assert single.keys() == double.keys()
    for name, weight in single.items():
        torch.testing.assert_close(
            double[name], weight, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}"
        )
