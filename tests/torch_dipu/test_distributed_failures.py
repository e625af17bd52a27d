"""A rank that is killed, stopped, late, or elsewhere is named by the others, which can end or go on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forked_python import run_python

TIMEOUT = 4

# A process of its own serves the store, as torchrun's agent does, unless rank 0 has to. Who is left when the others are done is
# ended.
JOB = """
import os, signal, sys, time, torch.distributed as dist
code, world, bad, agent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "agent"
os.environ.update(WORLD_SIZE=str(world), TORCHELASTIC_USE_AGENT_STORE=str(agent))
if agent:
    reading, writing = os.pipe()
    server = os.fork()
    if not server:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writing, str(store.port).encode()); time.sleep(1000)
    port = int(os.read(reading, 10))
else:
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0)); port = probe.getsockname()[1]
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
children = {}
for rank in range(world):
    child = os.fork()
    if not child:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        exec(compile(code, "<string>", "exec"))
        sys.exit(0)
    children[rank] = child
codes = {rank: os.waitpid(child, 0)[1] for rank, child in children.items() if rank != bad}
if bad >= 0:
    os.kill(children[bad], signal.SIGKILL); os.waitpid(children[bad], 0)
if agent: os.kill(server, signal.SIGKILL); os.waitpid(server, 0)
sys.exit(any(codes.values()))
"""

START = f"""
import os, signal, sys, threading, time, torch, torch.distributed as dist
from datetime import timedelta
TIMEOUT, BAD = {TIMEOUT}, bad
dist.init_process_group("dicl", timeout=timedelta(seconds=TIMEOUT))
rank, world = dist.get_rank(), dist.get_world_size()
device = torch.device("dipu", rank % 2)
torch.dipu.set_device(device)
x = torch.ones(8, device=device)
for _ in range(3): dist.all_reduce(x)
x.cpu(); time.sleep(1.5)                   # for one more sign of life

def error_of(call):
    begin = time.monotonic()
    try:
        call()
        torch.dipu.synchronize()           # with a queue the error surfaces here
    except RuntimeError as error:          # DistBackendError is one
        return str(error), time.monotonic() - begin
    raise AssertionError("nothing was raised")

def named(text, *words):
    missing = [word for word in words if word not in text]
    assert not missing, (missing, text)
"""

END = """
dist.destroy_process_group()
sys.stdout.write(f"fine {rank}\\n"); sys.stdout.flush()
"""

KILLED = """
if rank == BAD: os.kill(os.getpid(), signal.SIGKILL)
text, took = error_of(lambda: dist.all_reduce(x))
named(text, "all_reduce (sequence number 4", f"rank {BAD} does not respond")
sys.stdout.write(f"took {took}\\n")
again, took = error_of(lambda: dist.broadcast(x, src=0))        # for the same reason
named(again, "cannot be used any more", f"rank {BAD} does not respond")
assert (x.zero_().cpu() + 1).tolist() == [1.0] * 8              # the device is as before
"""

STOPPED = """
if rank == BAD: os.kill(os.getpid(), signal.SIGSTOP)
work = dist.all_reduce(x, async_op=True)
text, took = error_of(work.wait)
sys.stdout.write(f"took {took}\\n")
arrived = [f"rank {r}" for r in range(world) if r != BAD]
if agent:
    named(text, "all_reduce (sequence number 4", f"rank {BAD} does not respond", "sequence number 3")
    named(text, "Arrived: " + ", ".join(arrived[:-1]) + (" and " if arrived[:-1] else "") + arrived[-1])
else:
    named(text, "all_reduce (sequence number 4", "the store", "does not answer", "rank 0")
assert work.is_completed() and not work.is_success() and work.exception() is not None
"""

LATE = """
if rank == 1:
    time.sleep(TIMEOUT + 5)
    text, _ = error_of(lambda: dist.all_reduce(x))
else:
    text, took = error_of(lambda: dist.all_reduce(x))
named(text, "all_reduce (sequence number 4", "Arrived: rank 0.", "rank 1 lives and did not call it; its last call is all_reduce (sequence number 3")
pair = dist.new_group([0, 1])          # the failed one leaves others alone
y = torch.ones(2, device=device); dist.all_reduce(y, group=pair); assert y.tolist() == [2.0, 2.0]
"""  # noqa: E501

MESSAGES = """
if rank == 1:
    time.sleep(TIMEOUT + 5)
else:
    text, took = error_of(lambda: dist.recv(torch.empty(4, device=device), src=1))
    named(text, "recv (sequence number 1, from rank 1", "rank 1 lives; its last call is all_reduce (sequence number 3")
"""

ELSEWHERE = """
text, _ = error_of(lambda: dist.all_gather([torch.empty_like(x) for _ in range(world)], x) if rank == 1 else dist.broadcast(x, src=1))
named(text, "sequence number 4", "called another operation")
"""  # noqa: E501

# Given up by the program, while the other rank never comes.
ABORTED = """
if rank == 0:
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future()
    threading.Timer(0.3, dist.group.WORLD.abort).start()
    named(error_of(lambda: work.wait(timedelta(seconds=60)))[0], "all_reduce", "aborted")
    named(error_of(future.wait)[0], "aborted")
else:
    time.sleep(1)
"""


def launch(
    body: str, folder: Path, ranks: int = 2, bad: int = -1, store: str = "agent", **settings: str
) -> str:
    environment = {**os.environ, "DIPU_HOST_DEVICES": "2", "OMP_NUM_THREADS": "1", **settings}
    code = START + body + END
    done = run_python("-c", JOB, code, str(ranks), str(bad), store, env=environment, cwd=folder, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("fine")) == [
        f"fine {rank}" for rank in range(ranks) if rank != bad
    ]
    return done.stdout


@pytest.mark.parametrize(("ranks", "bad"), [(2, 1), (4, 2)])
def test_a_killed_rank_is_named(ranks: int, bad: int, tmp_path: Path) -> None:
    launch(KILLED, tmp_path, ranks, bad)


@pytest.mark.parametrize(
    ("ranks", "bad", "store", "settings"),
    [(4, 1, "agent", {}), (2, 1, "agent", {"DIPU_HOST_ASYNC": "1"}), (2, 0, "rank 0", {})],
    ids=["of four", "queued work", "with the store in it"],
)
def test_a_stopped_rank_is_named(
    ranks: int, bad: int, store: str, settings: dict[str, str], tmp_path: Path
) -> None:
    launch(STOPPED, tmp_path, ranks, bad, store, **settings)


@pytest.mark.parametrize(
    "body", [LATE, MESSAGES, ELSEWHERE, ABORTED], ids=["late", "a message", "elsewhere", "aborted"]
)
def test_ranks_that_live_are_told_apart(body: str, tmp_path: Path) -> None:
    launch(body, tmp_path)
