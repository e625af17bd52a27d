"""A rank that is killed, stopped, late, or elsewhere is named by the others, and they can end or go on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forked_python import run_ranks

TIMEOUT = 4.0

# The parent of the ranks serves the store, as the agent of torchrun does; `bad` is the rank that something happens to.
START = """
import os, signal, sys, threading, time, torch, torch.distributed as dist
from datetime import timedelta
from torch.distributed import DistBackendError
os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True" if AGENT else "False"
dist.init_process_group("dicl", timeout=timedelta(seconds=TIMEOUT))
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("dipu", rank % 2)
torch.dipu.set_device(device)
x = torch.ones(8, device=device)
for _ in range(3): dist.all_reduce(x)
x.cpu(); time.sleep(1.2)                   # for one more sign of life

def error_of(call):
    begin = time.monotonic()
    try:
        call()
        torch.dipu.synchronize()           # with a queue the error surfaces here
    except (DistBackendError, RuntimeError) as error:
        return str(error), time.monotonic() - begin
    raise AssertionError("nothing was raised")

def named(text, *words):
    assert all(word in text for word in words), text
"""

END = """
print(f"fine {rank}", flush=True)
os._exit(0) if HURRY else None
"""

KILLED = """
if rank == BAD: os.kill(os.getpid(), signal.SIGKILL)
text, took = error_of(lambda: dist.all_reduce(x))
named(text, "all_reduce (sequence number 4", f"rank {BAD} does not respond", "sequence number 3")
assert took < TIMEOUT + 5 + SLACK, took
again, took = error_of(lambda: dist.broadcast(x, src=0))        # at once, and for the same reason
named(again, "cannot be used any more", f"rank {BAD} does not respond")
dist.destroy_process_group()
y = x.cpu() + 1                                                # the device is as before
print(f"fine {rank}", flush=True)
"""

STOPPED = """
if rank == BAD:
    threading.Thread(target=lambda: os.kill(os.getpid(), signal.SIGSTOP)).start(); time.sleep(1000)
work = dist.all_reduce(x, async_op=True)
text, took = error_of(work.wait)
named(text, "all_reduce (sequence number 4", f"rank {BAD} does not respond", "sequence number 3")
arrived = [f"rank {r}" for r in range(world) if r != BAD]
named(text, "Arrived: " + ", ".join(arrived[:-1]) + " and " + arrived[-1])
assert took < TIMEOUT + 5 + SLACK, took
assert work.is_completed() and not work.is_success()
try: raise work.exception()
except Exception as error: named(str(error), f"rank {BAD}")
dist.destroy_process_group()
print(f"fine {rank}", flush=True)
if rank == FIRST:
    store_of_the_parent.set("over", "yes")
"""

# Both live: one comes late, or is at another call.
LATE = """
if rank == 1:
    time.sleep(TIMEOUT + 6)
    text, _ = error_of(lambda: dist.all_reduce(x)); named(text, "rank 1 lives and did not call it")
else:
    text, took = error_of(lambda: dist.all_reduce(x))
    named(text, "all_reduce (sequence number 4", "Arrived: rank 0", "rank 1 lives and did not call it", "sequence number 3")
dist.destroy_process_group()
print(f"fine {rank}", flush=True)
"""

ELSEWHERE = """
text, took = error_of(lambda: dist.all_gather([torch.empty_like(x) for _ in range(world)], x) if rank == 1 else dist.all_reduce(x[:3]))
named(text, "sequence number 4", "called another operation")
dist.destroy_process_group()
dist.init_process_group("dicl", store=dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]) , is_master=False), rank=rank, world_size=world) if False else None
print(f"fine {rank}", flush=True)
"""

MESSAGES = """
y = torch.empty(4, device=device)
if rank == 1:
    time.sleep(TIMEOUT + 6)
else:
    text, took = error_of(lambda: dist.recv(y, src=1))
    named(text, "recv (sequence number 1, from rank 1", "rank 1 lives; its last call is all_reduce (sequence number 3")
dist.destroy_process_group()
print(f"fine {rank}", flush=True)
"""

# Given up by the program, while the other rank never comes.
ABORTED = """
if rank == 0:
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future()
    threading.Timer(0.3, lambda: dist.group.WORLD.abort()).start()
    try: work.wait(timedelta(seconds=60))
    except DistBackendError as error: named(str(error), "aborted")
    else: raise AssertionError("not aborted")
    try: future.wait()
    except Exception as error: named(str(error), "aborted")
    else: raise AssertionError("not aborted")
else:
    time.sleep(1)
dist.destroy_process_group()
print(f"fine {rank}", flush=True)
"""

# A group that failed leaves others alone, and a new one can be made.
ANOTHER_GROUP = """
pair = dist.new_group([0, 1], timeout=timedelta(seconds=1))
if rank == 0:
    text, _ = error_of(lambda: dist.all_reduce(x, group=pair)); named(text, "rank 1 lives and did not call it")
else:
    time.sleep(6)
dist.all_reduce(x)
fresh = dist.new_group([0, 1])
y = torch.ones(2, device=device); dist.all_reduce(y, group=fresh); assert y.tolist() == [2.0, 2.0]
dist.destroy_process_group()
print(f"fine {rank}", flush=True)
"""
