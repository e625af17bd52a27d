"""Two processes with cuda's names: averages and float32 sums that a backend lacks, DDP and FSDP2 on a mesh of 'cuda'."""

from __future__ import annotations

from pathlib import Path

import pytest
from forked_python import clean_environment, run_ranks

pytestmark = [pytest.mark.device, pytest.mark.slow]

_START = """
import torch, torch.distributed as dist, ditorch
from torch.distributed import ReduceOp
dist.init_process_group(BACKEND, device_id=None)
rank, world = dist.get_rank(), dist.get_world_size()
torch.cuda.set_device(rank)
device = torch.device("cuda", rank)

def same(got, expected):
    assert got.device.type == "cuda" and got.get_device() == rank, got.device
    assert got.tolist() == expected, (got, expected)
"""

_AVERAGES = """
from dataclasses import replace
from _ditorch.mapping import Mapping
from _ditorch.session import of_process
from torch.distributed.distributed_c10d import _coalescing_manager

def refusing(original):  # a backend as most are
    def call(self, *args, **kwargs):
        assert not any(getattr(a, "reduceOp", None) == ReduceOp.AVG for a in args), "AVG reached the backend"
        return original(self, *args, **kwargs)
    return call
for name in "allreduce", "allreduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base":
    if hasattr(dist.ProcessGroup, name):
        setattr(dist.ProcessGroup, name, refusing(getattr(dist.ProcessGroup, name)))
target = of_process().mapping.target
ditorch.disable()
Mapping(replace(target, averages=False)).enable()

x = torch.tensor([1.0, 3.0], device=device) * (rank + 1)
part = [1.5] if rank == 0 else [4.5]
y = x.clone(); assert dist.all_reduce(y, op=ReduceOp.AVG) is None; same(y, [1.5, 4.5])
y = x.clone(); dist.all_reduce(y); same(y, [3.0, 9.0])
y = x.clone(); work = dist.all_reduce(y, ReduceOp.AVG, async_op=True)
assert isinstance(work, dist.Work); work.wait(); work.wait(); assert work.is_completed(); same(y, [1.5, 4.5])
y = x.clone(); dist.all_reduce(y, ReduceOp.AVG, async_op=True).get_future().wait(); same(y, [1.5, 4.5])
y = x.clone(); work = dist.all_reduce(y, ReduceOp.AVG, async_op=True)
while not work.is_completed(): pass
same(y, [1.5, 4.5])
y = x.clone(); dist.reduce(y, 0, ReduceOp.AVG)
if rank == 0: same(y, [1.5, 4.5])
y = x.to(torch.int64); dist.all_reduce(y, op=ReduceOp.AVG); same(y, [1, 4])
o = torch.empty(1, device=device); dist.reduce_scatter_tensor(o, x, op=ReduceOp.AVG); same(o, part)
o = torch.empty(1, device=device); dist.reduce_scatter_tensor(o, x, ReduceOp.AVG, async_op=True).wait(); same(o, part)
o = torch.empty(1, device=device); dist.reduce_scatter(o, [x[:1].clone(), x[1:].clone()], op=ReduceOp.AVG); same(o, part)
a, b = x.clone(), x * 2
with _coalescing_manager():
    dist.all_reduce(a, op=ReduceOp.AVG); dist.all_reduce(b, op=ReduceOp.AVG)
same(a, [1.5, 4.5]); same(b, [3.0, 9.0])
a, b = x.clone(), x * 2
with _coalescing_manager(async_ops=True) as manager:
    dist.all_reduce(a, op=ReduceOp.AVG); dist.all_reduce(b, op=ReduceOp.AVG)
manager.wait(); same(a, [1.5, 4.5]); same(b, [3.0, 9.0])
group = dist.new_group([0], backend="nccl")
y = x.clone(); dist.all_reduce(y, ReduceOp.AVG, group=group)
same(y, [1.0, 3.0] if rank == 0 else [2.0, 6.0])
if BACKEND == "nccl":
    assert dist.get_backend() == "nccl" and dist.get_backend() == "dicl" and dist.get_backend() != "gloo"
assert dist.get_default_backend_for_device("cuda") == "dicl"
host = torch.ones(1); dist.all_reduce(host); assert host.item() == 2.0
"""

