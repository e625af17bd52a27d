"""What trains over several devices in torch, over the backend `dicl`: each way ends where one process on the CPU ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from forked_python import run_ranks

START = """
import sys, torch, torch.distributed as dist, torch.nn as nn
dist.init_process_group()
rank, world = dist.get_rank(), dist.get_world_size()
assert dist.get_backend() == "dicl"
device = torch.device("dipu", rank % 2)
torch.dipu.set_device(device)
mesh = dist.init_device_mesh("dipu", (world,))
share = slice(rank * 8 // world, (rank + 1) * 8 // world)
rate = dict(lr=0.05, foreach=False)            # some ways mix sharded and plain parameters

def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 4))

def batches():
    torch.manual_seed(1)
    for _ in range(3):
        yield torch.randn(8, 8), torch.randn(8, 4)

def train(net, optimizer, rows=slice(None), on=device):
    for x, y in batches():
        loss = nn.functional.mse_loss(net(x[rows].to(on)), y[rows].to(on))
        optimizer.zero_grad(); loss.backward(); optimizer.step()

alone = model(); train(alone, torch.optim.AdamW(alone.parameters(), **rate), on="cpu")
WANTED = {name: value.detach() for name, value in alone.state_dict().items()}

def whole(value): return (value.full_tensor() if hasattr(value, "full_tensor") else value).detach().cpu()

def close(way, state, wanted=WANTED):
    assert state.keys() <= wanted.keys() and state
    for name, value in state.items():
        torch.testing.assert_close(whole(value), wanted[name], rtol=1e-4, atol=1e-5, msg=lambda m: f"{way}, {name}: {m}")

def sharded(on=mesh):
    from torch.distributed.fsdp import fully_shard
    net = model().to(device)
    for layer in net[0], net[2], net[4]: fully_shard(layer, mesh=on)
    return fully_shard(net, mesh=on)
"""

END = """
sys.stdout.write(f"fine {rank}\\n"); sys.stdout.flush()
dist.barrier(); dist.destroy_process_group()
"""

DATA_PARALLEL = """
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
net = model().to(device); ddp = DistributedDataParallel(net, device_ids=[device.index], bucket_cap_mb=0.0005)
train(ddp, torch.optim.AdamW(ddp.parameters(), **rate), share); close("DDP", net.state_dict())
net = model().to(device); ddp = DistributedDataParallel(net, device_ids=[device.index], gradient_as_bucket_view=True, static_graph=True)
train(ddp, ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.AdamW, **rate), share); close("ZeRO", net.state_dict())
net = sharded(); train(net, torch.optim.AdamW(net.parameters(), **rate), share); close("FSDP2", net.state_dict())
from torch.distributed.fsdp import FullyShardedDataParallel
net = FullyShardedDataParallel(model().to(device), device_id=device, use_orig_params=True)
train(net, torch.optim.AdamW(net.parameters(), **rate), share)
with FullyShardedDataParallel.summon_full_params(net): close("FSDP1", dict(net.module.named_parameters()))
if world == 4:
    net = sharded(dist.init_device_mesh("dipu", (2, 2), mesh_dim_names=("copies", "parts")))
    train(net, torch.optim.AdamW(net.parameters(), **rate), share); close("HSDP", net.state_dict())
seen = torch.cat(list(DataLoader(torch.arange(16), batch_size=2, sampler=DistributedSampler(range(16))))).to(device)
every = torch.empty(16, dtype=torch.int64, device=device); dist.all_gather_into_tensor(every, seen)
assert sorted(every.tolist()) == list(range(16))
"""  # noqa: E501

MODEL_PARALLEL = """
import torch.distributed.pipelining as pipelining
from torch.distributed.tensor import DTensor, Shard, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
net = parallelize_module(model().to(device), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
assert isinstance(net[0].weight, DTensor)
train(net, torch.optim.AdamW(net.parameters(), **rate)); close("tensor parallel", net.state_dict())

torch.manual_seed(2)
block, x = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)), torch.randn(2, 8, 8)
expected = block(x).detach()
plan = {"0": SequenceParallel(), "1": ColwiseParallel(input_layouts=Shard(1)), "2": RowwiseParallel(output_layouts=Replicate())}
got = parallelize_module(block.to(device), mesh, plan)(x.chunk(world, dim=1)[rank].contiguous().to(device))
torch.testing.assert_close(whole(got), expected, rtol=1e-4, atol=1e-5)

