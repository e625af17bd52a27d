"""Every collective of the backend `dicl`, with two and four processes, on every way a tensor may lie in memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forked_python import run_ranks

START = """
import sys, torch, torch.distributed as dist
from datetime import timedelta
from torch.distributed import ReduceOp
dist.init_process_group("dicl")
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("dipu", rank % 2)
torch.dipu.set_device(device)

def same(got, expected, of="dipu"):
    expected = torch.as_tensor(expected, dtype=got.dtype)
    assert got.device.type == of and torch.equal(got.detach().cpu(), expected), (got, expected)

def refused(call, kind, *words):
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), error
    else:
        raise AssertionError(f"not refused: {words}")
"""

END = """
sys.stdout.write(f"fine {rank}\\n"); sys.stdout.flush()
dist.barrier(); dist.destroy_process_group()
"""

COLLECTIVES = """
total = world * (world + 1) // 2          # of rank + 1
def mine(dtype=torch.float32):
    return (torch.tensor([1, 2, 4]) * (rank + 1)).to(dtype).to(device)

for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64):
    y = mine(dtype); dist.all_reduce(y); same(y, [total, 2 * total, 4 * total])
    y = mine(dtype); dist.all_reduce(y, ReduceOp.MAX); same(y, [world, 2 * world, 4 * world])
    y = mine(dtype); dist.all_reduce(y, ReduceOp.MIN); same(y, [1, 2, 4])
    piece = torch.empty(3, dtype=dtype, device=device)
    dist.reduce_scatter_tensor(piece, torch.cat([mine(dtype) + i for i in range(world)]))
    same(piece, [total + rank * world, 2 * total + rank * world, 4 * total + rank * world])
