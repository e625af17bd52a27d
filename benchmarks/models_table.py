"""Thirteen models on a device beside the CPU: losses judged by op_tools, words compared, cuda with and without ditorch.

Each side is `examples/models/all_models.py` in a process of its own; only how it is started differs. `--device` takes
one or more of `dipu`, `reordered` (the simulated chip with another order of its sums) and `cuda`, with commas between them.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from models_truth import judge
from report import Case, Options, Report

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "examples" / "models" / "all_models.py"
QUICK = ("llama3", "qwen3_moe", "resnet50")
BOUND = (
    "losses before each of two steps and after the last, and the picture that the diffusion model draws: judged by"
    " op_tools.verdict with the float64 training as truth and as noise its change when weights, data and every inner"
    " result move by one rounding of float32; words must be equal"
)
# Bit for bit the same in every run, which cuda promises only so.
REPRODUCIBLE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
PLAIN = [sys.executable]
WITH_DITORCH = [sys.executable, "-m", "ditorch", "run"]


@dataclass(frozen=True)
class Side:
    """How the models are started for one device."""

    start: list[str]
    settings: dict[str, str]
    on_cpu: bool = False
    without_ditorch: bool = False
    """The device is cuda itself: the same must come out without ditorch."""


CPU = Side(PLAIN, {}, on_cpu=True)
SIDES = {
    "dipu": Side(WITH_DITORCH, {"DITORCH_DEVICE": "dipu"}),
    "reordered": Side(WITH_DITORCH, {"DITORCH_DEVICE": "dipu", "DIPU_HOST_NUMERICS": "reordered"}),
    "cuda": Side(WITH_DITORCH, {"DITORCH_DEVICE": "cuda"}, without_ditorch=True),
}


class Failed(RuntimeError):
    """A side gave no results at all."""


def results_of(side: Side, models: Sequence[str]) -> dict[str, Any]:
    """Versions and results by model; a model that failed or is missing has a text in place of figures."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        command = [*side.start, str(SCRIPT), *models, "--reproducible", "--json", str(path)]
        settings = {"HF_HUB_OFFLINE": "1", **REPRODUCIBLE, **side.settings}
        done = subprocess.run(
            [*command, *(["--cpu"] if side.on_cpu else [])],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=False,
        )
        if not path.exists():
            raise Failed(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


def words(on_cpu: Mapping[str, Any], on_device: Mapping[str, Any]) -> str:
    """Whether what was generated is equal; a picture is judged instead, and some models generate nothing."""
    expected, found = on_cpu["generated"], on_device["generated"]
    if not expected or isinstance(expected[0], float):
        return ""
    for index, (one, other) in enumerate(zip(expected, found, strict=True)):
        if one != other:
            return f"differ from word {index + 1} of {len(expected)}"
    return "equal"


def same_bits(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Whether two runs on one device gave the same losses, words and weights, bit for bit."""
    different = [name for name in ("losses", "generated") if one[name] != other[name]]
    weights = [name for name, digest in one["digests"].items() if other["digests"].get(name) != digest]
    if weights:
        different.append(f"{len(weights)} of {len(one['digests'])} weights, first {weights[0]}")
    return f"differ: {', '.join(different)}" if different else "equal"


def broken(result: Mapping[str, Any] | None) -> str:
    """Why there are no figures; empty if there are some."""
    if result is None:
        return "not run"
    return (
        f"not in this transformers: {result['missing']}" if "missing" in result else result.get("error", "")
    )


def compared(
    name: str, cpu: Mapping[str, Any], device: Mapping[str, Any], plain: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Everything the table says about one model on one device."""
    for result in (cpu, device, *([plain] if plain is not None else [])):
        if reason := broken(result):
            return {"status": "missing" if "missing" in result else "error", "reason": reason}
    verdict = judge(name, cpu, device)
    found = {
        "status": verdict.status,
        "reason": verdict.reason,
        "error_over_bound": None if math.isnan(verdict.error_over_bound) else verdict.error_over_bound,
        "losses_cpu": cpu["losses"],
        "losses": device["losses"],
        "difference": max(abs(a - b) for a, b in zip(cpu["losses"], device["losses"], strict=True)),
        "words": words(cpu, device),
        "device": device["device"],
        "parameters": device["parameters"],
    }
    if plain is not None:
        found["without_ditorch"] = same_bits(device, plain)
    return found


def unmet(found: Mapping[str, Any]) -> int:
    """How many of the three demands do not hold: the verdict, equal words, equal bits without ditorch."""
    holds = (
        found["status"] in ("same", "pass"),
        found.get("words", "") in ("", "equal"),
        found.get("without_ditorch", "equal") == "equal",
    )
    return holds.count(False)


def as_case(name: str, device: str, found: dict[str, Any]) -> Case:
    cells = [found["reason"][:40]] + [""] * 4
    if "losses" in found:
        loss = f"{found['losses_cpu'][-1]:.6f} {found['losses'][-1]:.6f}"
        cells = [
            loss,
            f"{found['difference']:.1e}",
            found["status"],
            found["words"],
            found.get("without_ditorch", ""),
        ]
    return Case(
        f"{name}, {device}", unmet(found), cells, target=0, raw={"model": name, "side": device, **found}
    )


def cases(options: Options, devices: Sequence[str], versions: dict[str, Any]) -> Iterator[Case]:
    models = QUICK if options.quick else ()
    options.say("training on the CPU ...")
    reference = results_of(CPU, models)
    versions["cpu"] = reference["versions"]
    for device in devices:
        side = SIDES[device]
        options.say(f"training on {device} ...")
        found = results_of(side, models)
        versions[device] = found["versions"]
        plain: dict[str, Any] = {}
        if side.without_ditorch:
            options.say(f"training on {device} without ditorch ...")
            plain = results_of(Side(PLAIN, {}), models)["models"]
        for name, cpu in reference["models"].items():
            other = plain.get(name, {"error": "not run"}) if side.without_ditorch else None
            result = found["models"].get(name, {"error": "not run"})
            yield as_case(name, device, compared(name, cpu, result, other))


def measure(options: Options) -> Report:
    devices = [device for device in options.device.split(",") if device]
    unknown = [device for device in devices if device not in SIDES]
    if unknown:
        raise SystemExit(f"--device {','.join(unknown)}: expected some of {', '.join(SIDES)}.")
    versions: dict[str, Any] = {}
    found = list(cases(options, devices, versions))
    title = "Models: loss after two steps on the CPU and on the device"
    columns = ["cpu, device", "difference", "verdict", "words", "without ditorch"]
    notes = {
        "bound": BOUND,
        "figure": "how many of these demands do not hold",
        "devices": {name: asdict(SIDES[name]) | {"start": SIDES[name].start[1:]} for name in devices},
        "versions": versions,
        "cards": {name: card(name) for name in devices},
    }
    return Report(title, columns, found, notes)


def card(device: str) -> str:
    """What the device calls itself."""
    import torch

    return torch.cuda.get_device_name() if device == "cuda" and torch.cuda.is_available() else "simulated"


if __name__ == "__main__":
    import run

    run.main(["models_table", *sys.argv[1:]])
