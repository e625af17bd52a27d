"""Two ranks under the tools: collectives are operators, DDP and FSDP train as without."""

from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import pytest
from captures import TOOLS
from forked_python import run_ranks

COMMON = """
import json, os, sys, torch, torch.distributed as dist, op_tools
from op_tools.engine import ENGINE
backend, kind = sys.argv[1], sys.argv[2]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
device = torch.device(kind, rank) if kind != "cpu" else torch.device("cpu")
if kind == "dipu":
    torch.dipu.set_device(rank)
settings = {"device": kind}
"""

COLLECTIVES = (
    COMMON
    + """
tool = op_tools.OpTimeMeasure(**settings)
tool.start()                                   # before there is a group
originals = dist.all_reduce.__wrapped__
dist.init_process_group(backend)
observe = op_tools.OpObserve(**settings); observe.start()
x = torch.ones(4, device=device) * (rank + 1)
y = x.clone(); dist.all_reduce(y); assert y.tolist() == [3.0] * 4
parts = [torch.empty(4, device=device) for _ in range(world)]
dist.all_gather(parts, x); assert parts[1].tolist() == [2.0] * 4
z = x.clone(); dist.broadcast(z, src=1); assert z.tolist() == [2.0] * 4
work = dist.all_reduce(z, async_op=True); work.wait(); assert z.tolist() == [4.0] * 4
from torch.distributed import all_reduce      # a name taken while the tool is on
all_reduce(z)
if rank == 0: dist.send(x, dst=1)
else: dist.recv(y, src=0); assert y.tolist() == [1.0] * 4
objects = [None] * world
dist.all_gather_object(objects, rank); assert objects == [0, 1]
dist.barrier()
observe.stop(); tool.stop()
assert dist.all_reduce is originals and not ENGINE.failures.seen, ENGINE.failures.seen
dist.all_reduce(y)
dist.destroy_process_group()
"""
)

DDP = (
    COMMON
    + """
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group(backend)

def train(tools):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to(device)
    model = DistributedDataParallel(net, device_ids=[rank] if kind != "cpu" else None)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)
    for tool in tools: tool.start()
    losses = []
    for step in range(4):
        data = torch.full((2, 4), float(rank + step + 1)).to(device) / 10
        loss = model(data).square().mean()
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        losses.append(loss.item())
    for tool in tools: tool.stop()
    return losses, [p.detach().cpu().tolist() for p in net.parameters()]

bare = train([])
for names in (["OpTimeMeasure"], ["OpObserve"], ["OpOverflowCheck"], ["OpFallback"], ["OpTimeMeasure", "OpObserve"]):
    if names == ["OpFallback"] and kind == "cpu":
        continue
    watched = train([getattr(op_tools, name)(**settings) for name in names])
    if names == ["OpFallback"]:
        flat = lambda v: [n for i in v for n in (flat(i) if isinstance(i, list) else [i])]
        assert all(abs(a - b) < 1e-5 for a, b in zip(flat(list(bare)), flat(list(watched)))), names
    else:
        assert watched == bare, names
assert not ENGINE.failures.seen, ENGINE.failures.seen
dist.destroy_process_group()
"""
)

FSDP = (
    COMMON
    + """
from torch.distributed.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group(backend)
mesh = init_device_mesh(kind, (world,))

def train(tools):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to(device)
    for part in (net[0], net[2]): fully_shard(part, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    for tool in tools: tool.start()
    losses = []
    for step in range(3):
        loss = net(torch.full((2, 4), float(rank + step + 1), device=device) / 10).square().mean()
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        losses.append(loss.item())
    for tool in tools: tool.stop()
    return losses, [p.full_tensor().tolist() for p in net.parameters()]

bare = train([])
for names in (["OpTimeMeasure"], ["OpObserve"], ["OpDtypeCast"], ["OpFallback"], ["OpTimeMeasure", "OpOverflowCheck"]):
    if names == ["OpFallback"] and kind == "cpu":
        continue
    watched = train([getattr(op_tools, name)(**settings) for name in names])
    if names != ["OpFallback"]:
        assert watched == bare, (names, watched, bare)
assert not ENGINE.failures.seen, ENGINE.failures.seen
dist.destroy_process_group()
"""
)


def ranks(code: str, folder: Path, backend: str, kind: str) -> None:
    """Two processes that are one job, each with the device not yet used."""
    environment = {**os.environ, "DIPU_HOST_DEVICES": "2"}
    run_ranks(code, backend, kind, env=environment, cwd=folder, preload=TOOLS)


def read(folder: Path, rank: int) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for file in sorted(folder.glob(f"*_rank{rank}_*.csv")):
        with file.open(newline="") as text:
            found += list(csv.DictReader(text))
    return found


PAIRS = [("gloo", "cpu"), ("dicl", "dipu")]


@pytest.mark.parametrize(("backend", "kind"), PAIRS)
def test_collectives_are_rows_of_their_rank(backend: str, kind: str, tmp_path: Path) -> None:
    ranks(COLLECTIVES, tmp_path, backend, kind)
    for rank in range(2):
        for folder in ("op_time_measure_result", "op_observe_result"):
            table = read(tmp_path / "op_tools_results" / folder, rank)
            assert {row["rank"] for row in table} == {str(rank)}
            names = [
                row["name"].removeprefix("torch.distributed.")
                for row in table
                if "distributed" in row["name"]
            ]
            point = ["send"] if rank == 0 else ["recv"]
            wanted = ["all_reduce", "all_gather", "broadcast", "all_reduce", "all_reduce", *point]
            assert [name for name in names if name != "all_gather_object"][: len(wanted)] == wanted
        times = [
            row
            for row in read(tmp_path / "op_tools_results" / "op_time_measure_result", rank)
            if "all_reduce" in row["name"]
        ]
        assert all(float(row["forward_elasped"]) > 0 for row in times)
        assert all(row["input"].startswith(f"(float32[4]@{kind}") for row in times)


@pytest.mark.parametrize(("backend", "kind"), PAIRS)
def test_ddp_trains_the_same_and_its_own_collectives_are_seen(
    backend: str, kind: str, tmp_path: Path
) -> None:
    ranks(DDP, tmp_path, backend, kind)
    table = read(tmp_path / "op_tools_results" / "op_time_measure_result", 0)
    inside = [row for row in table if row["name"] == "c10d.allreduce_.default"]
    assert len(inside) == 8 and all(
        float(row["forward_elasped"]) >= 0 for row in inside
    )  # 2 trainings, 4 steps, 1 bucket
    assert {row["phase"] for row in inside} == {"backward"}


@pytest.mark.parametrize(("backend", "kind"), PAIRS)
def test_fsdp_trains_the_same(backend: str, kind: str, tmp_path: Path) -> None:
    ranks(FSDP, tmp_path, backend, kind)
    names: Any = {row["name"] for row in read(tmp_path / "op_tools_results" / "op_time_measure_result", 0)}
    assert any("gather" in name for name in names) and any("reduce_scatter" in name for name in names)