factor = torch.tensor([1, 2, 2], device=device)
y = torch.full((3,), 2.0, device=device) if rank < 2 else torch.ones(3, device=device)
dist.all_reduce(y, ReduceOp.PRODUCT); same(y, [4.0] * 3)
y = mine(); dist.all_reduce(y, ReduceOp.AVG); same(y, [total / world, 2 * total / world, 4 * total / world])
y = mine(torch.int64) * 3; dist.all_reduce(y, ReduceOp.AVG); same(y, [3 * total * k // world for k in (1, 2, 4)])
bits = torch.tensor([1 << rank, 255], dtype=torch.uint8, device=device)
y = bits.clone(); dist.all_reduce(y, ReduceOp.BOR); same(y, [(1 << world) - 1, 255])
y = bits.clone(); dist.all_reduce(y, ReduceOp.BAND); same(y, [0, 255])
y = bits.clone(); dist.all_reduce(y, ReduceOp.BXOR); same(y, [(1 << world) - 1, 0])
piece = torch.empty(2, dtype=torch.uint8, device=device)
dist.reduce_scatter_tensor(piece, bits.repeat(world), ReduceOp.BXOR); same(piece, [(1 << world) - 1, 0])
refused(lambda: dist.all_reduce(mine(), ReduceOp.BAND), Exception, "BAND", "integers")
flags = torch.tensor([rank == 0, True, False], device=device)
y = flags.clone(); dist.all_reduce(y); same(y, [True, True, False])
y = flags.clone(); dist.all_reduce(y, ReduceOp.PRODUCT); same(y, [False, True, False])
y = torch.complex(mine(), -mine()); dist.all_reduce(y); same(y, torch.tensor([1, 2, 4]) * complex(total, -total))
half = dist._make_nccl_premul_sum(0.5)
y = mine(); dist.all_reduce(y, half); same(y, [0.5 * total, total, 2 * total])
dist.reduce_scatter_tensor(piece := torch.empty(3, device=device), mine().repeat(world), half); same(piece, [0.5 * total, total, 2 * total])
y = mine(); dist.all_reduce(y, dist._make_nccl_premul_sum(torch.tensor([2.0], device=device))); same(y, [2 * total, 4 * total, 8 * total])

y = mine(); dist.reduce(y, dst=1); same(y, [total, 2 * total, 4 * total] if rank == 1 else mine().tolist())
for dtype in (torch.float32, torch.bool, torch.complex64, torch.int16, torch.float8_e4m3fn):
    x = mine().to(dtype)
    y = x.clone() if rank == 1 else torch.zeros_like(x); dist.broadcast(y, src=1)
    assert torch.equal(y.cpu().to(torch.complex64), (torch.tensor([2, 4, 8.0]).to(dtype)).to(torch.complex64)), y
    parts = [torch.empty_like(x) for _ in range(world)]; dist.all_gather(parts, x)
    assert all(torch.equal(p.cpu().to(torch.complex64), (torch.tensor([1, 2, 4.0]) * (i + 1)).to(dtype).to(torch.complex64)) for i, p in enumerate(parts))
rows = torch.tensor([[1.0, 2, 4]]) * torch.arange(1, world + 1)[:, None]
whole = torch.empty(world * 3, device=device); dist.all_gather_into_tensor(whole, mine()); same(whole, rows.flatten())
whole = torch.empty(world, 3, device=device); dist.all_gather_into_tensor(whole, mine()[None]); same(whole, rows)
uneven = [torch.empty(i + 1, device=device) for i in range(world)]
dist.all_gather(uneven, torch.full((rank + 1,), float(rank), device=device))
for i, part in enumerate(uneven): same(part, [float(i)] * (i + 1))
lists = [mine() + i for i in range(world)]
out = torch.empty(3, device=device); dist.reduce_scatter(out, lists); same(out, [k * total + rank * world for k in (1, 2, 4)])
gathered = [torch.empty(3, device=device) for _ in range(world)] if rank == 0 else None
dist.gather(mine(), gathered, dst=0)
if rank == 0: same(torch.stack(gathered), rows)
out = torch.empty(2, device=device)
dist.scatter(out, [torch.full((2,), float(i), device=device) for i in range(world)] if rank == 1 else None, src=1); same(out, [float(rank)] * 2)

x = torch.arange(world, device=device) + 10 * rank
out = torch.empty_like(x); dist.all_to_all_single(out, x); same(out, [10 * i + rank for i in range(world)])
to = [i + rank for i in range(world)]                 # rank r sends i + r rows to rank i
x = torch.full((sum(to), 2), float(rank), device=device)
got = [rank + i for i in range(world)]
out = torch.empty(sum(got), 2, device=device); dist.all_to_all_single(out, x, got, to)
same(out, torch.repeat_interleave(torch.arange(float(world)), torch.tensor(got))[:, None].expand(-1, 2))
outs = [torch.empty(i + rank, device=device, dtype=torch.bfloat16) for i in range(world)]
dist.all_to_all(outs, [torch.full((i + rank,), float(rank), device=device, dtype=torch.bfloat16) for i in range(world)])
for i, part in enumerate(outs): same(part, [float(i)] * (i + rank))

wide = torch.zeros(3, 4, device=device); wide[:, 1] = mine()
dist.all_reduce(wide[:, 1]); same(wide, torch.tensor([0, total, 0, 0.0]) * torch.tensor([[1], [2], [4]]))
whole = torch.zeros(3, 2 * world, device=device).t()[::2]          # neither dense nor in order
dist.all_gather_into_tensor(whole, mine()[None]) ; same(whole, rows)
image = (torch.arange(24.0).view(1, 2, 3, 4) * (rank + 1)).to(device).to(memory_format=torch.channels_last)
dist.broadcast(image, src=0); same(image, torch.arange(24.0).view(1, 2, 3, 4))
scalar = torch.tensor(float(rank), device=device); dist.all_reduce(scalar); same(scalar, world * (world - 1) / 2)

nothing = torch.empty(0, device=device)
dist.all_reduce(nothing); dist.broadcast(nothing, 0); dist.all_gather([nothing.clone() for _ in range(world)], nothing)
dist.reduce_scatter_tensor(nothing.clone(), nothing); dist.all_to_all_single(nothing.clone(), nothing)
dist.all_to_all_single(out := torch.empty(rank, device=device), torch.ones(sum(range(world)), device=device)[: sum(range(world)) if rank == 0 else 0],
                       [rank] + [0] * (world - 1), list(range(world)) if rank == 0 else [0] * world)
same(out, [1.0] * rank)

right, left = (rank + 1) % world, (rank - 1) % world
y = torch.empty(3, device=device)
if rank % 2 == 0: dist.send(mine(), right); dist.recv(y, left)
else: dist.recv(y, left); dist.send(mine(), right)
same(y, rows[left])
y = torch.empty(3, device=device)
sent = [dist.isend(mine() * k, right, tag=k) for k in (1, 2)]       # both send first, and by tags in another order
received = {k: torch.empty(3, device=device) for k in (2, 1)}
works = [dist.irecv(t, left, tag=k) for k, t in received.items()]
for work in sent + works: work.wait()
for k in (1, 2): same(received[k], rows[left] * k)
a, b = torch.empty(3, device=device), torch.empty(3, device=device)
operations = [dist.P2POp(dist.isend, mine(), right), dist.P2POp(dist.irecv, a, left), dist.P2POp(dist.isend, mine(), left), dist.P2POp(dist.irecv, b, right)]
for work in dist.batch_isend_irecv(operations): work.wait()
if world > 2: same(a, rows[left]); same(b, rows[right])
if rank == 0:
    seen = {dist.recv(y) for _ in range(world - 1)}; assert seen == set(range(1, world)), seen
else:
    dist.send(mine(), 0)

objects = [None] * world
dist.all_gather_object(objects, {"rank": rank}); assert objects == [{"rank": i} for i in range(world)]
objects = ["from 1", 5] if rank == 1 else [None, None]
dist.broadcast_object_list(objects, src=1, device=device); assert objects == ["from 1", 5]
gathered = [None] * world if rank == 0 else None
dist.gather_object(rank, gathered); assert rank or gathered == list(range(world))
scattered = [None]; dist.scatter_object_list(scattered, [f"for {i}" for i in range(world)] if rank == 0 else None); assert scattered == [f"for {rank}"]
host = torch.ones(2); dist.all_reduce(host); same(host, [world] * 2, of="cpu")

x = torch.ones(2, device=device)
refused(lambda: dist.all_gather_into_tensor(torch.empty(3, device=device), x), Exception, "3 elements", f"{2 * world}")
refused(lambda: dist.all_to_all_single(torch.empty(world + 1, device=device), torch.ones(world + 1, device=device)), Exception, "split sizes")
refused(lambda: dist.all_gather([torch.empty(2) for _ in range(world)], x), Exception, "one device")
"""  # noqa: E501

GROUPS = """
from torch.distributed.distributed_c10d import _coalescing_manager
pairs = dist.new_group([0, 1]), dist.new_group([2, 3])
pair, other = pairs[rank // 2], pairs[1 - rank // 2]
y = torch.tensor([rank + 1.0], device=device); dist.all_reduce(y, group=pair); same(y, [3.0] if rank < 2 else [7.0])
assert dist.get_backend(pair) == "dicl" and dist.get_group_rank(pair, rank) == rank % 2
same_pair, _ = dist.new_subgroups(2)
y = torch.tensor([1.0], device=device); dist.all_reduce(y, group=same_pair); same(y, [2.0])

mesh = dist.init_device_mesh("dipu", (2, 2), mesh_dim_names=("dp", "tp"))
y = torch.tensor([rank + 1.0], device=device); dist.all_reduce(y, group=mesh.get_group("dp")); same(y, [[4.0], [6.0]][rank % 2])
y = torch.tensor([rank + 1.0], device=device); dist.all_reduce(y, group=mesh["tp"].get_group()); same(y, [[3.0], [7.0]][rank // 2])

a, b = torch.ones(2, device=device), torch.full((3,), 2.0, device=device)
with _coalescing_manager():
    dist.all_reduce(a); dist.all_reduce(b)
same(a, [4.0] * 2); same(b, [8.0] * 3)
with _coalescing_manager(async_ops=True) as manager:
    dist.all_reduce(a); dist.all_reduce(b)
manager.wait(); same(a, [16.0] * 2); same(b, [32.0] * 3)
wholes = [torch.empty(4, device=device), torch.empty(8, device=device)]
with _coalescing_manager(async_ops=True) as manager:
    dist.all_gather_into_tensor(wholes[0], torch.tensor([float(rank)], device=device))
    dist.all_gather_into_tensor(wholes[1], torch.full((2,), float(rank), device=device))
manager.wait(); same(wholes[0], [0, 1, 2, 3]); same(wholes[1], [0, 0, 1, 1, 2, 2, 3, 3])
pieces = [torch.empty(1, device=device), torch.empty(2, device=device)]
with _coalescing_manager():
    dist.reduce_scatter_tensor(pieces[0], torch.arange(4.0, device=device))
    dist.reduce_scatter_tensor(pieces[1], torch.arange(8.0, device=device))
same(pieces[0], [4.0 * rank]); same(pieces[1], [8.0 * rank, 8.0 * rank + 4])
a, b = torch.ones(2, device=device), torch.full((3,), float(rank), device=device)
with _coalescing_manager(device=device, async_ops=True) as manager:       # any calls: they start when the block ends
    inside = dist.group.WORLD.allreduce([a])
    refused(inside.wait, RuntimeError, "all_reduce", "coalesces")
    dist.broadcast(b, src=3)
manager.wait(); same(a, [4.0] * 2); same(b, [3.0] * 3)
assert manager.works[0].is_success() and inside.is_completed()

import torch.distributed._functional_collectives as functional
same(functional.all_reduce(torch.ones(2, device=device), "sum", pair), [2.0] * 2)
same(functional.all_gather_tensor(torch.tensor([float(rank)], device=device), 0, mesh["tp"]), [0, 1] if rank < 2 else [2, 3])
same(functional.reduce_scatter_tensor(torch.arange(4.0, device=device), "avg", 0, dist.group.WORLD), [float(rank)])

dist.group.WORLD.monitored_barrier(timedelta(seconds=60), True)
if rank == 0: assert dist.group.WORLD._get_backend(device)._get_sequence_number_for_group() == 8
"""  # noqa: E501

# One process group bound to a device, from which others are split; named by its backends, and found by torch.
SPLIT = """
import os, sys, torch, torch.distributed as dist
os.environ["TORCH_FR_BUFFER_SIZE"] = "20"
rank = int(os.environ["RANK"])
device = torch.device("dipu", rank)
dist.init_process_group(device_id=device)
def summed(group=None):
    y = torch.tensor([rank + 1.0], device=device); dist.all_reduce(y, group=group); return y.item()
assert summed() == 3.0
alone = dist.split_group(split_ranks=[[0], [1]])
assert summed(alone) == rank + 1.0 and alone.size() == 1
assert dist.get_process_group_ranks(alone) == [rank]
assert summed(dist.new_group([0, 1])) == 3.0
only = dist.new_group([1]); assert rank == 0 or summed(only) == 2.0
work = dist.all_reduce(torch.ones(4, device=device), async_op=True); work.wait()
assert work._get_duration() >= 0
trace = torch._C._distributed_c10d._dump_fr_trace_json()
dist.destroy_process_group()
dist.init_process_group("cpu:gloo,dipu:dicl", store=dist.FileStore("store", 2), rank=rank, world_size=2)      # once more in this process
assert summed() == 3.0
host = torch.ones(1); dist.all_reduce(host); assert host.item() == 2.0
dist.destroy_process_group()
sys.stdout.write(f"fine {rank}\\n")
"""  # noqa: E501


def launch(body: str, folder: Path, processes: int = 2, **settings: str) -> None:
    code = START + body + END if body is not SPLIT else SPLIT
    environment = {**os.environ, "DIPU_HOST_DEVICES": "2", **settings}
    out = run_ranks(code, env=environment, cwd=folder, processes=processes)
    assert sorted(line for line in out.splitlines() if line.startswith("fine")) == [
        f"fine {rank}" for rank in range(processes)
    ]


@pytest.mark.parametrize(
    ("processes", "settings"),
    [(2, {}), (2, {"DIPU_HOST_ALIAS": "0"}), (4, {"DIPU_HOST_ASYNC": "1", "DIPU_HOST_DELAY_US": "300"})],
    ids=["two ranks", "two ranks, host kernels cannot reach the memory", "four ranks, queued work"],
)
def test_collectives(processes: int, settings: dict[str, str], tmp_path: Path) -> None:
    launch(COLLECTIVES, tmp_path, processes, **settings)


def test_groups_meshes_and_coalesced_calls(tmp_path: Path) -> None:
    launch(GROUPS, tmp_path, processes=4)


def test_a_group_bound_to_a_device_is_split(tmp_path: Path) -> None:
    launch(SPLIT, tmp_path)
