"""Collectives go on while the program does: handles, streams, futures, hooks, time limits.

A rank comes to a collective only when another one says that it has gone past its own call. If a call blocked, both would wait
for ever.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forked_python import run_ranks

START = """
import sys, threading, time, torch, torch.distributed as dist
from datetime import timedelta
from torch.distributed import DistBackendError
dist.init_process_group("dicl", timeout=timedelta(seconds=60))
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("dipu", rank)
torch.dipu.set_device(device)
store = dist.distributed_c10d._get_default_store()

def say(what): store.set(what, "yes")
def hear(what): store.wait([what], timedelta(seconds=60))

def same(got, expected):
    assert got.cpu().tolist() == expected, (got, expected)
"""

END = """
sys.stdout.write(f"fine {rank}\\n"); sys.stdout.flush()
dist.barrier(); dist.destroy_process_group()
"""

HANDLES = """
CALLS = {
    "all_reduce": lambda x: dist.all_reduce(x, async_op=True),
    "broadcast": lambda x: dist.broadcast(x, src=1, async_op=True),
    "all_gather": lambda x: dist.all_gather([torch.empty_like(x) for _ in range(world)], x, async_op=True),
    "reduce_scatter_tensor": lambda x: dist.reduce_scatter_tensor(x[:2], x.clone(), async_op=True),
    "all_to_all_single": lambda x: dist.all_to_all_single(torch.empty_like(x), x, async_op=True),
    "barrier": lambda x: dist.barrier(async_op=True),
    "batch": lambda x: dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, torch.empty_like(x), 1 - rank)])[0],
}
for name, call in CALLS.items():
    x = torch.full((4,), rank + 1.0, device=device)
    if rank == 1: hear(f"past {name}")
    work = call(x)
    if rank == 0:
        assert not work.is_completed() and not work.is_success(), name
        try:
            work.wait(timedelta(milliseconds=20))       # a wait that gives up says so, and the call goes on
        except DistBackendError as error:
            assert "20 ms" in str(error), error
        else:
            raise AssertionError(name)
        say(f"past {name}")
    assert work.wait() is True
    torch.dipu.synchronize()
    while not work.is_completed(): time.sleep(0.001)
    assert work.is_success() and work.exception() is None, name
    if name == "all_reduce": same(x, [3.0] * 4); assert [t.data_ptr() for t in work.result()] == [x.data_ptr()]
    if name == "broadcast": same(x, [2.0] * 4)

# Calls keep their order, and their tensors alive: nobody else holds the ones of the loop.
works = []
for i in range(30):
    works.append(dist.all_reduce(torch.full((100,), float(i), device=device), async_op=True))
    junk = torch.full((100,), -1.0, device=device)
for i, work in enumerate(works): work.wait(); same(work.result()[0][:2], [2.0 * i] * 2)

# What the stream has queued before is waited for, and what is queued after waits.
x = torch.ones(64, device=device)
for _ in range(20): x.add_(1)
work = dist.all_reduce(x, async_op=True)
work.wait()
y = x * 2; x.zero_()
same(y[:2], [84.0] * 2)

# Another stream.
side = torch.dipu.Stream()
with torch.dipu.stream(side):
    z = torch.ones(64, device=device)
    for _ in range(20): z.add_(1)
    dist.all_reduce(z)
    z.mul_(2)
side.synchronize(); same(z[:2], [84.0] * 2)
"""  # noqa: E501

# With a queue, even wait() returns at once: the stream waits, not the program.
STREAM_WAITS = """
x = torch.ones(4, device=device)
if rank == 1: hear("queued")
work = dist.all_reduce(x, async_op=True)
work.wait()
y = x * 10
if rank == 0:
    assert not work.is_completed() and not torch.dipu.current_stream().query()
    say("queued")
same(y, [20.0] * 4)
if rank == 1: hear("queued 2")
dist.all_reduce(x)                     # the form that does not give a handle
y = x + 1
if rank == 0: say("queued 2")
same(y, [5.0] * 4)
"""

FUTURES = """
x = torch.ones(4, device=device)
if rank == 1: hear("chained")
future = dist.all_reduce(x, async_op=True).get_future()
order = []
def twice(done):
    order.append(threading.get_ident())
    return done.value()[0] * 2
def reduced_again(done):                 # a callback may wait for a collective of the same group
    t = done.value()
    assert dist.all_reduce(t, async_op=True).get_future().wait()[0] is not None
    return t
chained = future.then(twice).then(reduced_again).then(lambda done: done.value() + 1)
if rank == 0:
    assert not future.done() and not chained.done() and not order
    say("chained")