a, b = torch.randn(8, 8), torch.randn(8, 8)
left, right = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Shard(1)])
torch.testing.assert_close(whole(left @ right), a @ b)
torch.testing.assert_close(whole(left.redistribute(placements=[Shard(1)])), a)
torch.testing.assert_close(whole(left.sum(0)), a.sum(0))

layers = list(model())
parts = {2: [layers[:3], layers[3:]], 4: [layers[:1], layers[1:2], layers[2:4], layers[4:]]}[world]
first = sum(len(part) for part in parts[:rank])
for schedule in "ScheduleGPipe", "Schedule1F1B":
    layers = list(model()); part = nn.Sequential(*layers[first : first + len(parts[rank])]).to(device)
    run = getattr(pipelining, schedule)(pipelining.PipelineStage(part, rank, world, device), n_microbatches=4, loss_fn=nn.functional.mse_loss)
    optimizer = torch.optim.AdamW(part.parameters(), **rate) if list(part.parameters()) else None
    for x, y in batches():
        if optimizer: optimizer.zero_grad()
        if rank == 0: run.step(x.to(device))
        elif rank == world - 1: run.step(target=y.to(device), losses=[])
        else: run.step()
        if optimizer: optimizer.step()
    for name, value in part.state_dict().items():
        number, _, field = name.partition(".")
        close(schedule, {f"{int(number) + first}.{field}": value})
"""  # noqa: E501

CHECKPOINTS = """
import torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
net = sharded(); optimizer = torch.optim.AdamW(net.parameters(), **rate); train(net, optimizer, share)
model_state, optimizer_state = get_state_dict(net, optimizer)
checkpoint.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id="saved")
checkpoint.async_save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id="saved beside").result()
train(net, optimizer, share)                       # three steps further
further = {name: whole(value) for name, value in net.state_dict().items()}
for folder in "saved", "saved beside":
    fresh = sharded(); optimizer = torch.optim.AdamW(fresh.parameters(), **rate)
    model_state, optimizer_state = get_state_dict(fresh, optimizer)
    checkpoint.load({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
    set_state_dict(fresh, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    close(folder, fresh.state_dict())
    train(fresh, optimizer, share); close(f"{folder}, further", fresh.state_dict(), further)
"""


def launch(body: str, folder: Path, processes: int, **settings: str) -> None:
    environment = {**os.environ, "DIPU_HOST_DEVICES": "2", "PYTHONWARNINGS": "ignore", **settings}
    out = run_ranks(START + body + END, env=environment, cwd=folder, processes=processes)
    assert out.count("fine") == processes


@pytest.mark.parametrize(
    ("processes", "settings"), [(4, {}), (2, {"DIPU_HOST_ASYNC": "1"})], ids=["four ranks", "queued work"]
)
def test_data_parallel_training(processes: int, settings: dict[str, str], tmp_path: Path) -> None:
    launch(DATA_PARALLEL, tmp_path, processes, **settings)


@pytest.mark.parametrize("page", ["distributed.md", "distributed.zh-CN.md"])
def test_the_page_trains_alike_with_two_and_four_processes(page: str, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / page).read_text()
    program, command = (re.findall(rf"```{kind}\n(.*?)```", text, re.S)[0] for kind in ("python", "sh"))
    (tmp_path / "train.py").write_text(program)
    name, *words = command.split()
    assert name == "torchrun" and "--nproc-per-node=2" in words
    if "zh-CN" in page:  # the same program: once with the processes that the page promises besides
        words = [word.replace("per-node=2", "per-node=4") for word in words]
    environment = {**os.environ, "DIPU_HOST_DEVICES": "2", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [f"loss {alone_on_the_cpu(program):.5f}"]


def alone_on_the_cpu(program: str) -> float:
    """The program's training in this process."""
    import torch

    step = 0.0
    torch.manual_seed(0)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.randn(10, 8, 16)
    assert "torch.nn.Linear(16, 4)" in program and "torch.randn(10, 8, 16)" in program and "lr=0.1" in program
    for batch in data:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step = loss.item()
    return step


def test_model_parallel_training(tmp_path: Path) -> None:
    launch(MODEL_PARALLEL, tmp_path, 2)


def test_distributed_checkpoints(tmp_path: Path) -> None:
    launch(CHECKPOINTS, tmp_path, 2)
