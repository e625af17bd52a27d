"""What `ditorch run` without a tool costs: the speed of a training loop, and the seconds before the script starts.

Whole processes are compared, in turn. The script measures its own loop in short slices and gives the fastest: what others
do on the machine only ever makes a slice slower. Start-up is the time from the launch to where the script has torch.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from report import Case, Options, Report

_SCRIPT = """
import time
import json, sys
import torch
imported = time.time()
torch.set_num_threads(1)
torch.manual_seed(0)
device, rounds = sys.argv[1], int(sys.argv[2])
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 8)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
x, y = torch.randn(32, 64, device=device), torch.randint(8, (32,)).to(device)

def step():
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss

slices = []
for _ in range(rounds):
    start = time.perf_counter()
    for _ in range(5):
        loss = step()
    loss.item()
    slices.append((time.perf_counter() - start) / 5)
print(json.dumps({"imported": imported, "step": min(slices)}))
"""
_LAUNCH = [
    sys.executable,
    "-c",
    "from _ditorch.cli import app; app()",
    "run",
]


def _process(command: list[str], device: str, rounds: int) -> dict[str, float]:
    launched = time.time()
    done = subprocess.run(
        [*command, device, str(rounds)], capture_output=True, text=True, check=True, env=os.environ.copy()
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return {"step": found["step"], "start": found["imported"] - launched}


def _case(name: str, sides: tuple[list[str], list[str]], device: str, options: Options) -> Case:
    processes, rounds = (2, 20) if options.quick else (8, 200)
    figures: dict[str, list[list[float]]] = {"step": [[], []], "start": [[], []]}
    for number in range(processes):
        # Who goes first alternates, so that it is no advantage.
        for side in (0, 1) if number % 2 == 0 else (1, 0):
            found = _process(sides[side], device, rounds)
            for key, value in found.items():
                figures[key][side].append(value)
    ratio = statistics.median(c / b for b, c in zip(*figures["step"], strict=True))
    medians = {key: [statistics.median(side) for side in both] for key, both in figures.items()}
    spread = sorted(c / b for b, c in zip(*figures["step"], strict=True))
    options.say(f"{name}: {ratio:.3f}")
    raw: dict[str, Any] = {"ratio_lowest": spread[0], "ratio_highest": spread[-1], **figures}
    extra = medians["start"][1] - medians["start"][0]
    cells = [
        f"{medians['step'][0] * 1e6:.0f} us",
        f"{medians['step'][1] * 1e6:.0f} us",
        f"{ratio:.3f}",
        f"{medians['start'][0]:.2f} s",
        f"{medians['start'][1]:.2f} s",
        f"{extra:+.2f} s",
    ]
    return Case(name, ratio, cells, target=1.02, raw=raw)


def measure(options: Options) -> Report:
    """Against plain Python on the CPU, and against a script that imports ditorch itself on the device."""
    with tempfile.TemporaryDirectory() as folder:
        plain, importing = Path(folder, "plain.py"), Path(folder, "importing.py")
        plain.write_text(_SCRIPT)
        importing.write_text(_SCRIPT.replace("import torch\n", "import torch, ditorch\n", 1))
        run = [*_LAUNCH, str(plain)]
        cases = [
            _case("CPU, against python script.py", ([sys.executable, str(plain)], run), "cpu", options),
            _case(
                "CPU, --no-ditorch",
                ([sys.executable, str(plain)], [*_LAUNCH, "--no-ditorch", str(plain)]),
                "cpu",
                options,
            ),
            _case(
                f"{options.device}, against import ditorch",
                ([sys.executable, str(importing)], run),
                options.device,
                options,
            ),
        ]
    columns = ["plain step", "run step", "ratio", "plain start", "run start", "more"]
    return Report(
        "ditorch run without a tool", columns, cases, {"figure": "median of the ratios of pairs of processes"}
    )