_FP32 = """
from _ditorch.mapping.collectives import fp32_in_use, use_fp32
large = lambda: torch.full((2,), 40000.0, dtype=torch.float16, device=device)
inf = float("inf")

def averages():
    y = large(); dist.all_reduce(y, op=ReduceOp.AVG)
    o = large()[:1]; dist.reduce_scatter_tensor(o, large(), op=ReduceOp.AVG)
    z = large(); dist.all_reduce(z, ReduceOp.AVG, async_op=True).wait()
    assert y.dtype == o.dtype == z.dtype == torch.float16
    return [*y.tolist(), *o.tolist(), *z.tolist()]

def gradients(value):
    model = torch.nn.Linear(1, 1, bias=False).to(device, torch.float16)
    ddp = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    ddp(torch.full((1, 1), value, dtype=torch.float16, device=device)).sum().backward()
    return model.weight.grad.item()

assert fp32_in_use() is SETTING
if not SETTING:
    assert averages() == [inf] * 5      # the sum does not fit into half precision
    assert gradients(2.0**-24) == 0.0   # nor does half of the smallest number
    use_fp32()
assert averages() == [40000.0] * 5
assert gradients(2.0**-24) == 2.0**-24
y = large(); dist.all_reduce(y, op=ReduceOp.MAX); same(y, [40000.0] * 2)
use_fp32(False)
assert averages() == [inf] * 5
ditorch.disable()
assert dist.all_reduce.__wrapped__.__module__ == "torch.distributed.distributed_c10d"
"""

_TRAINING = """
import sys
from torch.distributed.fsdp import fully_shard

def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

def train(net, parameters, rows):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    torch.manual_seed(1)
    for _ in range(3):
        x, y = torch.randn(8, 6), torch.randn(8, 2)
        mine = slice(rank * 4, rank * 4 + 4) if rows == "mine" else slice(None)
        loss = torch.nn.functional.mse_loss(net(x[mine].to(where)), y[mine].to(where))
        optimizer.zero_grad(); loss.backward(); optimizer.step()

where = torch.device("cpu")
reference = model(); train(reference, reference.parameters(), "all")
where = device
plain = model().cuda()
train(torch.nn.parallel.DistributedDataParallel(plain, device_ids=[rank]), plain.parameters(), "mine")
mesh = dist.init_device_mesh("cuda", (world,), mesh_dim_names=("dp",))
assert torch.device(mesh.device_type) == torch.device("cuda"), mesh.device_type
assert dist.get_world_size(mesh["dp"].get_group()) == 2
sharded = model().cuda()
for layer in sharded:
    fully_shard(layer, mesh=mesh)
fully_shard(sharded, mesh=mesh)
train(sharded, sharded.parameters(), "mine")
for name, weight in reference.named_parameters():
    torch.testing.assert_close(dict(plain.named_parameters())[name].detach().cpu(), weight.detach(), rtol=1e-5, atol=1e-6)
    whole = dict(sharded.named_parameters())[name].full_tensor()
    torch.testing.assert_close(whole.detach().cpu(), weight.detach(), rtol=1e-5, atol=1e-6)
"""

_END = """
print(f"fine {rank}", flush=True)
dist.barrier(); dist.destroy_process_group()
"""


def launch(folder: Path, body: str, backend: str, **settings: str) -> str:
    code = f"BACKEND = {backend!r}\n" + _START + body + _END
    return run_ranks(code, env=clean_environment(PYTHONWARNINGS="ignore", **settings), cwd=folder)


@pytest.mark.parametrize("backend", ["nccl", "cpu:gloo,cuda:nccl"])
def test_averages_where_the_backend_has_none(tmp_path: Path, backend: str) -> None:
    out = launch(tmp_path, _AVERAGES, backend)
    assert "fine 0" in out
    assert "fine 1" in out


@pytest.mark.parametrize("setting", [False, True], ids=["by a call", "by the setting"])
def test_half_precision_is_summed_in_float32(tmp_path: Path, setting: bool) -> None:
    settings = {"DITORCH_FP32_COLLECTIVES": "1"} if setting else {}
    assert "fine 1" in launch(tmp_path, _FP32.replace("SETTING", str(setting)), "nccl", **settings)


def test_data_parallel_and_sharded_training_equal_one_process(tmp_path: Path) -> None:
    assert "fine 1" in launch(tmp_path, _TRAINING, "nccl")