same(chained.wait(), [9.0] * 4)
assert order and order[0] != threading.get_ident()
late = future.then(lambda done: done.value()[0] + 5); same(late.wait(), [7.0] * 4)
work = dist.all_reduce(x, async_op=True)
assert work.get_future_result().wait() == 0          # WorkResult.SUCCESS
"""

# Bucket 0 of rank 1 is held back until rank 0 has come to the first layer's backward: rank 0 gets there only if its own
# all_reduce of that bucket does not stop it.
OVERLAP = """
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(0)
first, second = torch.nn.Linear(520, 520), torch.nn.Linear(520, 520)   # more than the 1 MiB of a first bucket
net = torch.nn.Sequential(first, torch.nn.Tanh(), second).to(device)
ddp = DistributedDataParallel(net, device_ids=[rank], bucket_cap_mb=1)
buckets = []
def hook(_, bucket):
    buckets.append(bucket.index())
    if step > 0 and rank == 1 and bucket.index() == 0: hear(f"at the first layer {step}")   # all is one bucket in the first step
    work = dist.all_reduce(bucket.buffer().div_(world), async_op=True)
    works.append(work)
    return work.get_future().then(lambda done: done.value()[0])
ddp.register_comm_hook(None, hook)
def at_first_layer(*_):
    if step > 0 and rank == 0:
        assert not works[0].is_completed()
        say(f"at the first layer {step}")
net[1].register_full_backward_pre_hook(at_first_layer)
x = torch.full((8, 520), rank + 1.0).to(device)
for step in range(3):
    works = []
    net.zero_grad()
    from torch.profiler import profile, ProfilerActivity
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        ddp(x).square().sum().backward()
    torch.dipu.synchronize()
assert buckets[-2:] == [0, 1] and len(works) == 2, buckets
rows = {e.name: e for e in profiler.events()}
if rank == 0:
    reduce = min((e for e in profiler.events() if e.name == "dicl:all_reduce"), key=lambda e: e.time_range.start)
    inside = [e.name for e in profiler.events() if "Backward" in e.name and reduce.time_range.start < e.time_range.start < reduce.time_range.end]
    assert any("Tanh" in name for name in inside), inside
for parameter in net.parameters():
    other = [torch.empty_like(parameter.grad) for _ in range(world)]
    dist.all_gather(other, parameter.grad)
    assert torch.equal(other[0].cpu(), other[1].cpu())
"""  # noqa: E501

# The hooks that come with torch.
HOOKS = """
import ditorch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
x = torch.full((4, 32), rank + 1.0).to(device)
def gradients(register):
    torch.manual_seed(0)
    ddp = DistributedDataParallel(torch.nn.Linear(32, 16).to(device), device_ids=[rank])
    register(ddp)
    for _ in range(3):
        ddp.zero_grad()
        ddp(x).square().mean().backward()
    return [p.grad.cpu() for p in ddp.parameters()]
plain = gradients(lambda ddp: None)
compressed = {
    "fp16": lambda ddp: ddp.register_comm_hook(None, default_hooks.fp16_compress_hook),
    "bf16": lambda ddp: ddp.register_comm_hook(None, default_hooks.bf16_compress_hook),
    "all_reduce": lambda ddp: ddp.register_comm_hook(None, default_hooks.allreduce_hook),
    "PowerSGD": lambda ddp: ddp.register_comm_hook(powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2), powerSGD_hook.powerSGD_hook),
}
for name, register in compressed.items():
    for got, wanted in zip(gradients(register), plain, strict=True):
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-3, msg=lambda m: f"{name}: {m}")
"""  # noqa: E501


def launch(body: str, folder: Path, **settings: str) -> None:
    environment = {**os.environ, "DIPU_HOST_DEVICES": "2", **settings}
    out = run_ranks(START + body + END, env=environment, cwd=folder)
    assert "fine 0" in out and "fine 1" in out


QUEUED = {"DIPU_HOST_ASYNC": "1", "DIPU_HOST_DELAY_US": "200"}


@pytest.mark.parametrize("settings", [{}, QUEUED], ids=["synchronous", "queued"])
def test_calls_return_before_others_have_come(settings: dict[str, str], tmp_path: Path) -> None:
    launch(HANDLES, tmp_path, **settings)


def test_a_stream_waits_and_not_the_program(tmp_path: Path) -> None:
    launch(STREAM_WAITS, tmp_path, **QUEUED)


@pytest.mark.parametrize("settings", [{}, QUEUED], ids=["synchronous", "queued"])
def test_callbacks_of_futures(settings: dict[str, str], tmp_path: Path) -> None:
    launch(FUTURES, tmp_path, **settings)


def test_buckets_are_reduced_while_backward_goes_on(tmp_path: Path) -> None:
    launch(OVERLAP, tmp_path)


def test_communication_hooks_of_torch(tmp_path: Path) -> None:
    launch(HOOKS, tmp_path)
