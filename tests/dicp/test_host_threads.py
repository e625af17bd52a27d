"""Kernels of hostgraph and of dlinfer's vendor for the CPU share torch's threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.unit

# The OpenMP library starts a thread when the first loop for two of them runs. Nothing else here computes on more than one.
SCRIPT = """
import os, torch
torch.set_num_threads(1)
{prepare}
before = run()
alone = len(os.listdir("/proc/self/task"))
torch.set_num_threads(2)
after = run()
print(len(os.listdir("/proc/self/task")) - alone)
assert torch.equal(before, after)
"""
HOSTGRAPH = """
function = torch.compile(lambda x: torch.softmax(x * 2, -1) + 1, backend="hostgraph")
x = torch.arange(512 * 512.).view(512, 512) % 97
def run():
    with torch.no_grad():
        return function(x)
"""
DLINFER = """
import dlinfer.ops
x, weight = torch.arange(512 * 512.).view(512, 512) % 97, torch.ones(512)
def run():
    return dlinfer.ops.rms_norm(x, weight, 1e-6)
"""


@pytest.mark.parametrize("prepare", [HOSTGRAPH, DLINFER], ids=["hostgraph", "dlinfer"])
def test_a_loop_for_two_threads_starts_one(prepare: str, tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DICP_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("DLINFER_VENDOR", "cpp")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(prepare=prepare)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) == 1
