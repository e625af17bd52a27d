"""PyTorch's whole operator database on the device against the CPU: every check of `ditorch torch-tests`.

The figure of each check is the number of pairs that do not agree for a reason of the device: known gaps and
surprises. Artefacts of the tests and correct refusals are counted and named, but held against nobody.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from report import Case, Options, Report

# The largest acceptable number of pairs that do not agree; of the last three, one in a hundred.
TARGETS = {"forward": 20, "gradient": 3, "out": 32, "inplace": 15, "noncontiguous": 15}
STATES = ("passed", "artefact", "refusal", "gap", "failed", "error", "timeout", "crash")
OURS = ("gap", "failed", "error", "timeout", "crash")
FAILED, INTERRUPTED = 3, 130


def sweep(options: Options, result: Path) -> dict[str, Any]:
    """Run the sweep as its users do. Its exit code 1 (something unexpected) is a result, not a failure."""
    command = [sys.executable, "-m", "ditorch", "torch-tests", "--device", options.device]
    command += ["--json", str(result)]
    if options.quick:
        command.append("--quick")
    code = subprocess.run(command, check=False).returncode
    if code in {FAILED, INTERRUPTED} or not result.exists():
        raise SystemExit(f"the sweep ended with status {code} and left no result: {' '.join(command)}")
    return json.loads(result.read_text())


def not_passing(found: dict[str, Any]) -> dict[str, list[str]]:
    """`state` -> `check:operator:dtype (reason)` of every pair that did not simply pass."""
    listed: dict[str, list[str]] = defaultdict(list)
    for pair in found["pairs"]:
        if pair["state"] != "passed":
            why = pair.get("reason") or pair.get("message", "")
            name = ":".join((pair["check"], pair["op"], pair["dtype"]))
            listed[pair["state"]].append(f"{name} ({why.partition(chr(10))[0]})")
    return dict(listed)


def measure(options: Options) -> Report:
    with tempfile.TemporaryDirectory() as folder:
        found = sweep(options, Path(folder) / "opinfo.json")
    cases = []
    for name, counts in found["counts"].items():
        ours = sum(counts.get(state, 0) for state in OURS)
        samples = sum(pair.get("samples", 0) for pair in found["pairs"] if pair["check"] == name)
        wider = found["wider"].get(name, 0)
        numbers = [sum(counts.values()), *(counts.get(state, 0) for state in STATES), wider, samples]
        cells = [f"{number:,}" for number in numbers]
        cases.append(
            Case(name, ours, cells, TARGETS.get(name), raw={**counts, "wider": wider, "samples": samples})
        )
    notes = {key: found[key] for key in ("device", "vendor", "seconds", "jobs", "bit_equal_rng", "not_run")}
    title = f"OpInfo, {options.device} against the CPU, {found['seconds']:.0f} s"
    notes["not_passing"] = not_passing(found)
    return Report(title, ["pairs", *STATES, "wider", "samples"], cases, notes)
