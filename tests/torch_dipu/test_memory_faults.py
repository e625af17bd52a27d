"""A vendor call fails in the allocator: the process lives, the message is raised, no memory is used too early or lost."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from forked_python import run_python

from diopi.vendors import choose

ROOT = Path(__file__).parents[2]

# For each entry: memory in use by a second stream is freed, allocated again, given back; results by alias, pinned memory.
SCENE = """
import gc, json, sys, torch
dipu = torch.dipu

def raises(call):
    try:
        return call()
    except RuntimeError as error:
        messages.append(str(error))

def shared():
    x = torch.full((2**18,), 3.0, device="dipu")
    y = torch.empty_like(x)
    dipu.current_stream().synchronize()
    with dipu.stream(side):
        torch.mul(x, 2, out=y)
    x.record_stream(side)
    del x
    z = torch.full((2**18,), 9.0, device="dipu")  # must not take the memory of x before the product is there
    return y

def everything():
    y = raises(shared)
    for call in (lambda: torch.bitwise_xor(torch.ones(9, dtype=torch.int32, device="dipu"), 1),
                 lambda: torch.ones(2**19).pin_memory().to("dipu", non_blocking=True),
                 lambda: torch.empty(9 * 2**20, dtype=torch.uint8, device="dipu"),
                 lambda: torch.ones(2, device="dipu"),  # collects
                 dipu.empty_cache, dipu.synchronize, dipu.mem_get_info):
        raises(call)
    return y

messages = []
side = dipu.Stream()
everything()
for entry in sys.argv[1:]:
    dipu.synchronize()
    dipu.empty_cache()
    messages.clear()
    print(entry, file=sys.stderr, flush=True)  # where it ends if it crashes
    held = dipu.memory_allocated()
    dipu.configure(fail=entry + ":1")
    product = everything()
    said = {"hits": dipu.option("hits")}
    dipu.configure(fail="none:0")
    for _ in range(2):
        raises(dipu.synchronize)
        raises(dipu.empty_cache)
    said["told"] = any("the chip is broken" in message for message in messages)
    said["right"] = product is None or product.eq(6).all().item()
    product = None
    gc.collect()
    dipu.synchronize()
    dipu.empty_cache()
    said["left"] = [dipu.memory_allocated() - held, dipu.memory_stats()["active_bytes.all.current"] - held]
    free, total = dipu.mem_get_info()
    said["counted"] = total - free == dipu.memory_reserved()
    said["usable"] = (torch.ones(3, device="dipu") + 1).sum().item()
    print(json.dumps({entry: said}), flush=True)
"""
ENTRIES = (
    "memory_allocate", "memory_free", "event_create", "event_record", "event_destroy", "device_synchronize", "adopt",
    "release", "memory_info", "pinned_allocate", "pinned_free",
)  # fmt: skip
IN_ORDER_ONLY = ("event_query", "stream_run", "event_synchronize")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    built = tmp_path_factory.mktemp("vendor") / "libfailing.so"
    source = Path(__file__).with_name("failing_memory.c")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-I", str(ROOT / "include"), "-o", str(built), str(source)], check=True
    )
    return str(built)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_call_that_fails_is_told_and_loses_nothing(library: str, asynchronous: bool) -> None:
    environment = {
        **os.environ,
        "DIPU_DEVICE": library,
        "CHIP_LIBRARY": str(choose("host").library),
        "DIPU_HOST_ASYNC": str(int(asynchronous)),
        "DIPU_HOST_DELAY_US": "1000" if asynchronous else "0",
    }
    entries = [*ENTRIES, *IN_ORDER_ONLY] if asynchronous else ENTRIES
    done = run_python("-c", SCENE, *entries, timeout=120, env=environment)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    said = {name: told for line in done.stdout.splitlines() for name, told in json.loads(line).items()}
    right = {"hits": "1", "told": True, "right": True, "left": [0, 0], "counted": True, "usable": 6.0}
    assert said == dict.fromkeys(entries, right)
