"""The device's allocator: time of an allocation, memory beyond what is held, peak against torch.cuda's rule, and 20,000 steps."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from caching_rule import replay
from interleaved import Side, compare
from report import ROOT, Case, Options, Report

sys.path.insert(0, str(ROOT / "examples"))
from gpt import GPT, GPTConfig

PAIRS = """
#include <c10/core/Allocator.h>
extern "C" void pairs(int device, size_t bytes, int count) {
    auto* allocator = c10::GetAllocator(static_cast<c10::DeviceType>(device));
    for (int i = 0; i < count; ++i) auto memory = allocator->allocate(bytes);
}
"""
SIZES = {"1000 bytes": 1000, "64 KiB": 2**16, "4 MiB": 2**22}
PRIVATE_USE = 20  # c10::DeviceType
STEPS, WARM_UP = 20_000, 500
MEBIBYTE = 2**20


def compiled_pairs(folder: Path) -> Any:
    """A loop in C++ over allocate and free: from Python most of the time would be Python's."""
    source, library = folder / "pairs.cpp", folder / "pairs.so"
    source.write_text(PAIRS)
    home = Path(torch.__file__).parent
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    compiler = [
        "g++",
        "-O2",
        "-std=c++17",
        abi,
        "-shared",
        "-fPIC",
        f"-I{home / 'include'}",
        f"-L{home / 'lib'}",
    ]
    subprocess.run([*compiler, "-o", library, source, "-lc10"], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.pairs.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_int]
    return loaded.pairs


def pair_cases(options: Options) -> Iterator[Case]:
    torch.empty(1, device=options.device)
    with tempfile.TemporaryDirectory() as folder:
        pairs = compiled_pairs(Path(folder))
        for name, size in SIZES.items():
            host, candidate = (Side(lambda d=device, s=size: pairs(d, s, 100)) for device in (0, PRIVATE_USE))  # type: ignore[misc]
            found = compare(host, candidate, rounds=20 if options.quick else 300, slice_seconds=0.002)
            cells = [
                f"{found.baseline_median * 1e7:.0f} ns",
                f"{found.candidate_median * 1e7:.0f} ns",
                f"{found.median_of_ratios:.2f}",
            ]
            raw = {
                "baseline_s": found.baseline_median / 100,
                "candidate_s": found.candidate_median / 100,
                "quartiles": list(found.quartiles),
            }
            yield Case(f"allocate and free {name}", found.median_of_ratios, cells, 1.2, raw)


def reserved_case(name: str, work: Callable[[], None], module: Any, target: float) -> Case:
    """How much is reserved for the most that is held at a time."""
    gc.collect()
    module.empty_cache()
    module.reset_peak_memory_stats()
    reserved, held = module.memory_reserved(), module.memory_allocated()
    work()
    reserved = module.max_memory_reserved() - reserved
    held = module.max_memory_allocated() - held
    cells = [f"{held / MEBIBYTE:.1f} MiB", f"{reserved / MEBIBYTE:.1f} MiB", f"{reserved / held:.3f}"]
    return Case(name, reserved / held, cells, target, {"held": held, "reserved": reserved})


def growing(device: str, largest: int, count: int = 400) -> Callable[[], None]:
    """A temporary that grows; the next one is made while the last is still there."""

    def work() -> None:
        temporary = None
        for i in range(1, count + 1):
            temporary = torch.empty(largest * i // count, dtype=torch.uint8, device=device)
        del temporary

    return work


def trainer(device: str, width: int, layers: int, batch: int, context: int) -> Callable[[], float]:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocabulary=64, context=context, layers=layers, heads=4, width=width)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(
        64, (batch, context + 1), generator=torch.Generator("cpu").manual_seed(0), device="cpu"
    ).to(device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step() -> float:
        optimizer.zero_grad()
        loss = model.loss(inputs, targets)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def peak_case(options: Options, module: Any, name: str, *shape: int) -> Case:
    gc.collect()
    module.empty_cache()
    module.reset_peak_memory_stats()
    before = module.memory_reserved()
    module.memory._record_memory_history(context=None, clear_history=True)
    step = trainer(options.device, *shape)
    for _ in range(3 if options.quick else 10):
        step()
    events = module.memory._snapshot()["device_traces"][0]
    module.memory._record_memory_history(None)
    rule = replay(events)
    reserved = module.max_memory_reserved() - before
    cells = [
        f"{rule.peak / MEBIBYTE:.1f} MiB",
        f"{reserved / MEBIBYTE:.1f} MiB",
        f"{reserved / rule.peak:.3f}",
    ]
    raw = {"rule": rule.peak, "reserved": reserved, "held": rule.peak_allocated, "events": len(events)}
    return Case(name, reserved / rule.peak, cells, 1.05, raw)


def resident() -> int:
    """Bytes of this process in the host's memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def flat_cases(options: Options, module: Any) -> Iterator[Case]:
    steps, warm_up = (1000, 200) if options.quick else (STEPS, WARM_UP)
    step = trainer(options.device, 32, 1, 2, 16)
    for _ in range(warm_up):
        step()
    gc.collect()
    device, held, host = module.memory_reserved(), module.memory_allocated(), resident()
    for _ in range(steps):
        step()
    gc.collect()
    rows = {
        "device memory reserved": (device, module.memory_reserved()),
        "device memory held": (held, module.memory_allocated()),
        "host memory": (host, resident()),
    }
    for name, (before, after) in rows.items():
        cells = [f"{before / MEBIBYTE:.2f} MiB", f"{after / MEBIBYTE:.2f} MiB", f"{after / before:.4f}"]
        target = 1.01 if name == "host memory" else 1.0
        yield Case(
            f"{name} after {steps:,} steps", after / before, cells, target, {"before": before, "after": after}
        )


def cases(options: Options) -> Iterator[Case]:
    module = getattr(torch, options.device)
    options.say("time of an allocation ...")
    yield from pair_cases(options)
    options.say("growing temporaries ...")
    for largest in (15, 100):
        name = f"400 growing temporaries, largest {largest} MB"
        yield reserved_case(name, growing(options.device, largest * 10**6), module, 1.3)
    options.say("peak of a GPT ...")
    yield peak_case(options, module, "peak of the demo's GPT", 128, 4, 16, 64)
    yield peak_case(options, module, "peak of a wider GPT", 512, 4, 8, 128)
    options.say("training steps ...")
    yield from flat_cases(options, module)


def measure(options: Options) -> Report:
    torch.set_num_threads(1)
    title = "The allocator: the CPU's time, what is held, torch.cuda's rule, or the start against the device"
    return Report(title, ["before", options.device, "ratio"], list(cases(options)), {"quick": options.quick})


if __name__ == "__main__":
    import run

    run.main(["allocator", *sys.argv[1:]])
